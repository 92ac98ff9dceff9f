use super::*;

/// The refusal of a text with one part of it replaced.
fn refusal(text: &str, from: &str, to: &str) -> String {
    from_yaml(&changed(text, from, to)).expect_err("it should be refused").to_string()
}

#[test]
fn segments_that_lack_a_key_or_have_one_too_many_are_refused_with_their_place() {
    let cases = [
        (
            "- chain:",
            "- chains:",
            "f:7:3: unfold[0]: expected stage, chain, decode or tree, but found 'chains'; did you mean 'chain'?",
        ),
        ("- chain:", "- stage: encode\n  chain:", "f:7:3: unfold[0]: expected one of stage, chain, decode or tree"),
        ("    cell: encode\n", "", "f:7:3: unfold[0].chain: expected the key 'cell'"),
        ("    emit: { tokens: all(next) }\n", "", "f:16:3: unfold[1].decode: expected the key 'emit'"),
        (
            "    max_steps: \"2 * len(encoder.all) + 50\"\n",
            "",
            "f:16:3: unfold[1].decode: expected the key 'max_steps'",
        ),
        ("    reverse: true", "    until: { h: 1 }", "f:14:5: unfold[0].chain.until: unknown key 'until'"),
        ("grow: { past: key }", "grow: {}", "f:26:5: unfold[1].decode.grow: expected at least one entry"),
        (
            "    as: word\n",
            "",
            "f:10:5: unfold[0].chain.over: expected 'as', the cell's input, beside it, or a mapping from inputs to \
             tensors",
        ),
        (
            "over: source",
            "over: { word: source }",
            "f:11:5: unfold[0].chain.as: the mapping 'over' names the cell's inputs: remove this",
        ),
        ("    over: source\n", "", "f:10:5: unfold[0].chain.as: expected 'over', which names the tensor, beside it"),
        ("feed: { token: next }", "feed: {}", "f:18:5: unfold[1].decode.feed: expected at least one entry"),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refusal(TRANSLATE, from, to), expected, "{to}");
    }
}

/// Checks the refusals of a part of a text in place of another.
fn refuses(cases: &[(&str, &str, &str)]) {
    for (from, to, expected) in cases {
        assert_eq!(refusal(TRANSLATE, from, to), *expected, "{to}");
    }
}

#[test]
fn values_of_a_wrong_kind_are_refused_with_what_is_expected() {
    refuses(&[
        ("reverse: true", "reverse: 1", "f:14:5: unfold[0].chain.reverse: expected true or false, but found 1"),
        (
            "start: { h: -0.5 }",
            "start: { h: [1] }",
            "f:13:14: unfold[0].chain.start.h: expected a number, or the name of a tensor, but found a list",
        ),
        (
            "    until: { next: 2 }\n",
            "    expected_steps: 30\n",
            "f:23:5: unfold[1].decode.expected_steps: without 'until' every request takes max_steps: remove this, or say \
             what ends the loop",
        ),
        (
            "max_steps: \"2 * len(encoder.all) + 50\"",
            "max_steps: 29\n    expected_steps: 30",
            "f:25:5: unfold[1].decode.expected_steps: expected at most 29, the max_steps, but found 30",
        ),
        (
            "max_steps: \"2 * len(encoder.all) + 50\"",
            "max_steps: 4 * 7\n    expected_steps: 30",
            "f:25:5: unfold[1].decode.expected_steps: expected at most 28, the max_steps, but found 30",
        ),
        (
            "max_steps: \"2 * len(encoder.all) + 50\"",
            "max_steps: 1.5",
            "f:24:5: unfold[1].decode.max_steps: expected a number of steps, or an expression such as \"len(tokens) \
             + 1\", but found 1.5",
        ),
        (
            "+ 50",
            "+ fifty",
            "f:24:5: unfold[1].decode.max_steps: expected a whole number, len(input) or a parenthesis, but found \
             'fifty'",
        ),
        (
            "until: { next: 2 }",
            "until: { next: 2.5 }",
            "f:23:14: unfold[1].decode.until.next: expected a whole number from -9223372036854775808 to \
             9223372036854775807, but found 2.5",
        ),
        (
            "until: { next: 2 }",
            "until: { next: 2, other: 3 }",
            "f:23:23: unfold[1].decode.until.other: expected one output that ends the loop, but found 'next' too",
        ),
        (
            "    reverse: true",
            "    chunk: { lengths: h }",
            "f:14:14: unfold[0].chain.chunk.lengths: expected one source of the input 'h', but 'carry' has it too",
        ),
        (
            "    reverse: true",
            "    chunk: {}\n    grow: { past: key }",
            "f:14:5: unfold[0].chain.chunk: what a segment grows by the step does not go with several steps at a time: \
             expected no 'grow'",
        ),
        (
            "h: last(h_next)",
            "h: root(h_next)",
            "f:15:13: unfold[0].chain.emit.h: expected last(<output>) or all(<output>), but found 'root(h_next)'",
        ),
        (
            "h: last(h_next)",
            "h: last()",
            "f:15:13: unfold[0].chain.emit.h: expected last(<output>) or all(<output>), but found 'last()'",
        ),
        (
            "name: encoder",
            "name: the.encoder",
            "f:9:5: unfold[0].chain.name: expected a name of letters, digits, '_' and '-', but found 'the.encoder'",
        ),
    ]);
}

