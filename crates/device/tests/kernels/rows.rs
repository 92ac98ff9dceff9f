//! Gather and scatter by slot, embeddings, parameter blocks and the completion signal.

use crate::{
    array::{Array, Kind, UNTOUCHED},
    library::{
        Arg::{self, Int},
        Library,
    },
    numbers::{LAUNCHES, LIVE, ROWS},
};

/// Rows of a table. Each element identifies its position; the last two rows are NaN.
const TABLE_ROWS: usize = 9;

fn table(columns: usize) -> Vec<f64> {
    let known = (0..(TABLE_ROWS - 2) * columns).map(|place| place as f64 + 1.0);
    known.chain(std::iter::repeat_n(f64::NAN, 2 * columns)).collect()
}

/// Returns the expected result of a gather: zeros for padding and for rows beyond the table.
fn gathered(rows: &[Option<usize>], columns: usize) -> Vec<f64> {
    let table = table(columns);
    let row = |row: &Option<usize>| match row {
        Some(row) => table[row * columns..][..columns].to_vec(),
        None => vec![0.0; columns],
    };
    let padding = std::iter::repeat_n(0.0, (ROWS - rows.len()) * columns);
    rows.iter().flat_map(row).chain(padding).collect()
}

/// Words of a row, and extra words between rows in the batch and in tables. Some widths allow vectors; others do not,
/// because of either number.
const WIDTHS: [(usize, usize); 9] = [(1, 0), (3, 0), (4, 0), (4, 4), (4, 3), (31, 1), (32, 0), (257, 0), (1000, 24)];

/// Returns rows that begin every `stride` words, with untouched words between them.
fn spread(rows: &[f64], columns: usize, stride: usize) -> Vec<f64> {
    let gap = std::iter::repeat_n(UNTOUCHED, stride - columns);
    rows.chunks(columns).flat_map(|row| row.iter().copied().chain(gap.clone())).collect()
}

/// An index far beyond every table, for padding rows: an access with it would be detected.
const WILD: f64 = 1e9;

/// Calls `check` for each width, launch and alignment: with the columns, the stride, the launch, and how arrays are
/// made.
fn everywhere(check: impl Fn(usize, usize, ([u32; 2], u32), fn(Kind, Vec<f64>) -> Array)) {
    for (columns, gap) in WIDTHS {
        for launch in LAUNCHES {
            check(columns, columns + gap, launch, Array::new);
            check(columns, columns + gap, launch, Array::unaligned);
        }
    }
}

/// The words of an address.
fn address_of(array: &Array, words: usize) -> [f64; 2] {
    let bits = (array.address().addr() + 4 * words) as u64;
    [f64::from(bits as u32 as i32), f64::from((bits >> 32) as u32 as i32)]
}

/// The parameters of a task, in words.
fn parameters(live: i32, places: Option<&Array>, lists: &[[f64; ROWS]]) -> Vec<f64> {
    let places = places.map_or([0.0; 2], |list| address_of(list, 0));
    [f64::from(live), 0.0].into_iter().chain(places).chain(lists.iter().flatten().copied()).collect()
}

/// A move of whole rows that the first list names.
struct Move<'a> {
    table: &'a Array,
    batch: &'a Array,
    /// Words of the batch before its first row.
    before: usize,
    /// Words of a row, and between the starts of two rows in the table and in the batch.
    columns: usize,
    pitch: usize,
    stride: usize,
    /// Number of the list that names rows, and of that with the number of entries.
    list: usize,
    counts: Option<usize>,
    first_place: i32,
}

impl<'a> Move<'a> {
    fn new(table: &'a Array, batch: &'a Array, columns: usize, stride: usize) -> Self {
        Self { table, batch, before: 0, columns, pitch: stride, stride, list: 0, counts: None, first_place: -1 }
    }

    fn words(&self) -> Vec<f64> {
        let word = |list: usize| (4 + list * ROWS) as f64;
        let bytes = |words: usize| 4.0 * words as f64;
        let counts = self.counts.map_or(-1.0, word);
        let sizes = [TABLE_ROWS as f64, bytes(self.columns), bytes(self.pitch), bytes(self.stride)];
        let numbers = [word(self.list), counts].into_iter().chain(sizes).chain([f64::from(self.first_place), 0.0]);
        [address_of(self.table, 0), address_of(self.batch, self.before)].into_iter().flatten().chain(numbers).collect()
    }
}

