//! What recurrent layers and decoders become: the segments that requests run, or why the model stays whole.

use std::io::{self, Write};

use paternoster_onnx::{
    Port, SealedModel, decoder,
    recurrent::{Opened, open},
    segments::{NotOpened, OpenedSegment, SegmentKind, SegmentSource, SegmentTensor},
};

use crate::cli::table::Table;

/// Most tensors of a segment that are listed by name.
const LISTED_MAX: usize = 8;

/// Prints the segments of a model, or why it has none. Returns whether it has any; prints nothing for a model that has
/// no recurrent layers and is no decoder.
pub(super) fn print(model: &SealedModel, out: &mut dyn Write, width: Option<usize>) -> io::Result<bool> {
    let inputs = model.model().0.graph.iter().flat_map(|graph| &graph.input).map(Port::of).collect::<Vec<_>>();
    if decoder::tokens_of(&inputs).is_some() {
        match decoder::open(model.model(), &[]) {
            Ok(opened) => {
                writeln!(out, "a decoder with past keys and values; with 'generate' in model.yaml, served by cells:")?;
                table(&opened.segments, out, width)?;
                return Ok(true);
            }
            Err(reason) => {
                writeln!(out, "a decoder with past keys and values, which cannot generate: {reason}")?;
                return Ok(false);
            }
        }
    }
    let opened = match open(model.model()) {
        Ok(opened) => opened,
        Err(NotOpened::NotRecurrent) => return Ok(false),
        Err(NotOpened::Refused(reason) | NotOpened::OverBatch(reason)) => {
            writeln!(out, "recurrent layers: the model stays whole: {reason}")?;
            return Ok(false);
        }
    };
    let Opened { segments, steps_of, layers } = &opened;
    writeln!(out, "recurrent layers: {layers}, over axis 1 of '{steps_of}', served by cells:")?;
    table(segments, out, width)?;
    Ok(true)
}

fn table(segments: &[OpenedSegment], out: &mut dyn Write, width: Option<usize>) -> io::Result<()> {
    let columns = ["Segment", "Runs", "What it is for", "Reads", "States", "Gives"];
    let mut table = Table::new(&columns).with_text(&columns);
    for segment in segments {
        table.row(row(segment, segments));
    }
    writeln!(out, "{}", table.within(width))
}

fn row(segment: &OpenedSegment, all: &[OpenedSegment]) -> [String; 6] {
    let runs = match segment.kind {
        SegmentKind::Stage => "once, on whole tensors",
        SegmentKind::Chain { reverse: false } => "over the steps",
        SegmentKind::Chain { reverse: true } => "over the steps, from the last",
        SegmentKind::Decode => "token by token",
    };
    let reads = segment.inputs.iter().filter_map(|input| match &input.source {
        SegmentSource::Steps(of) | SegmentSource::Whole(of) => Some(read(of, all)),
        SegmentSource::Fed { start, .. } => Some(read(start, all)),
        SegmentSource::State(_)
        | SegmentSource::Lengths
        | SegmentSource::Length(_)
        | SegmentSource::Grown(_)
        | SegmentSource::GrownLength => None,
    });
    let emits = |output: &String| segment.emits.iter().any(|emit| emit.output == *output);
    // What the last run gives is no state, but goes the same way.
    let states = segment.inputs.iter().filter(|input| match &input.source {
        SegmentSource::State(output) => !emits(output),
        SegmentSource::Grown(_) => true,
        _ => false,
    });
    let states = states.count();
    let gives = segment.emits.iter().map(|emit| match (segment.kind, emit.is_by_steps) {
        (SegmentKind::Stage, _) => emit.name.clone(),
        (SegmentKind::Chain { .. } | SegmentKind::Decode, true) => format!("all {}", emit.name),
        (SegmentKind::Chain { .. } | SegmentKind::Decode, false) => format!("last {}", emit.name),
    });
    let listed = |texts: &mut dyn Iterator<Item = String>| {
        let mut texts: Vec<String> = texts.collect();
        // A decoder has two tensors for each layer.
        if texts.len() > LISTED_MAX {
            let more = texts.len() + 1 - LISTED_MAX;
            texts.truncate(LISTED_MAX - 1);
            texts.push(format!("{more} more"));
        }
        texts.join(", ")
    };
    [
        segment.name.clone(),
        runs.to_owned(),
        segment.layers.join(", "),
        listed(&mut { reads }),
        states.to_string(),
        listed(&mut { gives }),
    ]
}

fn read(tensor: &SegmentTensor, all: &[OpenedSegment]) -> String {
    match tensor {
        SegmentTensor::Input(name) => name.clone(),
        SegmentTensor::Emitted { segment, name } => format!("{}.{name}", all[*segment].name),
    }
}