#[test]
fn values_of_cells_are_refused_with_what_is_expected() {
    refuses(&[
        (
            "[1, 4, 512]",
            "[4, 1]",
            "f:4:36: cells.encode.batch_sizes: expected ascending sizes from 1 to 65536, but found '4,1'",
        ),
        (
            "[1, 4, 512]",
            "[0]",
            "f:4:50: cells.encode.batch_sizes[0]: expected a whole number from 1 to 65536, but found 0",
        ),
        (
            "[1, 4, 512], min_followup: 64",
            "[16], min_followup: 17",
            "f:4:55: cells.encode.min_followup: expected a whole number from 1 to 16, but found 17",
        ),
        (
            "priority: 7",
            "priority: 0",
            "f:4:80: cells.encode.priority: expected a whole number from 1 to 4294967295, but found 0",
        ),
        ("priority: 7", "weight: 7", "f:4:80: cells.encode.weight: unknown key 'weight'"),
        (
            "program: decoder.onnx",
            "program: ../decoder.onnx",
            "f:5:13: cells.decode.program: expected the name of a file in the version's directory, but found \
             '../decoder.onnx'",
        ),
        ("{ program: decoder.onnx }", "{}", "f:5:3: cells.decode: expected the key 'program'"),
        (
            "  decode: { program",
            "  de.code: { program",
            "f:5:3: cells.de.code: expected a name of letters, digits, '_' and '-', but found 'de.code'",
        ),
    ]);
}

#[test]
fn names_of_what_is_not_there_are_refused_with_the_nearest() {
    refuses(&[
        (
            "cell: encode",
            "cell: encod",
            "f:8:5: unfold[0].chain.cell: expected one of the cells decode, encode, but found 'encod'; did you mean \
             'encode'?",
        ),
        (
            "over: source",
            "over: sauce",
            "f:10:5: unfold[0].chain.over: expected an input of the model or <segment>.<emit> of an earlier segment, \
             but found 'sauce'; did you mean 'source'?",
        ),
        (
            "memory: encoder.all",
            "memory: encoder.alls",
            "f:21:13: unfold[1].decode.hold.memory: expected an input of the model or <segment>.<emit> of an earlier \
             segment, but found 'encoder.alls'; did you mean 'encoder.all'?",
        ),
        (
            "h: encoder.h",
            "h: decode.tokens",
            "f:20:24: unfold[1].decode.start.h: expected an input of the model or <segment>.<emit> of an earlier \
             segment, but found 'decode.tokens'",
        ),
        (
            "len(encoder.all)",
            "len(encoder.h)",
            "f:24:5: unfold[1].decode.max_steps: 'encoder.h' is not an input whose length is known before the segment \
             runs",
        ),
        (
            "start: { h: -0.5 }",
            "start: { g: 1 }",
            "f:13:14: unfold[0].chain.start.g: only inputs that are carried from step to step have a start, but 'g' \
             is not one of them",
        ),
        (
            "past_words: grow.past",
            "past_words: grow.pasts",
            "f:22:35: unfold[1].decode.length.past_words: expected an input that the segment grows, grow.past, but \
             found 'grow.pasts'; did you mean 'grow.past'?",
        ),
        (
            "start: { token: 1,",
            "start: { past: 1,",
            "f:20:14: unfold[1].decode.start.past: only inputs that are carried from step to step have a start, but \
             'past' is not one of them",
        ),
    ]);
}