/// Words of a parameter block before the parameters.
const HEAD: usize = 2;

/// Gathers the rows of a task, whose block is the second of three, and checks that the block is fetched.
fn gather(grid: [u32; 3], threads: u32, parameters: &[f64], moves: &[Move<'_>]) {
    let words = HEAD + parameters.len();
    let stride = words + 3;
    let mut blocks = vec![WILD; 3 * stride];
    blocks[stride..][..HEAD].copy_from_slice(&[17.0, 0.0]);
    blocks[stride + HEAD..][..parameters.len()].copy_from_slice(parameters);
    let expected = blocks[stride..][..words].to_vec();
    let (blocks, taken) = (Array::new(Kind::I32, blocks), Array::new(Kind::I64, [4.0]));
    let block = Array::untouched(Kind::I32, stride);
    let moves: Vec<Vec<f64>> = moves.iter().map(Move::words).collect();
    let list = Array::new(Kind::I32, moves.iter().flatten().copied().collect::<Vec<f64>>());
    let arguments = [
        Arg::Array(&blocks),
        Int(3),
        Int(stride as i32),
        Int(words as i32),
        Arg::Array(&taken),
        Arg::Array(&block),
        Int(HEAD as i32),
        Int(ROWS as i32),
        Arg::Array(&list),
        Int(moves.len() as i32),
    ];
    let library = Library::of(Kind::F32);
    library.launch_on("gather_rows", grid, threads, &arguments).expect("the launch keeps the rules");
    assert_eq!(block.values()[..words], expected, "the block is fetched");
    assert_eq!(taken.values(), [4.0], "only the signal counts blocks");
}

fn scatter(grid: [u32; 2], threads: u32, parameters: Vec<f64>, moves: &[Move<'_>]) {
    let words: Vec<f64> = moves.iter().flat_map(Move::words).collect();
    let (parameters, list) = (Array::new(Kind::I32, parameters), Array::new(Kind::I32, words));
    let arguments = [Arg::Array(&parameters), Int(ROWS as i32), Arg::Array(&list)];
    let grid = [grid[0], grid[1], moves.len() as u32];
    Library::of(Kind::F32).launch_on("scatter_rows", grid, threads, &arguments).expect("the launch keeps the rules");
}

/// Gathers from one table in rows of several widths, with addresses that allow vectors and with addresses that do not.
fn check_gather(slots: [f64; ROWS], live: i32, expected: &[Option<usize>]) {
    everywhere(|columns, stride, ([x, y], threads), make| {
        let table = make(Kind::F32, spread(&table(columns), columns, stride));
        let out = Array::untouched(Kind::F32, ROWS * stride);
        gather([x, y, 1], threads, &parameters(live, None, &[slots]), &[Move::new(&table, &out, columns, stride)]);
        assert_eq!(
            out.values(),
            spread(&gathered(expected, columns), columns, stride),
            "rows of {columns} words on {x} x {y}"
        );
    });
}

#[test]
fn slots_may_repeat_and_come_in_any_order() {
    check_gather([5.0, 0.0, 5.0, WILD, WILD], 3, &[Some(5), Some(0), Some(5)]);
}

#[test]
fn padding_rows_read_as_zeros() {
    check_gather([WILD; ROWS], 0, &[]);
    check_gather([2.0, WILD, WILD, WILD, WILD], 1, &[Some(2)]);
}

#[test]
fn a_bucket_may_be_full_and_a_wrong_count_of_rows_ends_with_it() {
    let expected = [Some(4), Some(3), Some(2), Some(1), Some(0)];
    for live in [ROWS as i32, ROWS as i32 + 1, i32::MAX] {
        check_gather([4.0, 3.0, 2.0, 1.0, 0.0], live, &expected);
    }
    check_gather([0.0; ROWS], -1, &[]);
}

#[test]
fn a_slot_that_the_table_does_not_have_is_read_as_zeros() {
    let slots = [1.0, TABLE_ROWS as f64, -1.0, 2.0, WILD];
    check_gather(slots, ROWS as i32, &[Some(1), None, None, Some(2), None]);
}

#[test]
fn one_launch_gathers_all_inputs_of_a_task() {
    everywhere(|columns, stride, ([x, y], threads), make| {
        let narrow = make(Kind::F32, table(2));
        let wide = make(Kind::F32, spread(&table(columns), columns, stride));
        for z in [1, 2, 3] {
            // Both inputs lie side by side in one matrix.
            let width = 2 + columns;
            let out = Array::untouched(Kind::F32, ROWS * width);
            let lists = [[6.0, 1.0, 0.0, WILD, WILD], [3.0, 3.0, 5.0, WILD, WILD]];
            let first = Move { stride: width, ..Move::new(&narrow, &out, 2, 2) };
            let second = Move { before: 2, stride: width, list: 1, ..Move::new(&wide, &out, columns, stride) };
            gather([x, y, z], threads, &parameters(LIVE as i32, None, &lists), &[first, second]);
            let narrow = gathered(&[Some(6), Some(1), Some(0)], 2);
            let wide = gathered(&[Some(3), Some(3), Some(5)], columns);
            let rows = narrow.chunks(2).zip(wide.chunks(columns)).flat_map(|(narrow, wide)| [narrow, wide].concat());
            assert_eq!(out.values(), rows.collect::<Vec<f64>>(), "rows of {columns} words on {x} x {y} x {z}");
        }
    });
}

#[test]
fn entries_are_gathered_up_to_their_count_and_what_is_behind_them_is_zeros() {
    const MOST: usize = 3;
    type ByRow = [f64; ROWS];
    let rows = TABLE_ROWS as f64;
    // The last entries of the table are NaN, so a row that reads one too many shows it.
    let cases: [(ByRow, ByRow, i32, [bool; ROWS]); 4] = [
        ([4.0, 0.0, 6.0, 2.0, WILD], [3.0, 1.0, 1.0, 0.0, WILD], 4, [true; ROWS]),
        ([WILD; ROWS], [WILD; ROWS], 0, [true; ROWS]),
        ([-1.0, rows, 1.0, 1.0, 0.0], [1.0, 1.0, 4.0, -1.0, 2.0], 5, [false, false, false, false, true]),
        ([rows - 1.0, rows - 2.0, rows, 0.0, 1.0], [2.0, 0.0, 0.0, 3.0, 3.0], 5, [false, true, true, true, true]),
    ];
    for (firsts, counts, live, are_known) in cases {
        everywhere(|columns, _, ([x, y], threads), make| {
            let entries = table(columns);
            let of_entries = make(Kind::F32, entries.clone());
            let out = Array::untouched(Kind::F32, ROWS * MOST * columns);
            let own = Move {
                pitch: columns,
                counts: Some(1),
                ..Move::new(&of_entries, &out, MOST * columns, MOST * columns)
            };
            gather([x, y, 1], threads, &parameters(live, None, &[firsts, counts]), &[own]);
            let row = |row: usize| {
                let is_read = row < live as usize && are_known[row];
                let count = if is_read { counts[row] as usize * columns } else { 0 };
                let from = if is_read { firsts[row] as usize * columns } else { 0 };
                let zeros = std::iter::repeat_n(0.0, MOST * columns - count);
                entries[from..from + count].iter().copied().chain(zeros).collect::<Vec<f64>>()
            };
            let expected: Vec<f64> = (0..ROWS).flat_map(row).collect();
            assert_eq!(out.values(), expected, "entries of {columns} words on {x} x {y}");
        });
    }
}

/// Returns a list of places, one for each row or none.
fn list_of(places: [Option<&Array>; ROWS]) -> Array {
    let own = places.map(|place| place.map_or(0.0, |array| array.address().addr() as f64));
    // Places of other rows come first.
    Array::new(Kind::I64, std::iter::repeat_n(WILD, FIRST_PLACE as usize).chain(own))
}

/// Index of the first place in the list.
const FIRST_PLACE: i32 = 2;

#[test]
fn rows_are_gathered_from_places_of_their_own() {
    everywhere(|columns, stride, ([x, y], threads), make| {
        let table = Array::new(Kind::F32, spread(&table(columns), columns, stride));
        let own = make(Kind::F32, (0..columns).map(|word| -1.0 - word as f64).collect());
        let places = list_of([None, Some(&own), None, Some(&own), None]);
        for (places, is_placed) in [(Some(&places), true), (None, false)] {
            let out = Array::untouched(Kind::F32, ROWS * columns);
            // A row with a place of its own needs no slot.
            let slots = [3.0, if is_placed { WILD } else { 6.0 }, 0.0, WILD, WILD];
            let placed = Move { stride: columns, first_place: FIRST_PLACE, ..Move::new(&table, &out, columns, stride) };
            gather([x, y, 1], threads, &parameters(LIVE as i32, places, &[slots]), &[placed]);
            let mut expected = gathered(&[Some(3), Some(6), Some(0)], columns);
            if is_placed {
                expected[columns..2 * columns].copy_from_slice(&own.values());
            }
            assert_eq!(out.values(), expected, "rows of {columns} words on {x} x {y}, placed: {is_placed}");
        }
    });
}

#[test]
fn scatters_write_the_slots_of_live_rows_and_nothing_else() {
    let slots = [7.0, 2.0, TABLE_ROWS as f64, 3.0, WILD];
    let backwards = [-1.0, 0.0, 1.0, WILD, WILD];
    everywhere(|columns, stride, (grid, threads), make| {
        let mut rows: Vec<f64> = (0..LIVE * columns).map(|place| place as f64).collect();
        rows.resize(ROWS * columns, f64::NAN);
        let input = make(Kind::F32, spread(&rows, columns, stride));
        let table = Array::untouched(Kind::F32, TABLE_ROWS * stride);
        let faults = Array::new(Kind::F32, [8.0, 9.0, 10.0, f64::NAN, f64::NAN]);
        let other = Array::untouched(Kind::F32, TABLE_ROWS);
        let moves = [Move::new(&table, &input, columns, stride), Move { list: 1, ..Move::new(&other, &faults, 1, 1) }];
        scatter(grid, threads, parameters(LIVE as i32, None, &[slots, backwards]), &moves);
        let mut expected = vec![UNTOUCHED; TABLE_ROWS * stride];
        expected[7 * stride..][..columns].copy_from_slice(&rows[..columns]);
        expected[2 * stride..][..columns].copy_from_slice(&rows[columns..2 * columns]);
        assert_eq!(table.values(), expected, "rows of {columns} words on {grid:?}");
        let mut expected = vec![UNTOUCHED; TABLE_ROWS];
        expected[..2].copy_from_slice(&[9.0, 10.0]);
        assert_eq!(other.values(), expected, "the second move on {grid:?}");
    });
}

#[test]
fn rows_are_scattered_to_places_of_their_own() {
    everywhere(|columns, stride, (grid, threads), make| {
        let rows: Vec<f64> = (0..ROWS * columns).map(|place| place as f64).collect();
        let input = Array::new(Kind::F32, rows.iter().copied());
        let own = make(Kind::F32, vec![0.0; columns]);
        let padding = Array::zeros(Kind::F32, columns);
        let places = list_of([None, Some(&own), None, Some(&padding), None]);
        let table = Array::untouched(Kind::F32, TABLE_ROWS * stride);
        let slots = [7.0, WILD, TABLE_ROWS as f64, 1.0, 1.0];
        let placed = Move { stride: columns, first_place: FIRST_PLACE, ..Move::new(&table, &input, columns, stride) };
        scatter(grid, threads, parameters(LIVE as i32, Some(&places), &[slots]), &[placed]);
        let mut expected = vec![UNTOUCHED; TABLE_ROWS * stride];
        expected[7 * stride..][..columns].copy_from_slice(&rows[..columns]);
        assert_eq!(table.values(), expected, "rows of {columns} words on {grid:?}");
        assert_eq!(own.values(), rows[columns..2 * columns], "rows of {columns} words on {grid:?}");
        assert_eq!(padding.values(), vec![0.0; columns], "padding is not written");
    });
}

/// Embeds ids, in rows of several widths.
fn check_embedding(
    kernel: &str,
    kind: Kind,
    ids: [f64; ROWS],
    live: i32,
    expected: &[Option<usize>],
    expected_faults: [f64; ROWS],
) {
    everywhere(|columns, stride, (grid, threads), make| {
        let table = make(Kind::F32, table(columns));
        let out = Array::untouched(Kind::F32, ROWS * stride);
        let faults = Array::zeros(Kind::I32, ROWS);
        let arguments = [
            Arg::Array(&Array::new(Kind::I32, [f64::from(live)])),
            Int(ROWS as i32),
            Int(4 * columns as i32),
            Arg::Array(&Array::new(kind, ids)),
            Arg::Array(&table),
            Int(TABLE_ROWS as i32),
            Arg::Array(&out),
            Int(4 * stride as i32),
            Arg::Array(&faults),
        ];
        Library::of(Kind::F32).launch(kernel, grid, threads, &arguments).expect("the launch keeps the rules");
        let what = format!("{kernel} of rows of {columns} words on {grid:?}");
        assert_eq!(out.values(), spread(&gathered(expected, columns), columns, stride), "{what}");
        assert_eq!(faults.values(), expected_faults, "faults of {what}");
    });
}

#[test]
fn embedding_ids_count_from_either_end_of_the_table() {
    let vocabulary = TABLE_ROWS as f64;
    let ids = [6.0, -vocabulary, 2.0 - vocabulary, vocabulary, -vocabulary - 1.0];
    let expected = [Some(6), Some(0), Some(2), None, None];
    let faults = [0.0, 0.0, 0.0, 2.0, 2.0];
    for (kernel, kind) in [("embedding_i32", Kind::I32), ("embedding_i64", Kind::I64)] {
        check_embedding(kernel, kind, ids, ROWS as i32, &expected, faults);
    }
}

#[test]
fn an_id_of_64_bits_is_not_cut_to_32() {
    let ids = [4294967297.0, -4294967295.0, 1.0, WILD, WILD];
    check_embedding("embedding_i64", Kind::I64, ids, 3, &[None, None, Some(1)], [2.0, 2.0, 0.0, 0.0, 0.0]);
}

#[test]
fn the_completion_signal_stores_all_64_bits_of_the_tasks_number_and_counts_its_block() {
    let task = (1_u64 << 40) as f64 + 17.0;
    let (word, taken) = (Array::zeros(Kind::I64, 1), Array::new(Kind::I64, [6.0]));
    let arguments = [Arg::Array(&Array::new(Kind::I64, [task])), Arg::Array(&word), Arg::Array(&taken)];
    Library::of(Kind::F32).launch("signal", [1, 1], 32, &arguments).expect("the launch keeps the rules");
    assert_eq!((word.values(), taken.values()), (vec![task], vec![7.0]));
}

#[test]
fn parameter_blocks_are_fetched_in_turn() {
    const STRIDE: usize = 300;
    for words in [2, 257, STRIDE] {
        let blocks = Array::new(Kind::I32, (0..3 * STRIDE).map(|place| place as f64));
        for turn in 0..5 {
            let (taken, block) = (Array::new(Kind::I64, [turn as f64]), Array::untouched(Kind::I32, STRIDE));
            let (from, taken_at, to) = (Arg::Array(&blocks), Arg::Array(&taken), Arg::Array(&block));
            let untouched = block.values();
            let arguments = [from, Int(3), Int(STRIDE as i32), Int(words as i32), taken_at, to];
            let library = Library::of(Kind::F32);
            library.launch("fetch_parameters", [1, 1], 256, &arguments).expect("the launch keeps the rules");
            let first = turn % 3 * STRIDE;
            let fetched = (first..first + words).map(|place| place as f64);
            let expected: Vec<f64> = fetched.chain(untouched[words..].iter().copied()).collect();
            assert_eq!(block.values(), expected, "turn {turn}, {words} words");
        }
    }
}
