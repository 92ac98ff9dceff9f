use std::{cell::Cell, fs, time::Duration};

use paternoster_batching::{CostPoint, Ns};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn key() -> Key {
    Key {
        model_sha256: "ab".to_owned(),
        device: "a processor, 2 cores".to_owned(),
        engine: "an engine".to_owned(),
        configuration: "4 rows".to_owned(),
    }
}

fn profile() -> Profile {
    let point = |rows| LatencyPoint { rows, length: 0, median_ns: 100 * Ns::from(rows), p99_ns: 900, runs: 20 };
    let cut = CutTable { at: Vec::new(), stages: vec![vec![point(1), point(4)]], scatter: Vec::new() };
    Profile {
        model: "m".to_owned(),
        max_rows: 4,
        padded_axes: 0,
        cuts: vec![cut],
        side_by_side: vec![point(1)],
        ..Profile::default()
    }
}

/// The profile of a model of two cells, of which one runs several steps in a task.
fn profile_of_cells() -> Profile {
    let point = |rows, length| LatencyPoint { rows, length, median_ns: 100 * Ns::from(rows), p99_ns: 7_000, runs: 20 };
    let times = |points| CutTable { at: Vec::new(), stages: vec![points], scatter: vec![900, 1000, 1300] };
    let encoder = times(vec![point(1, 1), point(1, 4), point(8, 1), point(8, 4)]);
    let encoder = CellTable::new("encoder".to_owned(), 2, None, Some(ChunkProfile { lengths: true }), encoder);
    let decoder = CellTable::new("decoder".to_owned(), 1, Some(64), None, times(vec![point(1, 0), point(8, 0)]));
    let unfold = vec![CellSegment::Chain("encoder".to_owned()), CellSegment::Decode("decoder".to_owned())];
    Profile { model: "m".to_owned(), max_rows: 64, cells: vec![encoder, decoder], unfold, ..Profile::default() }
}

/// Measures a model whose runs take the time that `took_ns` returns, on a clock that only these runs advance.
fn measured(
    sizes: &[MeasuredSize],
    budget: Duration,
    took_ns: impl Fn(MeasuredSize) -> Result<Vec<Ns>, Halt>,
) -> Result<CutTable, Halt> {
    let clock = Cell::new(0);
    measure(
        1,
        sizes,
        budget,
        || Duration::from_nanos(clock.get()),
        |size| {
            let times = took_ns(size)?;
            clock.set(clock.get() + times.iter().sum::<Ns>());
            Ok(times)
        },
    )
}

#[test]
fn batches_are_powers_of_two_and_the_largest() {
    assert_eq!(row_buckets(1), [1]);
    assert_eq!(row_buckets(8), [1, 2, 4, 8]);
    assert_eq!(row_buckets(12), [1, 2, 4, 8, 12]);
    assert_eq!(row_buckets(0), [1], "a model without a batch axis runs one row");
    assert_eq!(sizes(2, &[]), [MeasuredSize { rows: 1, length: 0 }, MeasuredSize { rows: 2, length: 0 }]);
    assert_eq!(sizes(2, &LENGTHS).len(), 2 * LENGTHS.len());
}

#[test]
fn the_first_run_sets_things_up_and_is_not_counted() {
    let runs = Cell::new(0);
    let table = measured(&sizes(1, &[]), SECOND, |_| {
        runs.set(runs.get() + 1);
        Ok(vec![if runs.get() == 1 { 90_000 } else { 100 }])
    });
    let point = table.expect("it runs").stages[0][0];
    assert_eq!((point.median_ns, point.p99_ns), (100, 100));
    assert_eq!(point.runs, 15, "runs that do not differ are soon enough");
}

#[test]
fn runs_that_differ_are_repeated() {
    let runs = Cell::new(0_u64);
    let table = measured(&sizes(1, &[]), SECOND, |_| {
        runs.set(runs.get() + 1);
        Ok(vec![100 + runs.get() % 10 * 20])
    });
    let table = table.expect("it runs");
    let LatencyPoint { runs, median_ns, .. } = table.stages[0][0];
    assert!(runs > 100);
    let (least, most) = (100_000 / median_ns, 280_000 / median_ns);
    assert_eq!((table.scatter.len(), table.scatter.is_sorted()), (101, true));
    assert_eq!((table.scatter[0], table.scatter[100]), (least as u32, most as u32));
    assert!((900..=1000).contains(&table.scatter[50]), "half of ten even steps: {}", table.scatter[50]);
}