#[test]
fn what_two_parts_give_or_none_is_refused() {
    refuses(&[
        (
            "grow: { past: key }",
            "grow: { h: key }",
            "f:26:13: unfold[1].decode.grow.h: expected one source of the input 'h', but 'carry' has it too",
        ),
        (
            "feed: { token: next }",
            "feed: { h: next }",
            "f:18:13: unfold[1].decode.feed.h: expected one source of the input 'h', but 'carry' has it too",
        ),
        (
            "emit: { tokens: all(next) }",
            "emit: { token: all(next) }",
            "f:2:14: outputs[0].name: expected a segment to emit 'tokens', but none does; did you mean 'token'?",
        ),
        (
            "all: all(h_next) }",
            "all: all(h_next), tokens: all(h_next) }",
            "f:2:14: outputs[0].name: expected one segment to emit 'tokens', but found 'encoder' and 'decode'",
        ),
        (
            "name: encoder",
            "name: decode",
            "f:17:5: unfold[1].decode.cell: segment 0 has the name 'decode' too: expected another name, in the key \
             'name'",
        ),
        (
            "    cell: decode\n",
            "    cell: encode\n",
            "f:5:13: cells.decode.program: no segment names the cell 'decode': remove it, or let one run it",
        ),
    ]);
    let twice = changed(TRANSLATE, "name: source,", "name: encoder.all,").replace("over: source", "over: encoder.all");
    assert_eq!(
        from_yaml(&twice).expect_err("two of a name").to_string(),
        "f:21:13: unfold[1].decode.hold.memory: 'encoder.all' names an input of the model and an emit: expected one \
         of them to have another name"
    );
}

#[test]
fn what_grows_is_named_by_nothing_else() {
    let grows =
        "grow: { past: key }\n- chain: { cell: encode, name: second, over: source, as: word, grow: { past: h },";
    let grows = format!("{grows} length: {{ n: grow.past }}, emit: {{ y: all(h) }} }}");
    let twice = changed(TRANSLATE, "grow: { past: key }", &grows);
    assert!(from_yaml(&twice).is_ok(), "each segment has its own");
    let renamed = [
        ("name: encoder", "name: grow"),
        ("encoder.all", "grow.past"),
        ("encoder.h", "grow.h"),
        ("all: all(", "past: all("),
    ];
    let also = renamed.iter().fold(TRANSLATE.to_owned(), |text, (from, to)| text.replace(from, to));
    assert_eq!(
        from_yaml(&also).expect_err("a segment of this name has it too").to_string(),
        "f:22:33: unfold[1].decode.length.past_words: 'grow.past' names an input that the segment grows, and another \
         tensor too: expected that tensor to have another name"
    );
    assert_eq!(
        refusal(TRANSLATE, "    grow: { past: key }\n", ""),
        "f:22:35: unfold[1].decode.length.past_words: expected an input of the model or <segment>.<emit> of an earlier \
         segment, but found 'grow.past'"
    );
    assert_eq!(refusal(TREE, "max_nodes: 31", "grow: { left: h }"), "f:14:5: unfold[0].tree.grow: unknown key 'grow'");
}

