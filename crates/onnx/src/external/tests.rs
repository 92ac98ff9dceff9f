use std::{fs, os::unix::fs::symlink, slice};

use tempfile::TempDir;

use super::*;
use crate::{SealedModel, zoo};

/// Returns the numbers 0, 1, 2, … as FP32.
fn numbers(count: u16) -> Vec<u8> {
    (0..count).flat_map(|number| f32::from(number).to_le_bytes()).collect()
}

fn external(name: &str, dims: &[i64], entries: &[(&str, &str)]) -> pb::TensorProto {
    let entry = |&(key, value): &(&str, &str)| pb::StringStringEntryProto {
        key: Some(key.to_owned()),
        value: Some(value.to_owned()),
    };
    pb::TensorProto {
        name: Some(name.to_owned()),
        dims: dims.to_vec(),
        data_type: Some(1),
        data_location: Some(DataLocation::External.into()),
        external_data: entries.iter().map(entry).collect(),
        ..Default::default()
    }
}

fn with_weights(weights: &[pb::TensorProto]) -> Model {
    let mut model = zoo::identity().expect("it is sound");
    model.0.graph.as_mut().expect("a graph").initializer = weights.to_vec();
    model
}

fn sealed(model: &Model, files: &ExternalFiles) -> Result<SealedModel, String> {
    SealedModel::new("m/1/model.onnx", model.to_bytes(), files).map_err(|error| error.to_string())
}

/// Creates a version's directory with `w.bin` of four numbers, and a secret of the same size outside of it.
fn version() -> (TempDir, ExternalFiles) {
    let root = tempfile::tempdir().expect("a folder");
    let directory = root.path().join("1");
    fs::create_dir(&directory).expect("a folder");
    fs::write(directory.join("w.bin"), numbers(4)).expect("a file");
    fs::write(root.path().join("secret"), numbers(4)).expect("a file");
    (root, ExternalFiles::Beside { within: directory.clone(), directory })
}

/// Returns the data of a weight of four numbers, or the error.
fn taken(files: &ExternalFiles, entries: &[(&str, &str)]) -> Result<Vec<u8>, String> {
    let sealed = sealed(&with_weights(&[external("w", &[4], entries)]), files)?;
    let graph = sealed.model().0.graph.as_ref().expect("a graph");
    assert!(!is_external(&graph.initializer[0]), "small tensors are put into the graph");
    Ok(graph.initializer[0].raw_data.clone().expect("it has elements").to_vec())
}

#[test]
fn small_tensors_are_put_into_the_graph_from_their_place_in_the_file() {
    let (_root, files) = version();
    assert_eq!(taken(&files, &[("location", "w.bin")]), Ok(numbers(4)));
    assert_eq!(taken(&files, &[("location", "./w.bin"), ("length", "16"), ("checksum", "abc")]), Ok(numbers(4)));
    let one = external("w", &[1], &[("location", "w.bin"), ("offset", "8"), ("length", "4")]);
    let sealed = sealed(&with_weights(slice::from_ref(&one)), &files).expect("it is there");
    let graph = sealed.model().0.graph.as_ref().expect("a graph");
    assert_eq!(graph.initializer[0].raw_data.as_deref(), Some(2.0_f32.to_le_bytes().as_slice()));
    assert_eq!(sealed.weights().count(), 0);
}

#[test]
fn tensors_may_share_bytes() {
    let (_root, files) = version();
    let half = |offset| external(offset, &[2], &[("location", "w.bin"), ("offset", offset)]);
    let sealed = sealed(&with_weights(&[half("0"), half("4"), half("8")]), &files).expect("they overlap");
    let data = sealed.model().0.graph.iter().flat_map(|graph| &graph.initializer);
    let data: Vec<Vec<u8>> = data.filter_map(|tensor| Some(tensor.raw_data.as_ref()?.to_vec())).collect();
    assert_eq!(data, [0, 4, 8].map(|start| numbers(4)[start..start + 8].to_vec()));
}

