use super::*;
use crate::{
    ConfigErrorKind::{Unknown, Value},
    pbtxt,
    tests::refusals::{Refusals, part},
};

fn from_text(text: &str, parameters: &[(&str, &str)]) -> Result<StageRequest, ConfigError> {
    let parameters: String = parameters
        .iter()
        .map(|(key, value)| format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n"))
        .collect();
    let read = pbtxt::parse("config.pbtxt", format!("{text}\n{parameters}").as_bytes());
    read.and_then(|(config, origin)| super::read(&config, &origin))
}

const DECOUPLED: &str = "max_batch_size: 8 model_transaction_policy { decoupled: true }";
const BATCHED: &str = "max_batch_size: 8 output { name: \"logits\" } output { name: \"score\" }";

fn of(parameters: &[(&str, &str)]) -> Result<StageRequest, ConfigError> {
    from_text(BATCHED, parameters)
}

#[test]
fn stages_are_a_number_or_tensors() {
    let whole = StageRequest::default();
    for given in [&[][..], &[("stages", "auto")], &[("stages", " 1 ")]] {
        assert_eq!(of(given), Ok(whole.clone()), "{given:?}");
    }
    assert_eq!(whole.count(), 1);
    let four = of(&[("stages", "4")]).unwrap();
    assert_eq!((&four.cuts, four.count()), (&StageCuts::Parts(4), 4));
    let named = of(&[("paternoster", "stages: ['a,b c', '123']")]).unwrap();
    assert_eq!((&named.cuts, named.count()), (&StageCuts::At(vec!["a,b c".to_owned(), "123".to_owned()]), 3));
}

#[test]
fn a_model_that_cannot_be_cut_may_leave_it_to_the_server() {
    assert!(from_text(DECOUPLED, &[("stages", "auto")]).is_ok(), "not cut");
}

/// Stages that are cut at this number of tensors.
fn at_tensors(count: usize) -> Result<StageRequest, ConfigError> {
    let tensors: Vec<String> = (0..count).map(|number| format!("t{number}")).collect();
    of(&[("paternoster", &format!("stages: [{}]", tensors.join(", ")))])
}

#[test]
fn there_may_be_256_stages() {
    assert!(at_tensors(255).is_ok_and(|request| request.count() == 256));
}

/// Four stages and exits.
fn exits(exits: &str) -> Result<StageRequest, ConfigError> {
    of(&[("stages", "4"), ("paternoster", &format!("exits: [{exits}]"))])
}

/// An exit from stage 1, with this behind its other keys.
fn exit(more: &str) -> Result<StageRequest, ConfigError> {
    exits(&format!("{{ stage: 1, value: confidence, at_least: 0.9{more} }}"))
}

#[test]
fn an_exit_ends_rows_or_skips_stages() {
    let to = |more: &str| exit(more).unwrap().exits.remove(0).to;
    assert_eq!(to(""), ExitRequestTo::Done(BTreeMap::new()), "earlier stages have given all outputs");
    let outputs = BTreeMap::from([("logits".to_owned(), "exit1_logits".to_owned())]);
    assert_eq!(to(", outputs: { logits: exit1_logits }"), ExitRequestTo::Done(outputs));
    assert_eq!(to(", skip_to: 3"), ExitRequestTo::Stage(3));
    let exits = exits("{ stage: 1, value: u, at_least: 0 }, { stage: 2, value: v, at_least: -1e3 }").unwrap().exits;
    let second =
        ExitRequest { stage: 2, value: "v".to_owned(), at_least: -1000.0, to: ExitRequestTo::Done(BTreeMap::new()) };
    assert_eq!((exits.len(), &exits[1]), (2, &second));
}

pub(crate) fn refusals(all: &mut Refusals) {
    part(all, "stages: models that cannot be cut in two", |text| from_text(text, &[("stages", "2")])).refuses(&[
        (Value, "2:12 parameters[stages]", "max_batch_size: 0"),
        (Value, "2:12 parameters[stages]", "max_batch_size: 8 backend: \"repeat\""),
        (Value, "2:12 parameters[stages]", DECOUPLED),
    ]);
    part(all, "stages: numbers", |count| of(&[("stages", count)])).refuses(&[
        (Value, "2:12 parameters[stages]", "0"),
        (Value, "2:12 parameters[stages]", "257"),
        (Value, "2:12 parameters[stages]", "-1"),
        (Value, "2:12 parameters[stages]", "four"),
        (Value, "2:12 parameters[stages]", ""),
    ]);
    part(all, "stages: tensors and exits of a model that is not cut", |text| of(&[("paternoster", text)])).refuses(&[
        (Value, "2:12 parameters[paternoster]:1:13: stages[1]", "stages: [a, a]"),
        (Value, "2:12 parameters[paternoster]:1:10: stages[0]", "stages: ['']"),
        (Value, "2:12 parameters[paternoster]:1:31: exits[0].at_least", "exits: [{ stage: 1, value: v, at_least: 1 }]"),
    ]);
    all.add(Value, "2:12 parameters[paternoster]:1:1430: stages[255]", "256 tensors", at_tensors(256));
    part(all, "stages: exits of a model of four", exits).refuses(&[
        (Value, "3:12 parameters[paternoster]:1:11: exits[0].stage", "{ stage: 3, value: v, at_least: 0.9 }"),
        (Value, "3:12 parameters[paternoster]:1:11: exits[0].stage", "{ stage: one, value: v, at_least: 0.9 }"),
        (
            Value,
            "3:12 parameters[paternoster]:1:46: exits[0].skip_to",
            "{ stage: 1, value: v, at_least: 0.9, skip_to: 1 }",
        ),
        (
            Value,
            "3:12 parameters[paternoster]:1:46: exits[0].skip_to",
            "{ stage: 1, value: v, at_least: 0.9, skip_to: 2 }",
        ),
        (
            Value,
            "3:12 parameters[paternoster]:1:46: exits[0].skip_to",
            "{ stage: 1, value: v, at_least: 0.9, skip_to: 4 }",
        ),
        (
            Value,
            "3:12 parameters[paternoster]:1:46: exits[0].skip_to",
            "{ stage: 2, value: v, at_least: 0.9, skip_to: 3 }",
        ),
        (
            Value,
            "3:12 parameters[paternoster]:1:46: exits[0].skip_to",
            "{ stage: 1, value: v, at_least: 0.9, skip_to: 3, outputs: { logits: t } }",
        ),
        (
            Value,
            "3:12 parameters[paternoster]:1:57: exits[0].outputs.logitz",
            "{ stage: 1, value: v, at_least: 0.9, outputs: { logitz: t } }",
        ),
        (Value, "3:12 parameters[paternoster]:1:31: exits[0].at_least", "{ stage: 1, value: v, at_least: .nan }"),
        (Value, "3:12 parameters[paternoster]:1:31: exits[0].at_least", "{ stage: 1, value: v, at_least: 1e39 }"),
        (Value, "3:12 parameters[paternoster]:1:9: exits[0]", "{ stage: 1, at_least: 0.9 }"),
        (
            Unknown,
            "3:12 parameters[paternoster]:1:46: exits[0].values",
            "{ stage: 1, value: v, at_least: 0.9, values: v }",
        ),
    ]);
}