#[test]
fn a_chain_whose_length_nobody_knows_is_refused() {
    assert_eq!(
        refusal(SPEECH, "steps: len(frames) / 2, ", ""),
        "f:6:32: unfold[1].chain.over.x: the length of 'conv.features' is not known in advance: expected the key \
         'steps'"
    );
    assert_eq!(
        refusal(SPEECH, "over: { x: conv.features }, steps: len(frames) / 2, ", ""),
        "f:6:12: unfold[1].chain.cell: expected 'over', whose length is the number of steps, or 'steps'"
    );
    let after = |steps: &str| {
        let again = "- chain: { cell: encode, over: decode.tokens, as: x,";
        from_yaml(&format!("{TRANSLATE}{again} {steps} emit: {{ y: last(h) }} }}\n"))
    };
    assert_eq!(after("steps: 4,").map(|read| read.is_some()), Ok(true), "a known number of steps may be given");
    assert!(
        after("")
            .expect_err("it may end early")
            .to_string()
            .ends_with("is not known in advance: expected the key 'steps'")
    );
    assert_eq!(
        refusal(TRANSLATE, "over: source\n    as: word", "over: { word: source, x: encoder.h }"),
        "f:10:27: unfold[0].chain.over.x: expected an input of the model or <segment>.<emit> of an earlier segment, \
         but found 'encoder.h'"
    );
    let one = "- chain: { cell: encode, over: encoder.h, as: x, emit: { y: last(h) } }\n";
    assert!(from_yaml(&format!("{TRANSLATE}{one}")).expect_err("no rows").to_string().ends_with(
        "'encoder.h' is the value of one step: expected an input, what a stage emits, or an emit of all(…)"
    ));
}

#[test]
fn a_stage_that_goes_over_rows_reads_nothing_else() {
    let with = |more: &str| {
        refusal(SPEECH, "- stage: conv", &format!("- stage: {{ cell: conv, over: frames, as: frames, {more} }}"))
    };
    let expected = "a stage that goes over rows reads nothing else: expected all inputs in 'over'";
    assert_eq!(with("inputs: { x: frames }"), format!("f:5:60: unfold[0].stage.inputs.x: {expected}"));
    assert_eq!(with("length: { n: frames }"), format!("f:5:60: unfold[0].stage.length.n: {expected}"));
}

#[test]
fn expressions_do_not_grow_without_end() {
    let long = format!("max_steps: \"{}1\"", "1+".repeat(200));
    let refused = refusal(TRANSLATE, "max_steps: \"2 * len(encoder.all) + 50\"", &long);
    assert!(refused.ends_with("max_steps: expected at most 256 bytes, but found 401"), "{refused}");
    let mut text = TRANSLATE.to_owned();
    for layer in 0..40 {
        let before = if layer == 0 { "encoder.all".to_owned() } else { format!("l{}.y", layer - 1) };
        let steps = format!("len({before}) + len({before})");
        text.push_str(&format!("- chain: {{ cell: encode, name: l{layer}, steps: {steps}, emit: {{ y: all(h) }} }}\n"));
    }
    let refused = from_yaml(&text).expect_err("each doubles the one before").to_string();
    assert!(refused.ends_with("expected at most 256 numbers, lengths and operators, but found 511"), "{refused}");
}

#[test]
fn trees_need_a_table_of_children() {
    let cases = [
        (
            "children: children",
            "children: childrens",
            "f:10:5: unfold[0].tree.children: expected an input of the model, but found 'childrens'; did you mean \
             'children'?",
        ),
        (
            "children: children",
            "children: tokens",
            "f:10:5: unfold[0].tree.children: expected an input of INT32 or INT64 with dims [nodes, children of a \
             node], but 'tokens' is INT64 [-1]",
        ),
        (
            "dtype: INT32",
            "dtype: FP32",
            "f:10:5: unfold[0].tree.children: expected an input of INT32 or INT64 with dims [nodes, children of a \
             node], but 'children' is FP32 [-1, 2]",
        ),
        ("right: 1.h", "right: 2.h", "f:13:25: unfold[0].tree.child.right: expected a child from 0 to 1, but found 2"),
        (
            "right: 1.h",
            "right: h",
            "f:13:25: unfold[0].tree.child.right: expected a child's number and an output of its cell, as in '0.h', \
             but found 'h'",
        ),
        (
            "root: root(h)",
            "root: last(h)",
            "f:15:13: unfold[0].tree.emit.root: expected root(<output>) or all(<output>), but found 'last(h)'",
        ),
        (
            "max_nodes: 31",
            "max_nodes: 0",
            "f:14:5: unfold[0].tree.max_nodes: expected a whole number from 1 to 1048576, but found 0",
        ),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refusal(TREE, from, to), expected, "{to}");
    }
}

