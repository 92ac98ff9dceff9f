//! Memory that reading a configuration allocates: never more than a fixed multiple of its bytes, however hostile the
//! text.

use allocation_counter::measure;
use paternoster_config::{json, pbtxt, yaml};

/// Maximum bytes held at a time for each byte of the text. The tree of a YAML text has a value for each token, which
/// may have only two bytes; its files are the smallest.
const GROWTH: u64 = 256;

/// Maximum bytes held in addition: the schema, tables that grow by doubling, the error's text.
const FIXED_BYTES: u64 = 4 << 20;

/// Maximum bytes allocated in total for each byte of the text, so that copies of copies show as well as what is held.
const COPIES: u64 = 512;

type Reader = fn(&str) -> Result<(), String>;

fn read_pbtxt(text: &str) -> Result<(), String> {
    pbtxt::parse("config.pbtxt", text.as_bytes()).map(drop).map_err(|fault| fault.to_string())
}

fn read_yaml(text: &str) -> Result<(), String> {
    yaml::parse("model.yaml", text.as_bytes()).map(drop).map_err(|fault| fault.to_string())
}

fn read_json(text: &str) -> Result<(), String> {
    json::parse(text).map(drop).map_err(|fault| fault.to_string())
}

/// Reads a text, checks the memory that it took, and returns why it was refused.
fn refusal(read: Reader, text: &str) -> String {
    // Builds the schema, which is kept, so that it is not counted.
    let _ = read("");
    let mut outcome = Ok(());
    let allocated = measure(|| outcome = read(text));
    let bytes = text.len() as u64;
    let start: String = text.chars().take(40).collect();
    assert!(allocated.bytes_max <= FIXED_BYTES + GROWTH * bytes, "{start}… holds {} bytes", allocated.bytes_max);
    assert!(allocated.bytes_total <= FIXED_BYTES + COPIES * bytes, "{start}… takes {} bytes", allocated.bytes_total);
    outcome.expect_err("it is refused")
}

#[test]
fn brackets_within_brackets_are_refused_where_they_go_too_deep() {
    for (read, text, expected) in [
        (read_pbtxt as Reader, "input [ ".repeat(10_000), "config.pbtxt:1:15: expected a value, but found '['"),
        (read_pbtxt, "[".repeat(10_000), "config.pbtxt:1:1: expected a key before '['"),
        (read_pbtxt, "{ ".repeat(10_000), "config.pbtxt:1:1: expected a key before '{'"),
        (read_yaml, "[".repeat(10_000), "model.yaml:1:65: expected at most 64 lists, mappings or brackets"),
        (read_yaml, "{a: ".repeat(10_000), "model.yaml:1:257: expected at most 64 lists, mappings or brackets"),
        (read_yaml, "- ".repeat(10_000), "model.yaml:1:129: expected at most 64 lists, mappings or brackets"),
        (read_yaml, "? ".repeat(10_000), "model.yaml:1:129: expected at most 64 lists, mappings or brackets"),
        (
            read_json,
            format!("{}{}", "[".repeat(10_000), "]".repeat(10_000)),
            "request:1:65: expected at most 64 lists, mappings or brackets",
        ),
        (
            read_json,
            format!("{}1{}", "{\"a\":".repeat(10_000), "}".repeat(10_000)),
            "request:1:321: expected at most 64 lists, mappings or brackets",
        ),
        (read_json, "[".repeat(10_000), "request:1:10000: EOF while parsing a list"),
    ] {
        let refusal = refusal(read, &text);
        assert!(refusal.contains(expected), "{refusal}");
    }
}

#[test]
fn many_small_parts_are_refused_by_their_number() {
    for (read, text) in [
        (read_pbtxt as Reader, "input{}".repeat(100_000)),
        (read_pbtxt, format!("version_policy {{ specific {{ versions: [{}1] }} }}", "1,".repeat(100_000))),
        (read_pbtxt, "max_batch_size:1 ".repeat(50_000)),
        (read_json, format!("{{\"input\":[{}{{}}]}}", "{},".repeat(100_000))),
        (read_json, format!("{{\"instance_group\":[{}{{}}]}}", "{},".repeat(100_000))),
        (read_yaml, format!("version_policy: {{ specific: [{}1] }}", "1,".repeat(60_000))),
        (read_yaml, "- \n".repeat(40_000)),
    ] {
        let refusal = refusal(read, &text);
        assert!(refusal.contains("expected at most 20000 values"), "{refusal}");
    }
}

#[test]
fn a_long_key_is_not_copied_to_every_value_behind_it() {
    let long = "k".repeat(60_000);
    let parts = "value{}".repeat(5_000);
    let pbtxt = format!("parameters {{ key: '{long}' {parts} }}");
    let refused = refusal(read_pbtxt, &pbtxt);
    assert!(refused.contains("expected a key of at most 1024 bytes, but found one of 60000"), "{refused}");
    let yaml = format!("cells: {{ {long}: {{ batch_sizes: [{}1] }} }}", "1,".repeat(5_000));
    let refused = refusal(read_yaml, &yaml);
    assert!(refused.contains("expected a key of at most 1024 bytes, but found one of 60000"), "{refused}");
}

#[test]
fn aliases_multiply_nothing() {
    let mut laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..9 {
        let last = format!("*a{},", level - 1).repeat(9);
        laughs.push_str(&format!("a{level}: &a{level} [{last}]\n"));
    }
    let refused = refusal(read_yaml, &laughs);
    assert!(refused.contains("expected at most 20000 values"), "{refused}");
    let mut chain = "a0: &a0 [x]\n".to_owned();
    for level in 1..9_000 {
        chain.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
    }
    chain.truncate(100_000);
    let refused = refusal(read_yaml, &chain);
    assert!(refused.contains("expected at most 64 lists, mappings or brackets"), "{refused}");
    let nested = format!("{}x{}", "[&a ".repeat(60), "]".repeat(60));
    let refused = refusal(read_yaml, &format!("{nested}\n# {}", "x".repeat(100_000)));
    assert!(refused.contains("expected a mapping"), "{refused}");
    let text = format!("a: &a '{}'\nb: [{}*a]\n", "x".repeat(60_000), "*a, ".repeat(9_000));
    let refused = refusal(read_yaml, &text);
    assert!(refused.contains("expected at most 1048576 bytes of text"), "{refused}");
}
