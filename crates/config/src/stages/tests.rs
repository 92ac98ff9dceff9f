use super::*;
use crate::pbtxt;

fn from_text(text: &str, parameters: &[(&str, &str)]) -> Result<StageRequest, ConfigError> {
    let parameters: String = parameters
        .iter()
        .map(|(key, value)| format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n"))
        .collect();
    let read = pbtxt::parse("config.pbtxt", format!("{text}\n{parameters}").as_bytes());
    read.and_then(|(config, origin)| super::read(&config, &origin))
}

const BATCHED: &str = "max_batch_size: 8 output { name: \"logits\" } output { name: \"score\" }";

fn of(parameters: &[(&str, &str)]) -> Result<StageRequest, ConfigError> {
    from_text(BATCHED, parameters)
}

fn refusal(parameters: &[(&str, &str)]) -> String {
    of(parameters).expect_err("it should be refused").to_string()
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
fn a_model_that_cannot_be_cut_says_why() {
    let refused = |text: &str| from_text(text, &[("stages", "2")]).expect_err("it should be refused").to_string();
    assert_eq!(
        refused("max_batch_size: 0"),
        "config.pbtxt:2:12: parameters[stages]: stages hand on rows of a batch: expected a max_batch_size of at least \
         1, but it is 0"
    );
    assert!(refused("max_batch_size: 8 backend: \"repeat\"").ends_with("'repeat' has no graph to cut: remove this"));
    let decoupled = "max_batch_size: 8 model_transaction_policy { decoupled: true }";
    assert!(refused(decoupled).ends_with("but the model is decoupled: remove one of the two"));
    assert!(from_text(decoupled, &[("stages", "auto")]).is_ok(), "not cut");
}

#[test]
fn impossible_cuts_are_refused() {
    for count in ["0", "257", "-1", "four", ""] {
        let expected = "expected auto, a number of stages from 1 to 256 or a list of tensors to cut at, but found";
        let expected = format!("{expected} '{count}'");
        assert!(refusal(&[("stages", count)]).ends_with(&expected), "{count}");
    }
    let at = |tensors: &[String]| of(&[("paternoster", &format!("stages: [{}]", tensors.join(", ")))]);
    let refused = |tensors: &[&str]| {
        at(&tensors.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap_err().to_string()
    };
    assert!(refused(&["a", "a"]).ends_with(":1:13: stages[1]: the tensor 'a' is given twice"));
    assert!(refused(&["''"]).ends_with("expected the name of a tensor"));
    let many: Vec<String> = (0..256).map(|number| format!("t{number}")).collect();
    assert!(at(&many[..255]).is_ok_and(|request| request.count() == 256));
    assert!(at(&many).unwrap_err().to_string().ends_with("stages[255]: expected at most 256 stages"));
}

/// Four stages and exits.
fn exits(exits: &str) -> Result<StageRequest, ConfigError> {
    of(&[("stages", "4"), ("paternoster", &format!("exits: [{exits}]"))])
}

/// An exit, with one of its keys replaced, added, or (by an empty value) taken away.
fn exit(changed: &[(&str, &str)]) -> Result<StageRequest, ConfigError> {
    let mut given = BTreeMap::from([("stage", "1"), ("value", "confidence"), ("at_least", "0.9")]);
    given.extend(changed.iter().copied());
    let keys = given.iter().filter(|(_, value)| !value.is_empty()).map(|(key, value)| format!("{key}: {value}"));
    exits(&format!("{{ {} }}", keys.collect::<Vec<_>>().join(", ")))
}

#[test]
fn an_exit_ends_rows_or_skips_stages() {
    let to = |changed: &[(&str, &str)]| exit(changed).unwrap().exits.remove(0).to;
    assert_eq!(to(&[]), ExitRequestTo::Done(BTreeMap::new()), "earlier stages have given all outputs");
    let outputs = BTreeMap::from([("logits".to_owned(), "exit1_logits".to_owned())]);
    assert_eq!(to(&[("outputs", "{ logits: exit1_logits }")]), ExitRequestTo::Done(outputs));
    assert_eq!(to(&[("skip_to", "3")]), ExitRequestTo::Stage(3));
    let exits = exits("{ stage: 1, value: u, at_least: 0 }, { stage: 2, value: v, at_least: -1e3 }").unwrap().exits;
    let second =
        ExitRequest { stage: 2, value: "v".to_owned(), at_least: -1000.0, to: ExitRequestTo::Done(BTreeMap::new()) };
    assert_eq!((exits.len(), &exits[1]), (2, &second));
}

#[test]
fn exits_that_lead_nowhere_are_refused_with_what_would_work() {
    let uncut = of(&[("paternoster", "exits: [{ stage: 1, value: v, at_least: 1 }]")]).unwrap_err().to_string();
    assert_eq!(
        uncut,
        "config.pbtxt:2:12: parameters[paternoster]:1:31: exits[0].at_least: an exit leaves the order of stages, but \
         the model is not cut: give 'stages' as a number above 1 or as tensors to cut at"
    );
    let cases: [(&[(&str, &str)], &str); 12] = [
        (&[("stage", "3")], "exits[0].stage: expected a stage from 0 to 2, before the last, but found 3"),
        (&[("stage", "one")], "exits[0].stage: expected a whole number from 0 to 255, but found 'one'"),
        (&[("skip_to", "1")], "exits[0].skip_to: expected a stage from 3 to 3, but found 1"),
        (&[("skip_to", "2")], "exits[0].skip_to: expected a stage from 3 to 3, but found 2"),
        (&[("skip_to", "4")], "exits[0].skip_to: expected a stage from 3 to 3, but found 4"),
        (
            &[("skip_to", "3"), ("stage", "2")],
            "exits[0].skip_to: nothing can be skipped behind stage 2: the next one, 3, is the last",
        ),
        (
            &[("skip_to", "3"), ("outputs", "{ logits: t }")],
            "exits[0].skip_to: rows that leave are either done, with outputs, or skip stages: expected one of the two",
        ),
        (
            &[("outputs", "{ logitz: t }")],
            "exits[0].outputs.logitz: the model has no output 'logitz'; did you mean 'logits'?",
        ),
        (&[("at_least", ".nan")], "exits[0].at_least: expected a number, but found NaN"),
        (&[("at_least", "1e39")], "exits[0].at_least: expected a number of 32 bits, but found 1e39"),
        (&[("value", "")], "exits[0]: expected the key 'value'"),
        (&[("values", "v")], "exits[0].values: unknown key 'values'; did you mean 'value'?"),
    ];
    for (changed, expected) in cases {
        let refused = exit(changed).expect_err("it should be refused").to_string();
        assert!(refused.starts_with("config.pbtxt:3:12: parameters[paternoster]:1:"), "{refused}");
        assert!(refused.ends_with(&format!(": {expected}")), "{refused}, not {expected}");
    }
}
