use super::*;
use crate::repository::config::parameters;

#[test]
fn parameters_alone_are_refused_as_exactly() {
    let of = |parameters: &[(&str, &str)]| {
        let sound = [
            ("cells.c.program", "c.onnx"),
            ("unfold.0.kind", "chain"),
            ("unfold.0.cell", "c"),
            ("unfold.0.over.x", "tokens"),
            ("unfold.0.emit.y", "last(h)"),
        ];
        let mut all = BTreeMap::from(sound);
        all.extend(parameters.iter().copied());
        // What is taken away.
        all.retain(|_, value| *value != "-");
        let all = all
            .iter()
            .map(|(key, value)| format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}\n"));
        let text = format!("input {{ name: 'tokens' }} output {{ name: 'y' }}\n{}", all.collect::<String>());
        let unfold = pbtxt::parse("f", text.as_bytes()).and_then(|(config, origin)| read(&config, &origin));
        unfold.map(|read| read.is_some()).map_err(|fault| fault.to_string())
    };
    assert_eq!(of(&[]), Ok(true));
    let cases = [
        (("cells.c.program", ""), "f:2:12: parameters[cells.c.program]: expected a value, but found nothing"),
        (("unfold.0.kind", "-"), "f:3:12: parameters[unfold.0.cell]: expected unfold.0.kind too"),
        (
            ("unfold.0.kind", "chian"),
            "f:5:12: parameters[unfold.0.kind]: expected stage, chain, decode or tree, but found 'chian'; did you mean \
             'chain'?",
        ),
        (
            ("unfold.0.max_steps", "5"),
            "f:6:12: parameters[unfold.0.max_steps]: unknown key 'max_steps'; did you mean 'steps'?",
        ),
        (("unfold.0.until.y", "5"), "f:7:12: parameters[unfold.0.until.y]: unknown key 'until'"),
        (("unfold.0.emit.y", "-"), "f:4:12: parameters[unfold.0.kind]: expected unfold.0.emit too"),
        (("unfold.0.emit.y", " "), "f:4:12: parameters[unfold.0.emit.y]: expected a value, but found nothing"),
        (
            ("unfold.0.steps", ""),
            "f:7:12: parameters[unfold.0.steps]: expected a number of steps, or an expression such as \"len(tokens) \
             + 1\", but found ''",
        ),
        (("unfold.0.reverse", "no"), "f:7:12: parameters[unfold.0.reverse]: expected true or false, but found 'no'"),
        (
            ("unfold.2.kind", "stage"),
            "f:7:12: parameters[unfold.2.kind]: segments count from 0 without gaps: expected unfold.1.kind too",
        ),
        (
            ("cells.c.batch_sizes", "1,x"),
            "f:2:12: parameters[cells.c.batch_sizes]: expected numbers with commas between them, but found '1,x'",
        ),
        (("cells.d.priority", "1"), "f:3:12: parameters[cells.d.priority]: expected cells.d.program too"),
    ];
    for (change, expected) in cases {
        assert_eq!(of(&[change]), Err(expected.to_owned()), "{change:?}");
    }
}

#[test]
fn keys_are_read_in_one_form_only() {
    let refusal = |key: &str| {
        let text = format!(
            "parameters {{ key: 'unfold.0.kind' value {{ string_value: 'stage' }} }}
             parameters {{ key: '{key}' value {{ string_value: '1' }} }}"
        );
        pbtxt::parse("f", text.as_bytes()).expect_err("there is no such key").message
    };
    assert_eq!(refusal("cells.step.programm"), "unknown key 'programm'; did you mean 'program'?");
    assert_eq!(refusal("unfold.0.emits.y"), "unknown key 'emits'; did you mean 'emit'?");
    assert!(refusal("cells.a b.program").starts_with("expected a name of letters, digits, '_' and '-'"));
    for key in ["cells", "unfold", "cells.step", "unfold.0.keep"] {
        assert!(refusal(key).starts_with("expected"), "{key}");
    }
    for number in ["01", "x"] {
        let expected = format!("expected a number from 0 behind 'unfold.', but found '{number}'");
        assert_eq!(refusal(&format!("unfold.{number}.kind")), expected);
    }
    let ours = parameters::is_ours;
    assert!(ours("cells") && ours("unfold.0") && !ours("cellar") && !ours("unfolded.0"));
}