#[test]
fn one_run_that_took_very_long_has_its_share_of_the_scatter_and_no_more() {
    let (runs, total) = (Cell::new(0_u64), Cell::new(0));
    let table = measured(&sizes(1, &[]), SECOND, |_| {
        runs.set(runs.get() + 1);
        let took_ns = if runs.get() == 50 { 100_000 } else { 100 + runs.get() % 2 * 40 };
        total.set(total.get() + if runs.get() > 1 { took_ns } else { 0 });
        Ok(vec![took_ns])
    });
    let table = table.expect("it runs");
    let LatencyPoint { runs, median_ns, .. } = table.stages[0][0];
    let between = |ends: &[u32]| f64::midpoint(f64::from(ends[0]), f64::from(ends[1])) / 1e3;
    let drawn = table.scatter.windows(2).map(between).sum::<f64>() / 100.0 * median_ns as f64;
    let mean = total.get() as f64 / f64::from(runs);
    assert!((0.95..1.05).contains(&(drawn / mean)), "{drawn} ns are drawn on average, {mean} ns were measured");
}

#[test]
fn what_would_take_too_long_is_left_out_and_the_budget_kept() {
    let spent = Cell::new(0);
    let table = measured(&sizes(64, &[]), SECOND, |size| {
        let took_ns = u64::from(size.rows) * 100_000_000;
        spent.set(spent.get() + took_ns);
        Ok(vec![took_ns])
    });
    assert_eq!(table.expect("it runs").rows(), [1, 2, 4]);
    assert!(spent.get() <= 1_000_000_000, "{} ns were spent", spent.get());
}

#[test]
fn lengths_that_a_model_does_not_bear_are_left_out() {
    let refused = Cell::new(0);
    let bears = |size: MeasuredSize| {
        if size.length <= 64 {
            Ok(vec![Ns::from(size.rows * size.length)])
        } else {
            refused.set(refused.get() + 1);
            Err(Halt::Failed("too long".to_owned()))
        }
    };
    let table = measured(&sizes(2, &LENGTHS), SECOND, bears).expect("short ones run");
    assert_eq!(table.lengths(), [8, 16, 32, 64]);
    assert_eq!(table.rows(), [1, 2]);
    assert_eq!(refused.get(), 1, "what is larger than one that failed is not tried");
    assert_eq!(table.total_ns(2, 32), Some(64));
    assert_eq!(table.total_ns(2, 128), None);
    let never = measured(&sizes(2, &LENGTHS), SECOND, |_| Err(Halt::Failed("no".to_owned())));
    assert_eq!(never, Err(Halt::Failed("no".to_owned())));
    let given_up =
        measured(&sizes(2, &LENGTHS), SECOND, |size| if size.rows > 1 { Err(Halt::GivenUp) } else { Ok(vec![1]) });
    assert_eq!(given_up, Err(Halt::GivenUp));
}

#[test]
fn costs_count_the_product_of_the_padded_lengths() {
    let mut profile = profile();
    profile.padded_axes = 2;
    profile.cuts[0].stages[0][1].length = 16;
    let costs = profile.costs(&profile.cuts[0]);
    assert_eq!(costs.stages[0][1], CostPoint { rows: 4, length: 256, took_ns: 400 });
}

#[test]
fn a_profile_is_read_as_it_was_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::new(directory.path().join("not/there/yet"));
    assert_eq!(store.read(&key()), None, "nothing was measured yet");
    let path = store.write(&key(), &profile()).expect("the directory is made");
    assert_eq!(store.read(&key()), Some(profile()));
    let files = fs::read_dir(path.parent().expect("it has one")).expect("it is there").count();
    assert_eq!(files, 1, "nothing but the profile is left");
}

#[test]
fn a_profile_of_cells_is_read_as_it_was_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::new(directory.path().to_owned());
    assert!(store.is_empty());
    let path = store.write(&key(), &profile_of_cells()).expect("it is written");
    assert_eq!(store.read(&key()), Some(profile_of_cells()));
    assert!(!store.is_empty());
    let text = fs::read_to_string(&path).expect("it is there");
    assert!(text.contains(r#""unfold":[{"chain":"encoder"},{"decode":"decoder"}]"#), "{text}");
    for (sound, senseless) in
        [("\"batch_sizes\":[1]", "\"batch_sizes\":[]"), ("\"length\":0,\"batch", "\"length\":5,\"batch")]
    {
        let damaged = text.replacen(sound, senseless, 1);
        assert_ne!(damaged, text, "{sound}");
        fs::write(&path, damaged).expect("the file is ours");
        assert_eq!(store.read(&key()), None, "{senseless}");
    }
}

#[test]
fn a_profile_of_before_there_were_cells_in_it_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::new(directory.path().to_owned());
    let point = r#"{"rows":1,"length":0,"median_ns":100,"p99_ns":900,"runs":20}"#;
    let old = format!(
        r#"{{"format":3,"key":{{"model_sha256":"ab","device":"a processor, 2 cores","engine":"an engine",
            "configuration":"4 rows"}},"profile":{{"model":"m","max_rows":4,"padded_axes":0,
            "cuts":[{{"at":[],"stages":[[{point}]],"scatter":[]}}],"side_by_side":[]}}}}"#
    );
    fs::write(store.path(&key()), old).expect("the directory is ours");
    let read = store.read(&key()).expect("its format has not changed");
    assert_eq!((read.cuts[0].rows(), read.cells.len()), (vec![1], 0));
}

