use super::*;
use crate::{
    ConfigErrorKind::{Syntax, Unknown},
    pb::{self, model_config::SchedulingChoice, model_version_policy::PolicyChoice},
    tests::refusals::{Refusals, part},
};

fn read(text: &str) -> pb::ModelConfig {
    parse("config.pbtxt", text.as_bytes()).unwrap_or_else(|fault| panic!("{fault}")).0.shown()
}

#[test]
fn lists_are_read_with_and_without_a_colon() {
    let bare = read("input [ { name: \"x\" dims: [ 1, 2 ] }, { name: \"y\" } ] output [{name:\"z\"}]");
    let colon = read("input: [ { name: \"x\" dims: [ 1, 2 ] }, { name: \"y\" } ] output: [{name:\"z\"}]");
    let repeated = read("input { name: \"x\" dims: 1 dims: 2 } input: { name: \"y\" } output < name: \"z\" >");
    assert_eq!(bare, colon);
    assert_eq!(bare, repeated);
    assert_eq!(bare.input.len(), 2);
    assert_eq!(bare.input[0].dims, [1, 2]);
}

#[test]
fn scalar_lists_too() {
    assert_eq!(read("input { dims [ 3, -1 ] }").input[0].dims, [3, -1]);
    assert!(read("input { dims: [] }").input[0].dims.is_empty());
}

#[test]
fn separators_and_quotes_are_free() {
    let one = read("name: \"m\"; backend: 'onnxruntime', max_batch_size: 4;");
    let other = read("name: 'm' backend: \"onnxruntime\" max_batch_size: 4");
    assert_eq!(one, other);
    assert_eq!(read("name: \"a\" 'b'\n\"c\"").name, "abc", "adjacent strings are one");
}

#[test]
fn brackets_in_strings_and_comments_count_for_nothing() {
    let config = read(concat!(
        "# input [ { <\n",
        "name: \"a [ { < # \\\" ' \" # ] } >\n",
        "parameters { key: 'k [ x' value { string_value: '}' } } # \"\n",
    ));
    assert_eq!(config.name, "a [ { < # \" ' ");
    assert_eq!(config.parameters["k [ x"].string_value, "}");
}

#[test]
fn a_bom_and_crlf_change_nothing() {
    let plain = "name: \"m\"\ninput [\n { name: \"x\" } # one\n]\n";
    let windows = format!("\u{feff}{}", plain.replace('\n', "\r\n"));
    assert_eq!(read(&windows), read(plain));
}

#[test]
fn maps_enums_and_choices_are_read() {
    let config = read(
        "parameters [ { key: \"a\" value: { string_value: \"1\" } }, { key: \"b\" value < string_value: \"2\" > } ]
         input { data_type: TYPE_STRING } input { data_type: 11 }
         version_policy { specific { versions: [ 1, 3 ] } }
         dynamic_batching { priority_queue_policy { key: 1 value { timeout_action: DELAY max_queue_size: 2 } } }
         model_transaction_policy { decoupled: true }",
    );
    assert_eq!(config.parameters["b"].string_value, "2");
    assert_eq!(config.input[0].data_type(), pb::DataType::TypeString);
    assert_eq!(config.input[1].data_type(), pb::DataType::TypeFp32);
    let Some(PolicyChoice::Specific(specific)) = config.version_policy.and_then(|policy| policy.policy_choice) else {
        panic!("specific versions");
    };
    assert_eq!(specific.versions, [1, 3]);
    let Some(SchedulingChoice::DynamicBatching(batching)) = config.scheduling_choice else {
        panic!("dynamic batching");
    };
    assert_eq!(batching.priority_queue_policy[&1].max_queue_size, 2);
}

#[test]
fn later_checks_find_the_place_of_every_key() {
    let text = "input [\n  { name: \"x\" },\n  { name: \"y\"\n    dims: [ 0 ] }\n]\noutput {\n dims: 1 }\noutput { dims: 2 }\n\
                parameters [ { key: \"a\" value { string_value: \"1\" } },\n { key: \"b\" value { string_value: \"2\" } } ]";
    let (_, origin) = parse("f", text.as_bytes()).unwrap();
    let place = |path: &str| origin.error(path, "x").to_string();
    assert_eq!(place("input[1].dims"), "f:4:5: input[1].dims: x");
    assert_eq!(place("input[1].data_type"), "f:3:3: input[1].data_type: x", "of the element, where the key is missing");
    assert_eq!(place("output[1].dims"), "f:8:10: output[1].dims: x");
    assert_eq!(place("parameters[b]"), "f:10:2: parameters[b]: x");
    assert_eq!(place("backend"), "f: backend: x");
    let text = "dynamic_batching {\n priority_queue_policy { key: 1 value { } }\n priority_queue_policy [\n \
                { key: 2 value { } } ] }";
    let (_, origin) = parse("f", text.as_bytes()).unwrap();
    let place = origin.error("dynamic_batching.priority_queue_policy[2].timeout_action", "x");
    assert_eq!(place.position, Some(Position { line: 4, column: 2 }), "keys of maps may be numbers");
}

pub(crate) fn refusals(all: &mut Refusals) {
    let read = |text: &str| parse("config.pbtxt", text.as_bytes());
    part(all, "config.pbtxt: keys and values", read).refuses(&[
        (Unknown, "2:3", "name: \"m\"\n  max_batchsize: 4\n"),
        (Unknown, "3:4", "input [\n { name: \"x\" },\n { nam: \"y\" }\n]"),
        (Syntax, "2:13", "input [ {\n data_type: FP32 } ]"),
        // Two colons are inserted before the fault, and a BOM is stripped.
        (Syntax, "1:42", "\u{feff}input [ { name: \"ö\" } ] output [ { name: 5 } ]"),
        (Syntax, "1:16", "max_batch_size 4"),
        (Syntax, "2:1", "max_batch_size:\n"),
        (Syntax, "1:17", "max_batch_size: 99999999999"),
        (Syntax, "1:19", "input { dims: [ 1 2 ] }"),
        (Syntax, "2:7", "name: \"m\"\nname: \"n\""),
    ]);
    part(all, "config.pbtxt: brackets and quotes", read).refuses(&[
        (Syntax, "4:2", "input [\n {\n  name: \"x\"\n ]\n}"),
        (Syntax, "2:9", "name: \"m\"\ninput [ {"),
        (Syntax, "1:11", "name: \"m\" }"),
        (Syntax, "1:7", "name: \"m\nbackend: \"x\""),
        (Syntax, "1:7", "name: @"),
    ]);
    all.add(Syntax, "1:10", "name: \"ab\\xff\"", parse("config.pbtxt", b"name: \"ab\xff\""));
}
