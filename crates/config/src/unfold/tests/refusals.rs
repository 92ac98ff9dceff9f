//! What configurations say wrongly of cells.

use super::*;
use crate::{
    ConfigErrorKind::{TooLarge, Unknown, Value},
    tests::refusals::{Refusals, part},
};

/// Reads a text with a part of it replaced, given as `part => replacement`.
fn replaced(text: &str, given: &str) -> Result<Option<UnfoldRequest>, ConfigError> {
    let (from, to) = given.split_once(" => ").expect("a replacement");
    from_yaml(&changed(text, from, to))
}

pub(crate) fn refusals(all: &mut Refusals) {
    part(all, "cells: keys of segments", |given| replaced(TRANSLATE, given)).refuses(&[
        (Unknown, "7:3 unfold[0]", "- chain: => - chains:"),
        (Value, "7:3 unfold[0]", "- chain: => - stage: encode\n  chain:"),
        (Value, "7:3 unfold[0].chain", "    cell: encode\n => "),
        (Value, "16:3 unfold[1].decode", "    emit: { tokens: all(next) }\n => "),
        (Value, "16:3 unfold[1].decode", "    max_steps: \"2 * len(encoder.all) + 50\"\n => "),
        (Unknown, "14:5 unfold[0].chain.until", "    reverse: true =>     until: { h: 1 }"),
        (Value, "26:5 unfold[1].decode.grow", "grow: { past: key } => grow: {}"),
        (Value, "10:5 unfold[0].chain.over", "    as: word\n => "),
        (Value, "11:5 unfold[0].chain.as", "over: source => over: { word: source }"),
        (Value, "10:5 unfold[0].chain.as", "    over: source\n => "),
        (Value, "18:5 unfold[1].decode.feed", "feed: { token: next } => feed: {}"),
    ]);
    part(all, "cells: values of segments", |given| replaced(TRANSLATE, given)).refuses(&[
        (Value, "14:5 unfold[0].chain.reverse", "reverse: true => reverse: 1"),
        (Value, "13:14 unfold[0].chain.start.h", "start: { h: -0.5 } => start: { h: [1] }"),
        (Value, "23:5 unfold[1].decode.expected_steps", "    until: { next: 2 }\n =>     expected_steps: 30\n"),
        (
            Value,
            "25:5 unfold[1].decode.expected_steps",
            "max_steps: \"2 * len(encoder.all) + 50\" => max_steps: 29\n    expected_steps: 30",
        ),
        (
            Value,
            "25:5 unfold[1].decode.expected_steps",
            "max_steps: \"2 * len(encoder.all) + 50\" => max_steps: 4 * 7\n    expected_steps: 30",
        ),
        (Value, "24:5 unfold[1].decode.max_steps", "max_steps: \"2 * len(encoder.all) + 50\" => max_steps: 1.5"),
        (Value, "24:5 unfold[1].decode.max_steps", "+ 50 => + fifty"),
        (Value, "23:14 unfold[1].decode.until.next", "until: { next: 2 } => until: { next: 2.5 }"),
        (Value, "23:23 unfold[1].decode.until.other", "until: { next: 2 } => until: { next: 2, other: 3 }"),
        (Value, "14:14 unfold[0].chain.chunk.lengths", "    reverse: true =>     chunk: { lengths: h }"),
        (Value, "14:5 unfold[0].chain.chunk", "    reverse: true =>     chunk: {}\n    grow: { past: key }"),
        (Value, "15:13 unfold[0].chain.emit.h", "h: last(h_next) => h: root(h_next)"),
        (Value, "15:13 unfold[0].chain.emit.h", "h: last(h_next) => h: last()"),
        (Value, "9:5 unfold[0].chain.name", "name: encoder => name: the.encoder"),
    ]);
    part(all, "cells: values of cells", |given| replaced(TRANSLATE, given)).refuses(&[
        (Value, "4:36 cells.encode.batch_sizes", "[1, 4, 512] => [4, 1]"),
        (Value, "4:50 cells.encode.batch_sizes[0]", "[1, 4, 512] => [0]"),
        (Value, "4:55 cells.encode.min_followup", "[1, 4, 512], min_followup: 64 => [16], min_followup: 17"),
        (Value, "4:80 cells.encode.priority", "priority: 7 => priority: 0"),
        (Unknown, "4:80 cells.encode.weight", "priority: 7 => weight: 7"),
        (Value, "5:13 cells.decode.program", "program: decoder.onnx => program: ../decoder.onnx"),
        (Value, "5:3 cells.decode", "{ program: decoder.onnx } => {}"),
        (Value, "5:3 cells.de.code", "  decode: { program =>   de.code: { program"),
    ]);
    part(all, "cells: names", |given| replaced(TRANSLATE, given)).refuses(&[
        (Unknown, "8:5 unfold[0].chain.cell", "cell: encode => cell: encod"),
        (Unknown, "10:5 unfold[0].chain.over", "over: source => over: sauce"),
        (Unknown, "21:13 unfold[1].decode.hold.memory", "memory: encoder.all => memory: encoder.alls"),
        (Unknown, "20:24 unfold[1].decode.start.h", "h: encoder.h => h: decode.tokens"),
        (Value, "24:5 unfold[1].decode.max_steps", "len(encoder.all) => len(encoder.h)"),
        (Value, "13:14 unfold[0].chain.start.g", "start: { h: -0.5 } => start: { g: 1 }"),
        (Unknown, "22:35 unfold[1].decode.length.past_words", "past_words: grow.past => past_words: grow.pasts"),
        (Value, "20:14 unfold[1].decode.start.past", "start: { token: 1, => start: { past: 1,"),
        (Unknown, "10:27 unfold[0].chain.over.x", "over: source\n    as: word => over: { word: source, x: encoder.h }"),
    ]);
    part(all, "cells: what two parts give, or none", |given| replaced(TRANSLATE, given)).refuses(&[
        (Value, "26:13 unfold[1].decode.grow.h", "grow: { past: key } => grow: { h: key }"),
        (Value, "18:13 unfold[1].decode.feed.h", "feed: { token: next } => feed: { h: next }"),
        (Unknown, "2:14 outputs[0].name", "emit: { tokens: all(next) } => emit: { token: all(next) }"),
        (Value, "2:14 outputs[0].name", "all: all(h_next) } => all: all(h_next), tokens: all(h_next) }"),
        (Value, "17:5 unfold[1].decode.cell", "name: encoder => name: decode"),
        (Value, "5:13 cells.decode.program", "    cell: decode\n =>     cell: encode\n"),
        (Unknown, "22:35 unfold[1].decode.length.past_words", "    grow: { past: key }\n => "),
    ]);
    part(all, "cells: trees", |given| replaced(TREE, given)).refuses(&[
        (Unknown, "10:5 unfold[0].tree.children", "children: children => children: childrens"),
        (Value, "10:5 unfold[0].tree.children", "children: children => children: tokens"),
        (Value, "10:5 unfold[0].tree.children", "dtype: INT32 => dtype: FP32"),
        (Value, "13:25 unfold[0].tree.child.right", "right: 1.h => right: 2.h"),
        (Value, "13:25 unfold[0].tree.child.right", "right: 1.h => right: h"),
        (Value, "15:13 unfold[0].tree.emit.root", "root: root(h) => root: last(h)"),
        (Value, "14:5 unfold[0].tree.max_nodes", "max_nodes: 31 => max_nodes: 0"),
        (Unknown, "14:5 unfold[0].tree.grow", "max_nodes: 31 => grow: { left: h }"),
        (Value, "2:48 inputs[0].pad", "dims: [nodes] } => dims: [nodes], pad: { axis: nodes } }"),
        (Value, "2:48 inputs[0].optional", "dims: [nodes] } => dims: [nodes], optional: true }"),
        (Value, "2:48 inputs[0].reshape", "dims: [nodes] } => dims: [nodes], reshape: [-1, 1] }"),
        (Value, "4:50 outputs[0].reshape", "dims: [8] } => dims: [8], reshape: [2, 4] }"),
    ]);
    part(all, "cells: lengths of chains, and stages over rows", |given| replaced(SPEECH, given)).refuses(&[
        (Value, "6:32 unfold[1].chain.over.x", "steps: len(frames) / 2,  => "),
        (Value, "6:12 unfold[1].chain.cell", "over: { x: conv.features }, steps: len(frames) / 2,  => "),
        (
            Value,
            "5:60 unfold[0].stage.inputs.x",
            "stage: conv => stage: { cell: conv, over: frames, as: frames, inputs: { x: frames } }",
        ),
        (
            Value,
            "5:60 unfold[0].stage.length.n",
            "stage: conv => stage: { cell: conv, over: frames, as: frames, length: { n: frames } }",
        ),
    ]);
    part(all, "cells: lines before a tree", |line| from_yaml(&format!("{line}\n{TREE}"))).refuses(&[
        (Value, "1:1 max_batch_size", "max_batch_size: 8"),
        (Value, "1:1 backend", "backend: repeat"),
        (Value, "1:1 program", "program: a.onnx"),
        (Value, "1:1 stages", "stages: auto"),
        (Value, "1:1 stages", "stages: 4"),
        (Value, "1:1 stages", "stages: 1"),
        (Value, "1:10 stages[0]", "stages: [t]"),
        (Value, "1:32 exits[0].at_least", "exits: [ { stage: 0, value: t, at_least: 1 } ]"),
        (Value, "1:25 batching.queueing.bucket_width", "batching: { queueing: { bucket_width: 8 } }"),
    ]);
    part(all, "cells: a second tree", |line| from_yaml(&format!("{TREE}{line}"))).refuses(&[(
        Value,
        "16:11 unfold[1].tree.leaf",
        "- tree: { leaf: leaf, internal: node, children: children, emit: { other: root(h) } }\n",
    )]);
    part(all, "cells: a segment after others", |line| from_yaml(&format!("{TRANSLATE}{line}"))).refuses(&[
        (
            Value,
            "27:26 unfold[2].chain.over",
            "- chain: { cell: encode, over: decode.tokens, as: x, emit: { y: last(h) } }\n",
        ),
        (
            Value,
            "27:26 unfold[2].chain.over",
            "- chain: { cell: encode, over: encoder.h, as: x, emit: { y: last(h) } }\n",
        ),
    ]);
    part(all, "cells: alone", from_yaml).refuses(&[
        (Value, "1:1 cells", "cells: {}"),
        (Value, "1:1 unfold", "unfold: []"),
        (Value, "1:15 cells.c.program", "cells: { c: { program: c.onnx } }"),
        (Value, "1:11 unfold[0].stage", "unfold: [ stage: c ]"),
    ]);
    let decoupled = format!("decoupled: true\n{TRANSLATE}");
    let both = changed(&decoupled, "reverse: true", "stream: true");
    part(all, "cells: responses step by step", |given| replaced(TRANSLATE, given)).refuses(&[
        (Value, "14:5 unfold[0].chain.stream", "reverse: true => stream: true"),
        (Value, "1:1 decoupled", "inputs: => decoupled: true\ninputs:"),
    ]);
    part(all, "cells: responses step by step, of a decoupled model", |given| replaced(&decoupled, given)).refuses(&[(
        Value,
        "3:14 outputs[0].name",
        "reverse: true => stream: true",
    )]);
    part(all, "cells: responses step by step, with a segment that streams", |given| replaced(&both, given))
        .refuses(&[(Value, "25:5 unfold[1].decode.stream", "max_steps: => stream: true\n    max_steps:")]);
    all.title("cells: names of two things");
    let twice = changed(TRANSLATE, "name: source,", "name: encoder.all,").replace("over: source", "over: encoder.all");
    all.add(Value, "21:13 unfold[1].decode.hold.memory", "an input with the name of an emit", from_yaml(&twice));
    let renamed = [
        ("name: encoder", "name: grow"),
        ("encoder.all", "grow.past"),
        ("encoder.h", "grow.h"),
        ("all: all(", "past: all("),
    ];
    let also = renamed.iter().fold(TRANSLATE.to_owned(), |text, (from, to)| text.replace(from, to));
    all.add(Value, "22:33 unfold[1].decode.length.past_words", "a segment 'grow' beside what grows", from_yaml(&also));
    all.title("cells: expressions that grow without end");
    let long = format!("max_steps: \"{}1\"", "1+".repeat(200));
    let long = changed(TRANSLATE, "max_steps: \"2 * len(encoder.all) + 50\"", &long);
    all.add(TooLarge, "24:5 unfold[1].decode.max_steps", "401 bytes", from_yaml(&long));
    let mut text = TRANSLATE.to_owned();
    for layer in 0..40 {
        let before = if layer == 0 { "encoder.all".to_owned() } else { format!("l{}.y", layer - 1) };
        let steps = format!("len({before}) + len({before})");
        text.push_str(&format!("- chain: {{ cell: encode, name: l{layer}, steps: {steps}, emit: {{ y: all(h) }} }}\n"));
    }
    all.add(
        TooLarge,
        "34:36 unfold[9].chain.steps",
        "forty segments, each of which doubles the one before",
        from_yaml(&text),
    );
}

#[test]
fn segments_may_grow_inputs_of_one_name() {
    let grows =
        "grow: { past: key }\n- chain: { cell: encode, name: second, over: source, as: word, grow: { past: h },";
    let grows = format!("{grows} length: {{ n: grow.past }}, emit: {{ y: all(h) }} }}");
    let twice = changed(TRANSLATE, "grow: { past: key }", &grows);
    assert!(from_yaml(&twice).is_ok(), "each segment has its own");
}

#[test]
fn a_chain_over_what_may_end_early_needs_its_number_of_steps() {
    let again = "- chain: { cell: encode, over: decode.tokens, as: x, steps: 4, emit: { y: last(h) } }\n";
    assert_eq!(from_yaml(&format!("{TRANSLATE}{again}")).map(|read| read.is_some()), Ok(true));
}
