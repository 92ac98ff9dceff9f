use super::*;
use crate::pb::{self, model_config::SchedulingChoice, model_version_policy::PolicyChoice};

fn read(text: &str) -> pb::ModelConfig {
    parse("config.pbtxt", text.as_bytes()).unwrap_or_else(|fault| panic!("{fault}")).0.shown()
}

fn refusal_of(text: &str) -> String {
    parse("config.pbtxt", text.as_bytes()).expect_err("it should be refused").to_string()
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
fn an_unknown_key_is_named_with_its_place_and_neighbour() {
    assert_eq!(
        refusal_of("name: \"m\"\n  max_batchsize: 4\n"),
        "config.pbtxt:2:3: unknown key 'max_batchsize'; did you mean 'max_batch_size'?"
    );
    assert_eq!(
        refusal_of("input [\n { name: \"x\" },\n { nam: \"y\" }\n]"),
        "config.pbtxt:3:4: unknown key 'nam' in input[1]; did you mean 'name'?"
    );
}

#[test]
fn an_unknown_enum_value_is_told_which_there_are() {
    let refusal = refusal_of("input [ {\n data_type: FP32 } ]");
    assert!(refusal.starts_with("config.pbtxt:2:13: data_type: expected one of TYPE_INVALID, TYPE_BOOL"), "{refusal}");
    assert!(refusal.ends_with("but found 'FP32'; did you mean 'TYPE_FP32'?"), "{refusal}");
}

#[test]
fn places_are_those_of_the_users_text_behind_inserted_colons() {
    // Two colons are inserted before the fault, and a BOM is stripped.
    let refusal = refusal_of("\u{feff}input [ { name: \"ö\" } ] output [ { name: 5 } ]");
    assert_eq!(refusal, "config.pbtxt:1:42: expected a string, but found '5'");
}

#[test]
fn missing_and_wrong_pieces_say_what_was_expected() {
    assert_eq!(refusal_of("max_batch_size 4"), "config.pbtxt:1:16: expected ':' or a message value, but found '4'");
    assert_eq!(refusal_of("max_batch_size:\n"), "config.pbtxt:2:1: expected an integer, but reached end of input");
    assert_eq!(refusal_of("input { dims: [ 1 2 ] }"), "config.pbtxt:1:19: expected ',' or ']', but found '2'");
    assert_eq!(refusal_of("name: \"m\"\nname: \"n\""), "config.pbtxt:2:7: 'name' is already set");
    let refusal = refusal_of("max_batch_size: 99999999999");
    assert!(refusal.starts_with("config.pbtxt:1:17: ") && refusal.contains("99999999999"), "{refusal}");
}

#[test]
fn brackets_that_do_not_match_are_named() {
    assert_eq!(
        refusal_of("input [\n {\n  name: \"x\"\n ]\n}"),
        "config.pbtxt:4:2: expected '}' for the bracket opened in line 2, but found ']'"
    );
    assert_eq!(refusal_of("name: \"m\"\ninput [ {"), "config.pbtxt:2:9: this bracket is never closed: expected '}'");
    assert_eq!(refusal_of("name: \"m\" }"), "config.pbtxt:1:11: '}' closes nothing");
}

#[test]
fn strings_that_do_not_end_and_stray_characters_are_named() {
    assert_eq!(
        refusal_of("name: \"m\nbackend: \"x\""),
        "config.pbtxt:1:7: this string is never closed: expected \" in the same line"
    );
    assert_eq!(refusal_of("name: @"), "config.pbtxt:1:7: expected a key or a value, but found '@'");
    let fault = parse("config.pbtxt", b"name: \"ab\xff\"").unwrap_err();
    assert_eq!(fault.to_string(), "config.pbtxt:1:10: expected UTF-8 text");
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
