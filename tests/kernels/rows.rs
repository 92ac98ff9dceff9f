//! Gather and scatter by slot, embeddings, parameter blocks and the completion signal.

use crate::{
    array::{Array, Kind, UNTOUCHED},
    library::{
        Arg::{self, Int},
        Library,
    },
    numbers::{LAUNCHES, LIVE, ROWS, live},
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

struct Gather<'a> {
    kernel: &'a str,
    index_kind: Kind,
    indices: [f64; ROWS],
    live: i32,
    expected: &'a [Option<usize>],
    faults: [f64; ROWS],
}

impl Gather<'_> {
    /// Runs the kernel for rows of several widths, with addresses that allow vectors and with addresses that do not.
    fn check(&self) {
        let library = Library::of(Kind::F32);
        for (columns, gap) in WIDTHS {
            let stride = columns + gap;
            for ((grid, threads), make) in
                LAUNCHES.iter().flat_map(|launch| [(*launch, Array::new as fn(_, _) -> _), (*launch, Array::unaligned)])
            {
                let has_pitch = self.kernel == "gather_rows";
                let table = table(columns);
                let table = make(Kind::F32, if has_pitch { spread(&table, columns, stride) } else { table });
                let out = Array::untouched(Kind::F32, ROWS * stride);
                let faults = Array::zeros(Kind::I32, ROWS);
                let arguments = [
                    Arg::Array(&Array::new(Kind::I32, [f64::from(self.live)])),
                    Int(ROWS as i32),
                    Int(4 * columns as i32),
                    Arg::Array(&Array::new(self.index_kind, self.indices)),
                    Arg::Array(&table),
                    Int(TABLE_ROWS as i32),
                    Int(4 * stride as i32),
                    Arg::Array(&out),
                    Int(4 * stride as i32),
                    Arg::Array(&faults),
                ];
                let arguments: Vec<Arg<'_>> = arguments
                    .into_iter()
                    .enumerate()
                    .filter(|(at, _)| has_pitch || *at != 6)
                    .map(|(_, it)| it)
                    .collect();
                library.launch(self.kernel, grid, threads, &arguments).expect("the launch keeps the rules");
                let what = format!("{} of rows of {columns} words on {grid:?}", self.kernel);
                assert_eq!(out.values(), spread(&gathered(self.expected, columns), columns, stride), "{what}");
                assert_eq!(faults.values(), self.faults, "faults of {what}");
            }
        }
    }
}

/// An index far beyond every table, for padding rows: an access with it would be detected.
const WILD: f64 = 1e9;

fn gather<'a>(indices: [f64; ROWS], live: i32, expected: &'a [Option<usize>], faults: [f64; ROWS]) -> Gather<'a> {
    Gather { kernel: "gather_rows", index_kind: Kind::I32, indices, live, expected, faults }
}

#[test]
fn slots_may_repeat_and_come_in_any_order() {
    let expected = [Some(5), Some(0), Some(5)];
    gather([5.0, 0.0, 5.0, WILD, WILD], 3, &expected, [0.0; ROWS]).check();
}

#[test]
fn padding_rows_read_as_zeros() {
    gather([WILD; ROWS], 0, &[], [0.0; ROWS]).check();
    gather([2.0, WILD, WILD, WILD, WILD], 1, &[Some(2)], [0.0; ROWS]).check();
}

#[test]
fn a_bucket_may_be_full_and_a_wrong_count_of_rows_ends_with_it() {
    let expected = [Some(4), Some(3), Some(2), Some(1), Some(0)];
    for live in [ROWS as i32, ROWS as i32 + 1, i32::MAX] {
        gather([4.0, 3.0, 2.0, 1.0, 0.0], live, &expected, [0.0; ROWS]).check();
    }
    gather([0.0; ROWS], -1, &[], [0.0; ROWS]).check();
}

#[test]
fn a_slot_that_the_table_does_not_have_is_a_fault_of_its_row_alone() {
    let indices = [1.0, TABLE_ROWS as f64, -1.0, 2.0, WILD];
    let expected = [Some(1), None, None, Some(2), None];
    gather(indices, ROWS as i32, &expected, [0.0, 1.0, 1.0, 0.0, 1.0]).check();
}