#[test]
fn two_trees_need_names() {
    let second = "- tree: { leaf: leaf, internal: node, children: children, emit: { other: root(h) } }\n";
    assert_eq!(
        from_yaml(&format!("{TREE}{second}")).expect_err("both are called 'tree'").to_string(),
        "f:16:11: unfold[1].tree.leaf: segment 0 has the name 'tree' too: expected another name, in the key 'name'"
    );
}

#[test]
fn streams_and_decoupled_models_go_together() {
    assert_eq!(
        refusal(TRANSLATE, "reverse: true", "stream: true"),
        "f:14:5: unfold[0].chain.stream: a response for each step needs 'decoupled: true'"
    );
    let decoupled = format!("decoupled: true\n{TRANSLATE}");
    assert_eq!(
        from_yaml(&decoupled).expect_err("nothing streams").to_string(),
        "f:1:1: decoupled: a decoupled model of cells answers step by step: expected a segment with 'stream: true'"
    );
    assert_eq!(
        refusal(&decoupled, "reverse: true", "stream: true"),
        "f:3:14: outputs[0].name: the model answers step by step: expected 'encoder', which streams, to emit \
         'tokens', but 'decode' does"
    );
    let both = changed(&decoupled, "reverse: true", "stream: true");
    assert_eq!(
        refusal(&both, "max_steps:", "stream: true\n    max_steps:"),
        "f:25:5: unfold[1].decode.stream: expected one segment that streams, but 'encoder' does too"
    );
}

#[test]
fn what_has_no_meaning_for_cells_is_refused_by_name() {
    let with = |line: &str| from_yaml(&format!("{line}\n{TREE}")).expect_err("it should be refused").to_string();
    assert_eq!(
        with("max_batch_size: 8"),
        "f:1:1: max_batch_size: expected 0 or 1, because each request unfolds by itself, but found 8; each cell's \
         batch_sizes say how many nodes run together"
    );
    assert_eq!(with("backend: repeat"), "f:1:1: backend: the backend 'repeat' has no cells");
    assert_eq!(with("program: a.onnx"), "f:1:1: program: each cell has a program of its own: remove this");
    for stages in ["auto", "4", "1"] {
        let expected = "f:1:1: stages: a model of cells is not cut into stages: remove this";
        assert_eq!(with(&format!("stages: {stages}")), expected, "{stages}");
    }
    assert_eq!(with("stages: [t]"), "f:1:10: stages[0]: a model of cells is not cut into stages: remove this");
    let exit = "exits: [ { stage: 0, value: t, at_least: 1 } ]";
    assert!(with(exit).ends_with("exits[0].at_least: a model of cells is not cut into stages: remove this"));
    assert_eq!(
        with("batching: { queueing: { bucket_width: 8 } }"),
        "f:1:25: batching.queueing.bucket_width: nodes of requests of any length run together: remove this"
    );
    assert_eq!(
        refusal(TREE, "dims: [nodes] }", "dims: [nodes], pad: { axis: nodes } }"),
        "f:2:48: inputs[0].pad: cells with an input for lengths are padded as they need: remove this"
    );
    assert!(
        refusal(TREE, "dims: [nodes] }", "dims: [nodes], optional: true }")
            .ends_with("inputs[0].optional: cells need their inputs, but 'tokens' may be left out")
    );
    assert!(
        refusal(TREE, "dims: [nodes] }", "dims: [nodes], reshape: [-1, 1] }")
            .ends_with("inputs[0].reshape: cells read inputs in the shape of 'dims': remove this")
    );
    assert!(
        refusal(TREE, "dims: [8] }", "dims: [8], reshape: [2, 4] }")
            .ends_with("outputs[0].reshape: outputs have the shape that cells give them: remove this")
    );
}

#[test]
fn cells_and_unfold_need_each_other() {
    let refused = |text: &str| from_yaml(text).expect_err("it should be refused").to_string();
    assert_eq!(refused("cells: {}"), "f:1:1: cells: expected at least one entry");
    assert_eq!(refused("unfold: []"), "f:1:1: unfold: expected at least one entry");
    assert_eq!(
        refused("cells: { c: { program: c.onnx } }"),
        "f:1:15: cells.c.program: cells need 'unfold', which says what each request runs"
    );
    assert_eq!(
        refused("unfold: [ stage: c ]"),
        "f:1:11: unfold[0].stage: 'unfold' needs 'cells', which say what is run"
    );
}
