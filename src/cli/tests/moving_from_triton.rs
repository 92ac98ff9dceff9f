//! The tables of flags in docs/moving-from-triton.md, compared with the program.

use super::*;

const PAGE: &str = include_str!("../../../docs/moving-from-triton.md");

/// Returns the rows of the table below a heading: the flag with its values, and the remark.
fn table(heading: &str) -> Vec<(&'static str, &'static str)> {
    let (_, below) = PAGE.split_once(heading).expect("the page has the heading");
    let rows = below.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let rows = rows.filter_map(|row| row.strip_prefix("| `")?.strip_suffix('|')?.split_once("` |"));
    rows.map(|(flag, remark)| (flag, remark.trim())).collect()
}

/// Returns the name of the first flag in a text.
fn name(words: &str) -> &str {
    words.trim_start_matches('-').split(['=', ' ']).next().expect("there is a first word")
}

#[test]
fn flags_that_act_are_taken_with_the_value_shown_and_without_a_warning() {
    let acting = table("### Those that act");
    for (words, _) in &acting {
        // Without the limiter, its resources do nothing.
        let args = serve(&["--rate-limit=execution_count"].into_iter().chain(words.split(' ')).collect::<Vec<_>>());
        assert!(args.ignored.is_empty(), "{words} is named in a warning");
        assert_eq!(args.idle_settings(), [], "{words} does nothing");
    }
    let names: Vec<&str> = acting.iter().map(|(words, _)| name(words)).collect();
    let does_nothing = |flag: &&str| IGNORED.iter().any(|ignored| ignored.name == *flag);
    let expected: Vec<&str> = OF_TRITONSERVER.iter().copied().filter(|flag| !does_nothing(flag)).collect();
    assert_eq!(names, expected, "the table has every flag of Triton that acts, in order");
}

#[test]
fn flags_that_do_nothing_are_listed_with_the_reason_of_the_warning() {
    let idle = table("### Those that do nothing");
    let expected: Vec<(String, &str)> = IGNORED.iter().map(|flag| (format!("--{}", flag.name), flag.why)).collect();
    let listed: Vec<(String, &str)> = idle.into_iter().map(|(flag, why)| (flag.to_owned(), why)).collect();
    assert_eq!(listed, expected);
}
