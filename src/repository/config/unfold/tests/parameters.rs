use super::*;

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
        let (config, origin) = pbtxt::parse("f", text.as_bytes()).unwrap();
        read(&config, &origin).map(|read| read.is_some()).map_err(|fault| fault.to_string())
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
            "f:6:12: parameters[unfold.0.max_steps]: a chain has no 'max_steps'; did you mean 'steps'?",
        ),
        (("unfold.0.until.y", "5"), "f:7:12: parameters[unfold.0.until.y]: a chain has no 'until'"),
        (("unfold.0.emit.y", "-"), "f:3:12: parameters[unfold.0.cell]: expected unfold.0.emit.<name> too"),
        (("unfold.0.emit.y", " "), "f:4:12: parameters[unfold.0.emit.y]: expected a value, but found nothing"),
        (("unfold.0.steps", ""), "f:7:12: parameters[unfold.0.steps]: expected a value, but found nothing"),
        (("unfold.0.reverse", "no"), "f:7:12: parameters[unfold.0.reverse]: expected true or false, but found 'no'"),
        (
            ("unfold.2.kind", "stage"),
            "f:7:12: parameters[unfold.2.kind]: segments count from 0 without gaps: expected unfold.1.kind too",
        ),
        (
            ("cells.c.batch_sizes", "1,x"),
            "f:2:12: parameters[cells.c.batch_sizes]: expected ascending sizes from 1 to 65536, but found '1,x'",
        ),
        (("cells.d.priority", "1"), "f:3:12: parameters[cells.d.priority]: expected cells.d.program too"),
    ];
    for (change, expected) in cases {
        assert_eq!(of(&[change]), Err(expected.to_owned()), "{change:?}");
    }
}

#[test]
fn keys_are_read_in_one_form_only() {
    for key in
        ["cells.step.program", "cells.a-b_1.batch_sizes", "unfold.0.kind", "unfold.12.emit.y.1", "unfold.3.until.t"]
    {
        assert_eq!(known(key), Ok(()), "{key}");
    }
    for key in
        ["cells", "unfold", "cells.step", "cells..program", "cells.a b.program", "unfold.01.kind", "unfold.x.kind"]
    {
        assert!(known(key).is_err(), "{key}");
    }
    let expected = "expected cells.<cell>.<key> or unfold.<number>.<key>; did you mean";
    assert_eq!(known("cells.step.programm").unwrap_err(), format!("{expected} 'cells.step.program'?"));
    assert_eq!(known("unfold.2.max_step").unwrap_err(), format!("{expected} 'unfold.2.max_steps'?"));
    assert_eq!(known("unfold.1.carry").unwrap_err(), format!("{expected} 'unfold.1.carry.<input>'?"));
    assert!(is_ours("cells") && is_ours("unfold.0") && !is_ours("cellar") && !is_ours("unfolded.0"));
}