#[test]
fn entries_are_gathered_up_to_their_count_and_what_is_behind_them_is_zeros() {
    const MOST: usize = 3;
    type ByRow = [f64; ROWS];
    let rows = TABLE_ROWS as f64;
    // The last entries of the table are NaN, so a row that reads one too many shows it.
    let cases: [(ByRow, ByRow, i32, ByRow); 4] = [
        ([4.0, 0.0, 6.0, 2.0, WILD], [3.0, 1.0, 1.0, 0.0, WILD], 4, [0.0; ROWS]),
        ([WILD; ROWS], [WILD; ROWS], 0, [0.0; ROWS]),
        ([-1.0, rows, 1.0, 1.0, 0.0], [1.0, 1.0, 4.0, -1.0, 2.0], 5, [1.0, 1.0, 1.0, 1.0, 0.0]),
        ([rows - 1.0, rows - 2.0, rows, 0.0, 1.0], [2.0, 0.0, 0.0, 3.0, 3.0], 5, [1.0, 0.0, 0.0, 0.0, 0.0]),
    ];
    let library = Library::of(Kind::F32);
    for (firsts, counts, live, expected_faults) in cases {
        for (columns, _) in WIDTHS {
            for ((grid, threads), make) in
                LAUNCHES.iter().flat_map(|launch| [(*launch, Array::new as fn(_, _) -> _), (*launch, Array::unaligned)])
            {
                let entries = table(columns);
                let out = Array::untouched(Kind::F32, ROWS * MOST * columns);
                let faults = Array::zeros(Kind::I32, ROWS);
                let arguments = [
                    Arg::Array(&Array::new(Kind::I32, [f64::from(live)])),
                    Int(ROWS as i32),
                    Int((4 * MOST * columns) as i32),
                    Arg::Array(&Array::new(Kind::I32, firsts)),
                    Arg::Array(&Array::new(Kind::I32, counts)),
                    Arg::Array(&make(Kind::F32, entries.clone())),
                    Int(TABLE_ROWS as i32),
                    Int(4 * columns as i32),
                    Arg::Array(&out),
                    Arg::Array(&faults),
                ];
                library.launch("gather_entries", grid, threads, &arguments).expect("the launch keeps the rules");
                let row = |row: usize| {
                    let is_read = row < live as usize && expected_faults[row] == 0.0;
                    let count = if is_read { counts[row] as usize * columns } else { 0 };
                    let from = if is_read { firsts[row] as usize * columns } else { 0 };
                    let zeros = std::iter::repeat_n(0.0, MOST * columns - count);
                    entries[from..from + count].iter().copied().chain(zeros).collect::<Vec<f64>>()
                };
                let expected: Vec<f64> = (0..ROWS).flat_map(row).collect();
                assert_eq!(out.values(), expected, "entries of {columns} words on {grid:?}");
                assert_eq!(faults.values(), expected_faults, "faults of entries of {columns} words on {grid:?}");
            }
        }
    }
}

#[test]
fn embedding_ids_count_from_either_end_of_the_table() {
    let vocabulary = TABLE_ROWS as f64;
    let indices = [6.0, -vocabulary, 2.0 - vocabulary, vocabulary, -vocabulary - 1.0];
    let expected = [Some(6), Some(0), Some(2), None, None];
    let faults = [0.0, 0.0, 0.0, 2.0, 2.0];
    for (kernel, index_kind) in [("embedding_i32", Kind::I32), ("embedding_i64", Kind::I64)] {
        Gather { kernel, index_kind, indices, live: ROWS as i32, expected: &expected, faults }.check();
    }
}

#[test]
fn an_id_of_64_bits_is_not_cut_to_32() {
    let indices = [4294967297.0, -4294967295.0, 1.0, WILD, WILD];
    let (expected, faults) = ([None, None, Some(1)], [2.0, 2.0, 0.0, 0.0, 0.0]);
    Gather { kernel: "embedding_i64", index_kind: Kind::I64, indices, live: 3, expected: &expected, faults }.check();
}