#[test]
fn large_weights_stay_outside_and_are_read_when_they_are_needed() {
    let (root, files) = version();
    let large = vec![7; 128 << 10];
    fs::write(root.path().join("1/w.bin"), [vec![0; 4], large.clone()].concat()).expect("a file");
    let weight = external("w", &[32 << 10], &[("location", "w.bin"), ("offset", "4")]);
    let sealed = sealed(&with_weights(slice::from_ref(&weight)), &files).expect("it is there");
    let outside: Vec<_> = sealed.weights().collect();
    assert_eq!((outside.len(), outside[0].name.as_str(), outside[0].len_bytes), (1, "w", large.len()));
    let read = outside[0].elements().expect("it is there");
    assert_eq!(read, large);
    assert!(read.as_ptr().addr().is_multiple_of(64), "the engine moves them by vectors");
    let graph = String::from_utf8_lossy(&sealed.to_bytes()).into_owned();
    assert!(!graph.contains("w.bin") && graph.contains(PLACEHOLDER), "the engine could not find the file by itself");
    assert_eq!(sealed.part(zoo::identity().expect("it is sound")).weights().count(), 0, "a stage has only its own");
    let other = self::sealed(sealed.model(), &ExternalFiles::None).expect_err("its location is none");
    assert!(other.contains(PLACEHOLDER), "{other}");
    let unread = self::sealed(&with_weights(&[weight]), &files).expect("it is there");
    fs::write(root.path().join("1/w.bin"), []).expect("a file");
    let again = outside[0].elements().expect("it was read before");
    assert_eq!((again.as_ptr(), again.len()), (read.as_ptr(), read.len()), "no second copy");
    let refused = unread.weights().next().expect("one").elements().expect_err("it became shorter").to_string();
    assert!(refused.starts_with("cannot read 'w.bin': "), "{refused}");
}

#[test]
fn constants_of_nodes_bodies_and_functions_are_found_too() {
    let (_root, files) = version();
    let tensor = || external("w", &[4], &[("location", "w.bin")]);
    let constant = || pb::AttributeProto { t: Some(Box::new(tensor())), ..Default::default() };
    let node = |attribute| pb::NodeProto { attribute: vec![attribute], ..Default::default() };
    let sparse = || pb::SparseTensorProto { values: Some(tensor()), indices: Some(tensor()), ..Default::default() };
    let body = pb::GraphProto {
        node: vec![node(constant())],
        initializer: vec![tensor()],
        sparse_initializer: vec![sparse()],
        ..Default::default()
    };
    let lists = pb::AttributeProto {
        tensors: vec![tensor()],
        graphs: vec![body.clone()],
        g: Some(Box::new(body)),
        sparse_tensor: Some(Box::new(sparse())),
        sparse_tensors: vec![sparse()],
        ..Default::default()
    };
    let mut model = zoo::identity().expect("it is sound");
    let function = pb::FunctionProto {
        name: Some("f".to_owned()),
        node: vec![node(constant())],
        attribute_proto: vec![constant()],
        ..Default::default()
    };
    model.0.functions.push(function);
    model.0.graph.as_mut().expect("a graph").node.push(node(lists));
    let sealed = sealed(&model, &files).expect("all are there");
    let mut found = 0;
    let mut sealed = sealed.model().clone();
    let seen = tensors::visit_mut(&mut sealed.0, &mut |_, tensor| {
        found += 1;
        if is_external(tensor) { Err(found) } else { Ok(()) }
    });
    assert_eq!((seen, found), (Ok(()), 15));
}

#[test]
fn nothing_outside_of_the_version_is_opened() {
    let (root, files) = version();
    let directory = root.path().join("1");
    let secret = root.path().join("secret");
    symlink(&secret, directory.join("out")).expect("a link");
    symlink(root.path(), directory.join("up")).expect("a link");
    symlink("w.bin", directory.join("in")).expect("a link");
    fs::create_dir(directory.join("folder")).expect("a folder");
    assert_eq!(taken(&files, &[("location", "in")]), Ok(numbers(4)), "links within the version are followed");
    let absolute = secret.display().to_string();
    let refusals = [
        (absolute.as_str(), "without '..'"),
        ("../secret", "without '..'"),
        ("folder/../../secret", "without '..'"),
        ("", "without '..'"),
        ("out", "outside of the model's version"),
        ("up/secret", "outside of the model's version"),
        ("folder", "it is not a file"),
        ("*/_ORT_MEM_ADDR_/*", "No such file"),
        ("w.bin\0", "NUL"),
    ];
    for (location, why) in refusals {
        let refused = taken(&files, &[("location", location)]).expect_err(location);
        assert!(refused.contains(why) && refused.contains("tensor 'w'"), "{location}: {refused}");
        assert!(refused.contains(&format!("'{location}'")), "{location}: {refused}");
    }
    let refused = taken(&ExternalFiles::None, &[("location", "w.bin")]).expect_err("no file is allowed");
    assert!(refused.contains("this model may not use other files"), "{refused}");
}

#[test]
fn devices_and_pipes_are_not_opened() {
    let within = PathBuf::from("/dev");
    let files = ExternalFiles::Beside { directory: within.clone(), within };
    let refused = taken(&files, &[("location", "zero")]).expect_err("it has no end");
    assert!(refused.ends_with("cannot use the file 'zero': it is not a file"), "{refused}");
}

