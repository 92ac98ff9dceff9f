//! Tables for the terminal.

use std::fmt::{self, Display};

/// A table with a frame, whose columns are as wide as their widest cell.
#[derive(Clone, Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these column titles and no rows.
    pub(super) fn new(titles: &[&str]) -> Self {
        Self { rows: vec![titles.iter().map(|&title| title.to_owned()).collect()] }
    }

    /// Adds a row. Line breaks become spaces.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let on_one_line = |cell: String| cell.split_whitespace().collect::<Vec<_>>().join(" ");
        self.rows.push(cells.into_iter().map(on_one_line).collect());
    }
}

impl Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width_of = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width_of).collect();
        let rule: String =
            widths.iter().map(|width| format!("+{}", "-".repeat(width + 2))).chain(["+".into()]).collect();

        writeln!(formatter, "{rule}")?;
        for (index, row) in self.rows.iter().enumerate() {
            for (column, &width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                write!(formatter, "| {cell:width$} ")?;
            }
            writeln!(formatter, "|")?;
            if index == 0 {
                writeln!(formatter, "{rule}")?;
            }
        }
        write!(formatter, "{rule}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["Model", "Status"]);
        table.row(["añadir".to_owned(), "READY".to_owned()]);
        table.row(["b".to_owned(), "UNAVAILABLE: two\n  lines".to_owned()]);
        let expected = "\
+--------+------------------------+
| Model  | Status                 |
+--------+------------------------+
| añadir | READY                  |
| b      | UNAVAILABLE: two lines |
+--------+------------------------+";
        assert_eq!(table.to_string(), expected);
    }
}