#[test]
fn scatter_writes_the_slots_of_live_rows_and_nothing_else() {
    let library = Library::of(Kind::F32);
    let slots = [7.0, 2.0, TABLE_ROWS as f64, 3.0, WILD];
    for (columns, gap) in WIDTHS {
        let stride = columns + gap;
        for ((grid, threads), make) in
            LAUNCHES.iter().flat_map(|launch| [(*launch, Array::new as fn(_, _) -> _), (*launch, Array::unaligned)])
        {
            let mut rows: Vec<f64> = (0..LIVE * columns).map(|place| place as f64).collect();
            rows.resize(ROWS * columns, f64::NAN);
            let input = make(Kind::F32, spread(&rows, columns, stride));
            let table = Array::untouched(Kind::F32, TABLE_ROWS * stride);
            let faults = Array::zeros(Kind::I32, ROWS);
            let arguments = [
                Arg::Array(&live(LIVE)),
                Int(ROWS as i32),
                Int(4 * columns as i32),
                Arg::Array(&Array::new(Kind::I32, slots)),
                Arg::Array(&input),
                Int(4 * stride as i32),
                Arg::Array(&table),
                Int(TABLE_ROWS as i32),
                Int(4 * stride as i32),
                Arg::Array(&faults),
            ];
            library.launch("scatter_rows", grid, threads, &arguments).expect("the launch keeps the rules");
            let mut expected = vec![UNTOUCHED; TABLE_ROWS * stride];
            expected[7 * stride..][..columns].copy_from_slice(&rows[..columns]);
            expected[2 * stride..][..columns].copy_from_slice(&rows[columns..2 * columns]);
            assert_eq!(table.values(), expected, "rows of {columns} words on {grid:?}");
            assert_eq!(faults.values(), [0.0, 0.0, 1.0, 0.0, 0.0], "faults of rows of {columns} words");
        }
    }
}

#[test]
fn the_completion_signal_stores_all_64_bits_of_the_tasks_number() {
    let task = (1_u64 << 40) as f64 + 17.0;
    let word = Array::zeros(Kind::I64, 1);
    let arguments = [Arg::Array(&Array::new(Kind::I64, [task])), Arg::Array(&word)];
    Library::of(Kind::F32).launch("signal", [1, 1], 32, &arguments).expect("the launch keeps the rules");
    assert_eq!(word.values(), [task]);
}

#[test]
fn parameter_blocks_are_fetched_in_turn() {
    const STRIDE: usize = 300;
    for words in [2, 257, STRIDE] {
        let blocks = Array::new(Kind::I32, (0..3 * STRIDE).map(|place| place as f64));
        let (taken, block) = (Array::zeros(Kind::I64, 1), Array::untouched(Kind::I32, STRIDE));
        let (blocks, taken_at, to) = (Arg::Array(&blocks), Arg::Array(&taken), Arg::Array(&block));
        let arguments = [blocks, Int(3), Int(STRIDE as i32), Int(words as i32), taken_at, to];
        let untouched = block.values();
        for turn in 0..5 {
            let library = Library::of(Kind::F32);
            library.launch("fetch_parameters", [1, 1], 256, &arguments).expect("the launch keeps the rules");
            let first = turn % 3 * STRIDE;
            let fetched = (first..first + words).map(|place| place as f64);
            let expected: Vec<f64> = fetched.chain(untouched[words..].iter().copied()).collect();
            assert_eq!(block.values(), expected, "turn {turn}, {words} words");
            assert_eq!(taken.values(), [turn as f64 + 1.0]);
        }
    }
}

#[test]
fn pieces_are_copied_to_their_places_and_no_more_than_there_are() {
    const MOST: i32 = 8;
    // Words of each piece: with vectors, and without.
    const SIZES: [usize; 5] = [1, 4, 3, 260, 1000];
    for (grid, threads) in LAUNCHES {
        for count in [0, 3, SIZES.len()] {
            let from: Vec<Array> =
                SIZES.iter().map(|&words| Array::new(Kind::F32, (0..words).map(|word| word as f64))).collect();
            let to: Vec<Array> = SIZES.iter().map(|&words| Array::untouched(Kind::F32, words)).collect();
            let entry = |(at, words): (usize, &usize)| {
                [from[at].address().addr() as f64, to[at].address().addr() as f64, 4.0 * *words as f64]
            };
            let list = Array::new(Kind::I64, SIZES.iter().enumerate().flat_map(entry));
            let list_at = Array::new(Kind::I64, [list.address().addr() as f64]);
            let pieces = Array::new(Kind::I32, [count as f64]);
            let arguments = [Arg::Array(&pieces), Int(MOST), Arg::Array(&list_at)];
            Library::of(Kind::F32)
                .launch("copy_pieces", grid, threads, &arguments)
                .expect("the launch keeps the rules");
            for (at, (from, to)) in from.iter().zip(&to).enumerate() {
                let expected = if at < count { from.values() } else { vec![UNTOUCHED; SIZES[at]] };
                assert_eq!(to.values(), expected, "piece {at} of {count} on {grid:?}");
            }
        }
    }
}

/// Returns a list of places, one for each row or none, and a variable with the list's address.
fn list_of(places: [Option<&Array>; ROWS]) -> (Array, Array) {
    const BEFORE: usize = 2;
    let own = places.map(|place| place.map_or(0.0, |array| array.address().addr() as f64));
    // Places of other rows come first.
    let list = Array::new(Kind::I64, std::iter::repeat_n(WILD, BEFORE).chain(own));
    let at = Array::new(Kind::I64, [list.address().addr() as f64]);
    (list, at)
}