#[test]
fn files_and_entries_that_do_not_fit_are_refused_with_both_sizes() {
    let (_root, files) = version();
    let location = ("location", "w.bin");
    let refusals: [(&[(&str, &str)], &str); 8] = [
        (&[("location", "gone")], "'gone': No such file"),
        (&[location, ("offset", "4")], "it has 16 bytes, expected 16 from byte 4 on"),
        (&[location, ("offset", "18446744073709551615")], "expected 16 from byte 18446744073709551615 on"),
        (&[location, ("length", "12")], "is 12 bytes, but FLOAT of the shape [4] takes 16"),
        (&[location, ("offset", "-4")], "'offset' is '-4', expected a number of bytes"),
        (&[location, location], "'location' is given twice"),
        (&[("offset", "0")], "it names no location"),
        (&[], "it names no location"),
    ];
    for (entries, why) in refusals {
        let refused = taken(&files, entries).expect_err(why);
        assert!(refused.contains(why), "{refused}");
    }
    for dims in [&[-1][..], &[1 << 40, 1 << 40], &[i64::MAX, 2]] {
        let refused = sealed(&with_weights(&[external("w", dims, &[location])]), &files).expect_err("no such shape");
        assert!(refused.contains(&format!("has the shape {dims:?}")), "{refused}");
    }
    let mut text = external("w", &[4], &[location]);
    text.data_type = Some(8);
    let refused = sealed(&with_weights(&[text]), &files).expect_err("strings have no fixed size");
    assert!(refused.contains("elements of STRING cannot lie in another file"), "{refused}");
    let mut inside = external("w", &[4], &[location]);
    inside.data_location = None;
    let refused = sealed(&with_weights(&[inside]), &files).expect_err("readers would differ");
    assert!(refused.contains("its data location is not EXTERNAL"), "{refused}");
}

#[test]
fn many_tensors_over_the_same_bytes_are_refused() {
    let (_root, files) = version();
    let whole = |number: usize| external(&format!("w{number}"), &[4], &[("location", "w.bin")]);
    let model = |count| with_weights(&(0..count).map(whole).collect::<Vec<_>>());
    assert!(sealed(&model(16), &files).is_ok());
    let refused = sealed(&model(17), &files).expect_err("it would take any amount of memory");
    assert!(refused.contains("272 bytes out of files of 16 bytes"), "{refused}");
    let written = |number: usize| ".//".repeat(number) + "w.bin";
    let many = |number| external("w", &[4], &[("location", &written(number))]);
    let refused = sealed(&with_weights(&(0..17).map(many).collect::<Vec<_>>()), &files).expect_err("it is one file");
    assert!(refused.contains("272 bytes out of files of 16 bytes"), "{refused}");
}

#[test]
fn files_that_came_along_are_found_by_their_names_only() {
    let given = BTreeMap::from([("in/w.bin".to_owned(), Bytes::from(numbers(4)))]);
    let files = ExternalFiles::Given(Arc::new(given));
    assert_eq!(taken(&files, &[("location", "in/w.bin")]), Ok(numbers(4)));
    assert_eq!(taken(&files, &[("location", "./in/w.bin")]), Ok(numbers(4)));
    let refused = taken(&files, &[("location", "/etc/hostname")]).expect_err("it did not come along");
    assert!(refused.contains("'/etc/hostname': the load request lacks it"), "{refused}");
    let short = taken(&files, &[("location", "in/w.bin"), ("offset", "1")]).expect_err("one byte is missing");
    assert!(short.contains("it has 16 bytes, expected 16 from byte 1 on"), "{short}");
}

#[test]
fn a_model_without_external_data_keeps_its_bytes() {
    let model = zoo::add_sub().expect("it is sound");
    let bytes = model.to_bytes();
    let sealed = SealedModel::new("m", bytes.clone(), &ExternalFiles::None).expect("it needs no file");
    assert_eq!(sealed.to_bytes().as_ptr(), bytes.as_ptr(), "nothing is encoded again");
}

#[test]
fn the_files_of_a_model_are_those_that_its_tensors_name() {
    let weights = ["w.bin", "./w.bin", "more/w.bin"].map(|place| external("w", &[4], &[("location", place)]));
    let files = with_weights(&weights).external_files().expect("all are beside the model");
    assert_eq!(files.into_iter().collect::<Vec<_>>(), ["more/w.bin", "w.bin"]);
    assert!(zoo::identity().expect("it is sound").external_files().expect("it has none").is_empty());
    let outside = with_weights(&[external("w", &[4], &[("location", "../secret")])]);
    let reason = outside.external_files().expect_err("it is refused");
    assert!(reason.starts_with("tensor 'w': cannot use the file '../secret': expected a path relative"), "{reason}");
}
