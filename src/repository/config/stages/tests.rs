use super::*;
use crate::repository::config::pbtxt;

fn from_text(text: &str, parameters: &[(&str, &str)]) -> Result<StageRequest, String> {
    let parameters: String = parameters
        .iter()
        .map(|(key, value)| format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n"))
        .collect();
    let read = pbtxt::parse("config.pbtxt", format!("{text}\n{parameters}").as_bytes());
    read.and_then(|(config, origin)| super::read(&config, &origin)).map_err(|fault| fault.to_string())
}

const BATCHED: &str = "max_batch_size: 8 output { name: \"logits\" } output { name: \"score\" }";

fn of(parameters: &[(&str, &str)]) -> Result<StageRequest, String> {
    from_text(BATCHED, parameters)
}

fn refusal(parameters: &[(&str, &str)]) -> String {
    of(parameters).expect_err("it should be refused")
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
    let named = of(&[("stages.1", "123"), ("stages.0", "a,b c")]).unwrap();
    assert_eq!((&named.cuts, named.count()), (&StageCuts::At(vec!["a,b c".to_owned(), "123".to_owned()]), 3));
}

#[test]
fn a_model_that_cannot_be_cut_says_why() {
    let refused = |text: &str| from_text(text, &[("stages", "2")]).expect_err("it should be refused");
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
    assert!(refusal(&[("stages", "2"), ("stages.0", "t")]).ends_with("(stages.0 …), but found both"));
    assert_eq!(
        refusal(&[("stages.0", "a"), ("stages.2", "b")]),
        "config.pbtxt:3:12: parameters[stages.2]: cuts count from 0 without gaps: expected stages.1 too"
    );
    assert!(refusal(&[("stages.0", "a"), ("stages.1", "a")]).ends_with("the tensor 'a' is given twice"));
    assert!(refusal(&[("stages.0", "")]).ends_with("expected the name of a tensor"));
    let names: Vec<String> = (0..256).map(|number| format!("stages.{number}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), name.as_str())).collect();
    assert!(of(&many[..255]).is_ok_and(|request| request.count() == 256));
    assert!(refusal(&many).ends_with("parameters[stages.255]: expected at most 256 stages"));
}

/// Four stages and one exit, with one of its keys replaced, added, or (by an empty value) taken away.
fn exit(changed: &[(&str, &str)]) -> Result<StageRequest, String> {
    let mut given = BTreeMap::from([
        ("stages", "4"),
        ("exits.0.stage", "1"),
        ("exits.0.value", "confidence"),
        ("exits.0.at_least", "0.9"),
    ]);
    given.extend(changed.iter().copied());
    let parameters: Vec<(&str, &str)> = given.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    of(&parameters)
}

#[test]
fn an_exit_ends_rows_or_skips_stages() {
    let to = |changed: &[(&str, &str)]| exit(changed).unwrap().exits.remove(0).to;
    assert_eq!(to(&[]), ExitRequestTo::Done(BTreeMap::new()), "earlier stages have given all outputs");
    let outputs = BTreeMap::from([("logits".to_owned(), "exit1_logits".to_owned())]);
    assert_eq!(to(&[("exits.0.outputs.logits", "exit1_logits")]), ExitRequestTo::Done(outputs));
    assert_eq!(to(&[("exits.0.skip_to", "3")]), ExitRequestTo::Stage(3));
    let more = [("exits.1.stage", "2"), ("exits.1.value", "v"), ("exits.1.at_least", "-1e3")];
    let exits = exit(&more).unwrap().exits;
    let second =
        ExitRequest { stage: 2, value: "v".to_owned(), at_least: -1000.0, to: ExitRequestTo::Done(BTreeMap::new()) };
    assert_eq!((exits.len(), &exits[1]), (2, &second));
}

#[test]
fn exits_that_lead_nowhere_are_refused_with_what_would_work() {
    let cases: [(&[(&str, &str)], &str); 14] = [
        (
            &[("stages", "")],
            "exits.0.at_least]: an exit leaves the order of stages, but the model is not cut: give \
                             'stages' as a number above 1 or as tensors to cut at",
        ),
        (&[("exits.0.stage", "3")], "exits.0.stage]: expected a stage from 0 to 2, before the last, but found 3"),
        (&[("exits.0.stage", "one")], "exits.0.stage]: expected a whole number from 0 to 255, but found 'one'"),
        (&[("exits.0.skip_to", "1")], "exits.0.skip_to]: expected a stage from 3 to 3, but found 1"),
        (&[("exits.0.skip_to", "2")], "exits.0.skip_to]: expected a stage from 3 to 3, but found 2"),
        (&[("exits.0.skip_to", "4")], "exits.0.skip_to]: expected a stage from 3 to 3, but found 4"),
        (
            &[("exits.0.skip_to", "3"), ("exits.0.stage", "2")],
            "exits.0.skip_to]: nothing can be skipped behind stage 2: the next one, 3, is the last",
        ),
        (
            &[("exits.0.skip_to", "3"), ("exits.0.outputs.logits", "t")],
            "exits.0.skip_to]: rows that leave are either done, with outputs, or skip stages: expected one of the two",
        ),
        (
            &[("exits.0.outputs.logitz", "t")],
            "exits.0.outputs.logitz]: the model has no output 'logitz'; did you mean \
                                              'logits'?",
        ),
        (&[("exits.0.at_least", "NaN")], "exits.0.at_least]: expected a number, but found 'NaN'"),
        (&[("exits.0.at_least", "1e999")], "exits.0.at_least]: expected a number, but found '1e999'"),
        (&[("exits.0.value", "")], "exits.0.at_least]: expected exits.0.value too"),
        (&[("exits.0.stage", "")], "exits.0.at_least]: expected exits.0.stage too"),
        (&[("exits.2.stage", "0")], "exits.2.stage]: exits count from 0 without gaps: expected exits.1 too"),
    ];
    for (changed, expected) in cases {
        let refused = exit(changed).expect_err("it should be refused");
        let (_, found) = refused.split_once("parameters[").expect("it names the key");
        assert_eq!(found, expected);
    }
}

#[test]
fn keys_are_read_in_one_form_only() {
    let refusal = |key: &str| {
        let refused = of(&[("stages", "4"), (key, "1")]).expect_err("there is no such key");
        refused.split_once("]: ").map(|(_, message)| message.to_owned()).expect("it names the key")
    };
    assert_eq!(refusal("stagess"), "unknown key 'stagess'; did you mean 'stages'?");
    assert_eq!(refusal("exits.first.stage"), "expected a number from 0 behind 'exits.', but found 'first'");
    for number in ["00", "+0", "70000", ""] {
        let expected = format!("expected a number from 0 behind 'exits.', but found '{number}'");
        assert_eq!(refusal(&format!("exits.{number}.stage")), expected);
    }
    assert_eq!(refusal("exits.0.values"), "unknown key 'values'; did you mean 'value'?");
    assert!(refusal("exits.0.outputs").starts_with("expected a mapping of keys to values, but found '1'"));
    assert!(refusal("exits").starts_with("expected"));
}
