//! What loads refuse, of what kind, and the texts that say so: a table in `snapshots`, by the parts that the tests of
//! each module give it.

use std::fmt::{Display, Write as _};

use super::{
    fake::{Directory, explicit, start},
    preparing, rollout,
};
use crate::{
    ControlError, LoadError, LoadErrorKind, Overrides, StartError, cells, overrides, staging,
    stores::{self, StoreFault},
    warmup,
};

/// A given text longer than this is shown by its length.
const LONGEST_SHOWN: usize = 600;

/// The table, and what is refused in another way than it should be.
#[derive(Default)]
pub(crate) struct Refusals {
    table: String,
    wrong: Vec<String>,
}

/// An error that may have a kind.
pub(crate) trait Refusal: Display {
    fn kind(&self) -> Option<LoadErrorKind> {
        None
    }
}

impl Refusal for LoadError {
    fn kind(&self) -> Option<LoadErrorKind> {
        Some(LoadError::kind(self))
    }
}

impl Refusal for ControlError {
    fn kind(&self) -> Option<LoadErrorKind> {
        match self {
            Self::LoadFailed { kind, .. } => Some(*kind),
            _ => None,
        }
    }
}

impl Refusal for StartError {}

impl Refusal for StoreFault {}

impl Refusals {
    /// Begins a part of the table.
    pub(crate) fn title(&mut self, title: &str) {
        writeln!(self.table, "# {title}\n").expect("memory takes it");
    }

    /// Adds what is refused, by its text or in words.
    pub(crate) fn add<T>(&mut self, kind: Option<LoadErrorKind>, given: &str, found: Result<T, impl Refusal>) {
        let Err(refusal) = found else { return self.wrong.push(format!("accepted: {given}")) };
        self.show(kind, given, (refusal.kind(), &refusal.to_string()));
    }

    fn show(&mut self, kind: Option<LoadErrorKind>, given: &str, (found, text): (Option<LoadErrorKind>, &str)) {
        if found != kind {
            self.wrong.push(format!("{found:?}, expected {kind:?}: {given}"));
        }
        let given = if given.trim().is_empty() { "(nothing)" } else { given.trim_end() };
        for line in given.lines() {
            writeln!(self.table, "{}", format!("> {line}").trim_end()).expect("memory takes it");
        }
        writeln!(self.table, "{text}\n").expect("memory takes it");
    }

    /// Adds the load of a model of these files. Sound programs are not shown.
    pub(super) async fn load(&mut self, kind: LoadErrorKind, files: &[(&str, &str)]) {
        let directory = Directory::new();
        let mut given = String::new();
        for (path, text) in files {
            directory.write(&format!("m/{path}"), text);
            match *text {
                "good" => {}
                "" => writeln!(given, "{path}").expect("memory takes it"),
                text if text.len() > LONGEST_SHOWN => {
                    writeln!(given, "{path}: {} bytes", text.len()).expect("memory takes it");
                }
                text => writeln!(given, "{path}:\n  {}", text.replace('\n', "\n  ")).expect("memory takes it"),
            }
        }
        let (repository, _) = start(&directory, explicit()).await;
        let refusal = repository.load("m", Overrides::default()).await.expect_err(&given);
        let text = refusal.to_string().replace(&directory.path().display().to_string(), "/models");
        self.show(Some(kind), &given, (refusal.kind(), &text));
    }
}

#[tokio::test]
async fn each_refusal_has_its_kind_and_its_text() {
    let mut all = Refusals::default();
    preparing::refusals(&mut all).await;
    rollout::refusals(&mut all).await;
    staging::tests::refusals(&mut all);
    cells::tests::refusals(&mut all);
    warmup::tests::refusals(&mut all);
    overrides::tests::refusals(&mut all);
    stores::tests::refusals(&mut all);
    assert!(all.wrong.is_empty(), "{}", all.wrong.join("\n"));
    insta::assert_snapshot!("texts", all.table);
}
