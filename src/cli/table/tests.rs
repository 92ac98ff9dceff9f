use super::*;

fn cells<const N: usize>(cells: [&str; N]) -> [String; N] {
    cells.map(str::to_owned)
}

#[test]
fn columns_are_as_wide_as_their_widest_cell() {
    let mut table = Table::new(&["Model", "Status"]);
    table.row(cells(["añadir", "READY"]));
    table.row(cells(["b", "UNAVAILABLE: two\n  lines"]));
    let expected = "\
+--------+------------------------+
| Model  | Status                 |
+--------+------------------------+
| añadir | READY                  |
| b      | UNAVAILABLE: two lines |
+--------+------------------------+";
    assert_eq!(table.to_string(), expected);
}

#[test]
fn text_is_wrapped_where_the_terminal_is_narrow() {
    let mut table = Table::new(&["Model", "Version", "Status"]).with_text(&["Model", "Status"]);
    table.row(cells(["encoder", "3", "UNAVAILABLE: model.onnx is no protobuf"]));
    table.row(cells(["b", "12", "READY"]));
    let expected = "\
+---------+---------+------------------+
| Model   | Version | Status           |
+---------+---------+------------------+
| encoder | 3       | UNAVAILABLE:     |
|         |         | model.onnx is no |
|         |         | protobuf         |
| b       | 12      | READY            |
+---------+---------+------------------+";
    assert_eq!(table.within(Some(40)), expected);
    assert_eq!(table.within(Some(200)), table.to_string(), "there is room for all of it");
}

#[test]
fn figures_that_do_not_fit_follow_in_blocks_with_the_keys_that_differ() {
    let mut table = Table::new(&["Policy", "Objective", "p50", "p90", "p99"]).with_keys(2).with_text(&["Policy"]);
    table.row(cells(["lazy", "100 ms", "12.25", "120.50", "1234567.125"]));
    table.row(cells(["window", "100 ms", "13.25", "130.50", "-"]));
    let expected = "\
+--------+-----------+-------+
| Policy | Objective | p50   |
+--------+-----------+-------+
| lazy   | 100 ms    | 12.25 |
| window | 100 ms    | 13.25 |
+--------+-----------+-------+
+--------+--------+
| Policy | p90    |
+--------+--------+
| lazy   | 120.50 |
| window | 130.50 |
+--------+--------+
+--------+-------------+
| Policy | p99         |
+--------+-------------+
| lazy   | 1234567.125 |
| window | -           |
+--------+-------------+";
    assert_eq!(table.within(Some(30)), expected);
    assert_eq!(table.within(Some(10)).matches("1234567.125").count(), 1, "a figure is never cut");
}

/// A table of `figures` columns of figures, one of names and one of sentences.
fn wide(figures: usize) -> (Table, Vec<String>) {
    let titles: Vec<String> = (0..figures).map(|number| format!("Figure {number}")).collect();
    let heads = ["Node", "Remark"].into_iter().chain(titles.iter().map(String::as_str));
    let mut table = Table::new(&heads.collect::<Vec<_>>()).with_text(&["Node", "Remark"]);
    let mut numbers = Vec::new();
    for row in 0..5_u32 {
        let name = format!("/encoder/layer.{row}/attention/self/query/MatMul_output_{}", "0".repeat(row as usize * 40));
        let remark = "the operator has no lowering ".repeat(row as usize);
        let of_row: Vec<String> = (0..figures).map(|number| format!("{}.{number:03}", 7_u32.pow(row * 2))).collect();
        table.row([name, remark].into_iter().chain(of_row.iter().cloned()));
        numbers.extend(of_row);
    }
    (table, numbers)
}

#[test]
fn no_line_is_wider_than_the_terminal_and_no_cell_is_lost() {
    for figures in [0, 3, 8, 40] {
        let (table, numbers) = wide(figures);
        let whole = table.to_string();
        let letters = |text: &str| text.chars().filter(|letter| letter.is_alphabetic()).count();
        for width in [60, 80, 100, 200, 100_000] {
            let shown = table.within(Some(width));
            assert!(shown.lines().all(|line| columns_of(line) <= width), "{width}:\n{shown}");
            for number in &numbers {
                let cell = format!(" {number} ");
                assert_eq!(shown.matches(&cell).count(), whole.matches(&cell).count(), "{number} at {width}:\n{shown}");
            }
            assert!(letters(&shown) >= letters(&whole), "text is lost at {width}:\n{shown}");
        }
    }
}

#[test]
fn what_is_no_terminal_has_no_width() {
    let file = tempfile::tempfile().expect("a file for the test");
    assert_eq!(terminal_width(&file), None);
}
