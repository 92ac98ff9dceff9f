//! Checks the commands in README.md and docs/ against the program.

use std::{fs, path::PathBuf};

use super::*;

/// How pages call the program.
const PROGRAMS: [&str; 3] = ["paternoster ", "target/release/paternoster ", "server/bin/paternoster "];

/// Commands with this character leave out a part that readers fill in.
const ABRIDGED: char = '…';

/// A command on a page.
struct Shown {
    /// The file, and the line on which the command begins.
    place: String,
    text: String,
}

/// Returns README.md and the pages of docs/.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut pages, mut folders) = (vec![root.join("README.md")], vec![root.join("docs")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of docs") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// Returns the commands in the blocks of a page, with their continuation lines.
fn commands(page: &Path) -> Vec<Shown> {
    let text = fs::read_to_string(page).expect("a page");
    let mut lines = text.lines().enumerate();
    let (mut commands, mut fenced) = (Vec::new(), false);
    while let Some((number, line)) = lines.next() {
        let words = line.trim_start();
        if words.starts_with("```") {
            fenced = !fenced;
        }
        let in_block = fenced || line.starts_with("    ");
        if !in_block || !PROGRAMS.iter().any(|program| words.starts_with(program)) {
            continue;
        }
        let mut text = words.to_owned();
        while let Some(begun) = text.strip_suffix('\\') {
            let (_, next) = lines.next().expect("a line behind a backslash");
            text = format!("{begun}{}", next.trim_start());
        }
        commands.push(Shown { place: format!("{}:{}", page.display(), number + 1), text });
    }
    commands
}

/// Splits a command as a shell does, up to a pipe, a redirection or a comment.
fn split(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in command.chars() {
        match (quote, letter) {
            (Some(open), close) if open == close => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words.into_iter().take_while(|word| !matches!(word.as_str(), "|" | ">" | "#" | "&")).collect()
}

#[test]
fn every_command_of_the_pages_is_one_that_the_program_takes() {
    let all: Vec<Shown> = pages().iter().flat_map(|page| commands(page)).collect();
    let whole: Vec<&Shown> = all.iter().filter(|shown| !shown.text.contains(ABRIDGED)).collect();
    assert!(whole.len() > 20, "found {} commands, expected those of the pages", whole.len());
    for Shown { place, text } in whole {
        let words = split(text);
        let parsed = parse(words.iter().map(OsString::from));
        assert!(
            parsed.is_ok(),
            "{place}: '{text}' is refused: {}",
            parsed.err().map(|error| error.to_string()).unwrap_or_default()
        );
    }
}

#[test]
fn commands_are_split_as_a_shell_splits_them() {
    let split = |command| split(command).join("/");
    assert_eq!(split("a --b 'c d' e=\"f g\"h > file"), "a/--b/c d/e=f gh");
    assert_eq!(split("a '' b # c"), "a//b");
}
