//! What is refused, of what kind and where, and the texts that say so: a table in `snapshots`, by the parts that the
//! tests of each module give it.

use std::fmt::{Display, Write as _};

use crate::{
    ConfigError, ConfigErrorKind, Position, SettingError, check, complete, json, latencies, lengths, model, parameters,
    pbtxt, placement, policies, rate_limiter, sequences, stages, unfold, yaml,
};

/// What is refused: the kind of its fault, its line, column and key, and the text.
pub(crate) type Case<'a> = (ConfigErrorKind, &'a str, &'a str);

/// The table, and what is refused in another way than it should be.
#[derive(Default)]
pub(crate) struct Refusals {
    table: String,
    wrong: Vec<String>,
}

/// An error with a kind and a place.
pub(crate) trait Refusal: Display {
    fn kind(&self) -> ConfigErrorKind;

    /// Returns the line and column, if known, and the key, if any.
    fn place(&self) -> String;
}

impl Refusal for ConfigError {
    fn kind(&self) -> ConfigErrorKind {
        self.kind
    }

    fn place(&self) -> String {
        let place = self.position.map(|Position { line, column }| format!("{line}:{column} ")).unwrap_or_default();
        format!("{place}{}", self.key).trim_end().to_owned()
    }
}

impl Refusal for SettingError {
    fn kind(&self) -> ConfigErrorKind {
        self.kind
    }

    fn place(&self) -> String {
        self.key.clone()
    }
}

impl Refusals {
    /// Begins a part of the table.
    pub(crate) fn title(&mut self, title: &str) {
        writeln!(self.table, "# {title}\n").expect("memory takes it");
    }

    /// Adds what is refused, by its text or in words.
    pub(crate) fn add<T>(&mut self, kind: ConfigErrorKind, place: &str, given: &str, read: Result<T, impl Refusal>) {
        let Err(refusal) = read else { return self.wrong.push(format!("accepted: {given}")) };
        let found = (refusal.kind(), refusal.place());
        if (found.0, found.1.as_str()) != (kind, place) {
            self.wrong.push(format!("{:?} at '{}', expected {kind:?} at '{place}': {given}", found.0, found.1));
        }
        let given = if given.trim().is_empty() { "(nothing)" } else { given.trim_end() };
        for line in given.lines() {
            writeln!(self.table, "{}", format!("> {line}").trim_end()).expect("memory takes it");
        }
        writeln!(self.table, "{refusal}\n").expect("memory takes it");
    }
}

/// A part of the table, whose texts are read by a function.
pub(crate) struct Part<'a, R> {
    all: &'a mut Refusals,
    read: R,
}

/// Begins a part of the table.
pub(crate) fn part<'a, T, E, R>(all: &'a mut Refusals, title: &str, read: R) -> Part<'a, R>
where
    R: Fn(&str) -> Result<T, E>,
{
    all.title(title);
    Part { all, read }
}

impl<R> Part<'_, R> {
    /// Adds texts that are refused.
    pub(crate) fn refuses<T, E: Refusal>(self, cases: &[Case<'_>])
    where
        R: Fn(&str) -> Result<T, E>,
    {
        cases.iter().for_each(|&(kind, place, given)| self.all.add(kind, place, given, (self.read)(given)));
    }
}

#[test]
fn each_refusal_has_its_kind_its_place_and_its_text() {
    let mut all = Refusals::default();
    let modules = [
        yaml::tests::refusals,
        pbtxt::tests::refusals,
        json::tests::refusals,
        parameters::tests::refusals,
        model::tests::refusals,
        policies::tests::refusals,
        stages::tests::refusals,
        latencies::tests::refusals,
        lengths::tests::refusals,
        placement::tests::refusals,
        rate_limiter::tests::refusals,
        unfold::tests::refusals,
        sequences::tests::refusals,
        complete::tests::refusals,
        check::tests::refusals,
    ];
    modules.iter().for_each(|refusals| refusals(&mut all));
    assert!(all.wrong.is_empty(), "{}", all.wrong.join("\n"));
    insta::assert_snapshot!("texts", all.table);
}