#[test]
fn every_part_of_the_key_has_a_profile_of_its_own() {
    let store = Store::new("profiles".into());
    let other = |change: fn(&mut Key)| {
        let mut other = key();
        change(&mut other);
        store.path(&other)
    };
    let mut paths = vec![
        store.path(&key()),
        other(|key| key.model_sha256.push('c')),
        other(|key| key.device.push('c')),
        other(|key| key.engine.push('c')),
        other(|key| key.configuration.push('c')),
    ];
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), 5);
}

#[test]
fn a_damaged_or_old_file_counts_as_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::new(directory.path().to_owned());
    let path = store.write(&key(), &profile()).expect("it is written");
    let text = fs::read_to_string(&path).expect("it is there");
    let senseless = text.replace("\"median_ns\":100,", "\"median_ns\":0,");
    let old = text.replace("\"format\":3", "\"format\":2");
    let foreign = text.replace("\"engine\":\"an engine\"", "\"engine\":\"another\"");
    for (why, damaged) in [("cut off", &text[..40]), ("no time", &senseless), ("old", &old), ("foreign", &foreign)] {
        assert_ne!(damaged, text, "{why}");
        fs::write(&path, damaged).expect("the file is ours");
        assert_eq!(store.read(&key()), None, "{why}");
    }
    store.write(&key(), &profile()).expect("it is written over");
    assert_eq!(store.read(&key()), Some(profile()));
}

#[test]
fn a_changed_file_has_another_digest() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("model.onnx");
    fs::write(&path, "abc").expect("a file");
    let digest_of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(digest(&path).expect("it is there"), digest_of_abc);
    fs::write(&path, "abd").expect("a file");
    assert_ne!(digest(&path).expect("it is there"), digest_of_abc);
}

#[test]
fn a_profile_of_single_runs_or_of_falling_times_is_not_believed() {
    let point = |rows, us: Ns| LatencyPoint { rows, length: 32, median_ns: us * 1000, p99_ns: us * 1000, runs: 20 };
    let of = |points: Vec<LatencyPoint>| {
        let cut = CutTable { at: Vec::new(), stages: vec![points], scatter: Vec::new() };
        Profile { cuts: vec![cut], ..profile() }.doubt()
    };
    let once = |point: LatencyPoint| LatencyPoint { runs: 1, ..point };
    assert_eq!(of(vec![point(1, 100), point(2, 80), point(4, 200)]), None, "a little is noise");
    assert_eq!(of(vec![once(point(1, 100)), point(2, 150), once(point(4, 200)), point(8, 300)]), None);
    assert_eq!(
        of(vec![once(point(1, 100)), once(point(2, 150)), point(4, 200)]).as_deref(),
        Some("of its 3 sizes 2 ran only once")
    );
    assert_eq!(
        of(vec![point(1, 100), point(2, 300), point(4, 200)]).as_deref(),
        Some("4 rows of length 32 took 200 µs, less than 2 with 300 µs")
    );
    let mut cells = profile_of_cells();
    assert_eq!(cells.doubt(), None);
    cells.cells[1].times.stages[0][0].median_ns = 7_000;
    let doubt = cells.doubt();
    assert_eq!(doubt.as_deref(), Some("cell 'decoder': 8 rows took 1 µs, less than 1 with 7 µs"));
    cells.cells.iter_mut().flat_map(|cell| &mut cell.times.stages[0]).for_each(|point| point.runs = 1);
    assert_eq!(cells.doubt().as_deref(), Some("of its 6 sizes 6 ran only once"));
    let longer = LatencyPoint { length: 64, ..point(2, 50) };
    assert_eq!(of(vec![point(1, 100), longer]), None, "another length is compared with its own");
}