/// Index of the first place in the list.
const FIRST_PLACE: i32 = 2;

#[test]
fn rows_are_gathered_from_places_of_their_own() {
    for (columns, gap) in WIDTHS {
        let stride = columns + gap;
        for ((grid, threads), make) in
            LAUNCHES.iter().flat_map(|launch| [(*launch, Array::new as fn(_, _) -> _), (*launch, Array::unaligned)])
        {
            let table = Array::new(Kind::F32, spread(&table(columns), columns, stride));
            let own = make(Kind::F32, (0..columns).map(|word| -1.0 - word as f64).collect::<Vec<f64>>());
            let (_list, at) = list_of([None, Some(&own), None, Some(&own), None]);
            let none = Array::zeros(Kind::I64, 1);
            for (places, is_placed) in [(&at, true), (&none, false)] {
                let out = Array::untouched(Kind::F32, ROWS * columns);
                let faults = Array::zeros(Kind::I32, ROWS);
                // A row with a place of its own needs no slot.
                let slots = [3.0, if is_placed { WILD } else { 6.0 }, 0.0, WILD, WILD];
                let arguments = [
                    Arg::Array(&live(LIVE)),
                    Int(ROWS as i32),
                    Int(4 * columns as i32),
                    Arg::Array(&Array::new(Kind::I32, slots)),
                    Arg::Array(&table),
                    Int(TABLE_ROWS as i32),
                    Int(4 * stride as i32),
                    Arg::Array(&out),
                    Int(4 * columns as i32),
                    Arg::Array(&faults),
                    Arg::Array(places),
                    Int(FIRST_PLACE),
                ];
                let library = Library::of(Kind::F32);
                library.launch("gather_placed", grid, threads, &arguments).expect("the launch keeps the rules");
                let mut expected = gathered(&[Some(3), Some(6), Some(0)], columns);
                if is_placed {
                    expected[columns..2 * columns].copy_from_slice(&own.values());
                }
                assert_eq!(out.values(), expected, "rows of {columns} words on {grid:?}, placed: {is_placed}");
                assert_eq!(faults.values(), [0.0; ROWS], "faults of rows of {columns} words");
            }
        }
    }
}

#[test]
fn rows_are_scattered_to_places_of_their_own() {
    for (columns, gap) in WIDTHS {
        let stride = columns + gap;
        for ((grid, threads), make) in
            LAUNCHES.iter().flat_map(|launch| [(*launch, Array::new as fn(_, _) -> _), (*launch, Array::unaligned)])
        {
            let rows: Vec<f64> = (0..ROWS * columns).map(|place| place as f64).collect();
            let input = Array::new(Kind::F32, rows.iter().copied());
            let own = make(Kind::F32, vec![0.0; columns]);
            let padding = Array::zeros(Kind::F32, columns);
            let (_list, at) = list_of([None, Some(&own), None, Some(&padding), None]);
            let table = Array::untouched(Kind::F32, TABLE_ROWS * stride);
            let faults = Array::zeros(Kind::I32, ROWS);
            let arguments = [
                Arg::Array(&live(LIVE)),
                Int(ROWS as i32),
                Int(4 * columns as i32),
                Arg::Array(&Array::new(Kind::I32, [7.0, WILD, TABLE_ROWS as f64, 1.0, 1.0])),
                Arg::Array(&input),
                Int(4 * columns as i32),
                Arg::Array(&table),
                Int(TABLE_ROWS as i32),
                Int(4 * stride as i32),
                Arg::Array(&faults),
                Arg::Array(&at),
                Int(FIRST_PLACE),
            ];
            let library = Library::of(Kind::F32);
            library.launch("scatter_placed", grid, threads, &arguments).expect("the launch keeps the rules");
            let mut expected = vec![UNTOUCHED; TABLE_ROWS * stride];
            expected[7 * stride..][..columns].copy_from_slice(&rows[..columns]);
            assert_eq!(table.values(), expected, "rows of {columns} words on {grid:?}");
            assert_eq!(own.values(), rows[columns..2 * columns], "rows of {columns} words on {grid:?}");
            assert_eq!(padding.values(), vec![0.0; columns], "padding is not written");
            assert_eq!(faults.values(), [0.0, 0.0, 1.0, 0.0, 0.0], "faults of rows of {columns} words");
        }
    }
}
