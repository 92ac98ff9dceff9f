//! What the recurrent layers of a model become: the segments that requests run, or why the model stays whole.

use std::io::{self, Write};

use crate::{
    cli::table::Table,
    onnx::{
        SealedModel,
        recurrent::{NotOpened, Opened, Segment, SegmentKind, SegmentSource, SegmentTensor, open},
    },
};

/// Prints the segments of a model, or why it has none. Returns whether it has any; prints nothing for a model without
/// recurrent layers.
pub(super) fn print(model: &SealedModel, out: &mut dyn Write, width: Option<usize>) -> io::Result<bool> {
    let opened = match open(model.model()) {
        Ok(opened) => opened,
        Err(NotOpened::NotRecurrent) => return Ok(false),
        Err(NotOpened::Refused(reason)) => {
            writeln!(out, "recurrent layers: the model stays whole: {reason}")?;
            return Ok(false);
        }
    };
    let Opened { segments, steps_of, layers } = &opened;
    writeln!(out, "recurrent layers: {layers}, over axis 1 of '{steps_of}', served by cells:")?;
    let columns = ["Segment", "Runs", "What it is for", "Reads", "States", "Gives"];
    let mut table = Table::new(&columns).with_text(&columns);
    for segment in segments {
        table.row(row(segment, segments));
    }
    writeln!(out, "{}", table.within(width))?;
    Ok(true)
}

fn row(segment: &Segment, all: &[Segment]) -> [String; 6] {
    let runs = match segment.kind {
        SegmentKind::Stage => "once, on whole tensors",
        SegmentKind::Chain { reverse: false } => "over the steps",
        SegmentKind::Chain { reverse: true } => "over the steps, from the last",
    };
    let reads = segment.inputs.iter().filter_map(|input| match &input.source {
        SegmentSource::Steps(of) | SegmentSource::Whole(of) => Some(read(of, all)),
        SegmentSource::State(_) | SegmentSource::Lengths => None,
    });
    let emits = |output: &String| segment.emits.iter().any(|emit| emit.output == *output);
    // What the last run gives is no state, but goes the same way.
    let states = segment.inputs.iter().filter(|input| match &input.source {
        SegmentSource::State(output) => !emits(output),
        _ => false,
    });
    let states = states.count();
    let gives = segment.emits.iter().map(|emit| match (segment.kind, emit.is_by_steps) {
        (SegmentKind::Stage, _) => emit.name.clone(),
        (SegmentKind::Chain { .. }, true) => format!("all {}", emit.name),
        (SegmentKind::Chain { .. }, false) => format!("last {}", emit.name),
    });
    let listed = |texts: &mut dyn Iterator<Item = String>| texts.collect::<Vec<_>>().join(", ");
    [
        segment.name.clone(),
        runs.to_owned(),
        segment.layers.join(", "),
        listed(&mut { reads }),
        states.to_string(),
        listed(&mut { gives }),
    ]
}

fn read(tensor: &SegmentTensor, all: &[Segment]) -> String {
    match tensor {
        SegmentTensor::Input(name) => name.clone(),
        SegmentTensor::Emitted { segment, name } => format!("{}.{name}", all[*segment].name),
    }
}
