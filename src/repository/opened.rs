//! Serves a model whose graph has recurrent layers by cells, as exported: opens the layers, and describes how a request
//! unfolds into the programs.

use std::collections::BTreeMap;

use smallvec::smallvec;
use tracing::info;

use super::{
    CellProgram, LoadRequest, StageRequest,
    config::{
        policies::Automatic,
        unfold::{CellRequest, Constant, SegmentRequest, SourceRequest, UnfoldRequest},
    },
    opening::Opener,
};
use crate::{
    batching::{CellularKnobs, Policy, StageKnobs},
    model::{
        ModelSpec,
        unfold::{Emit, Emitted, Expression, Nodes, Source, Start, Tensor, Which},
    },
    onnx::{
        SealedModel,
        recurrent::{Opened, Segment, SegmentKind, SegmentSource, SegmentTensor, is_recurrent_model, open_sealed},
    },
};

/// Returns the request that serves a model by cells; `None` if its graph has no recurrent layers or stays whole. The
/// log says why it stays whole.
///
/// # Errors
/// Returns the reason if the program cannot be read or opened at all.
pub(super) fn by_cells(request: &LoadRequest, opener: &Opener<'_>) -> Result<Option<LoadRequest>, String> {
    if !request.may_open {
        return Ok(None);
    }
    let program = request.whole_program();
    let graph = program.read()?;
    if !is_recurrent_model(&graph) {
        return Ok(None);
    }
    let name = &request.spec.name;
    let whole = |reason: String| {
        info!(model = name, reason, "recurrent layers are served as a whole");
        Ok(None)
    };
    if let Err(reason) = has_rows(&request.spec) {
        return whole(reason);
    }
    let model = opener.open(&program, graph, &StageRequest::default())?;
    let opened = open_sealed(&model).map_err(|reason| reason.to_string()).and_then(|(opened, programs)| {
        let unfold = unfolding(&opened, &request.spec)?;
        let segments = opened.segments.iter().map(|segment| segment.name.as_str()).collect::<Vec<_>>().join(", ");
        let (layers, steps_of) = (opened.layers, opened.steps_of.as_str());
        info!(model = name, layers, segments, steps_of, "recurrent layers are served by cells");
        Ok(with_cells(request, &program, unfold, programs))
    });
    opened.map_or_else(whole, |request| Ok(Some(request)))
}

/// Checks that requests have rows, and all inputs.
fn has_rows(spec: &ModelSpec) -> Result<(), String> {
    if !spec.has_batch_axis() {
        return Err("the model has no batch axis".to_owned());
    }
    match spec.inputs.iter().find(|input| input.optional) {
        Some(input) => Err(format!("the input '{}' may be left out", input.name)),
        None => Ok(()),
    }
}

fn with_cells(
    request: &LoadRequest,
    program: &CellProgram,
    unfold: UnfoldRequest,
    programs: Vec<SealedModel>,
) -> LoadRequest {
    let mut request = request.clone();
    request.cells = programs.iter().map(|_| program.clone()).collect();
    request.knobs.max_batch_rows = unfold.max_rows();
    request.knobs.mergeable = true;
    // Lanes of a CPU share its cores.
    request.knobs.max_in_flight = 1;
    request.knobs.stages = u16::try_from(programs.len()).map_or(request.knobs.stages, StageKnobs::chain);
    request.knobs.policy = Policy::Cellular(CellularKnobs::default());
    request.automatic = Automatic { batch_sizes: request.automatic.is_any(), ..Automatic::default() };
    request.unfold = Some(unfold);
    request.opened = programs;
    request
}

/// Describes how a request unfolds into the segments of an opened model.
///
/// # Errors
/// If the configuration lacks an input or output of the graph.
fn unfolding(opened: &Opened, spec: &ModelSpec) -> Result<UnfoldRequest, String> {
    let input = |name: &str| {
        let known = spec.inputs.iter().position(|input| input.name == name && input.reshape.is_none());
        known.ok_or_else(|| format!("the configuration lacks or reshapes the input '{name}'"))
    };
    if let Some(output) = spec.outputs.iter().find(|output| output.reshape.is_some()) {
        return Err(format!("the configuration reshapes the output '{}'", output.name));
    }
    let steps = Expression::Length(input(&opened.steps_of)?);
    let count = opened.segments.len();
    let cells = opened.segments.iter().enumerate().map(|(number, segment)| CellRequest {
        name: segment.name.clone(),
        program: String::new(),
        batch_sizes: None,
        min_followup: None,
        priority: u32::try_from(count - number).unwrap_or(u32::MAX),
        tensors: BTreeMap::new(),
    });
    let segments = opened.segments.iter().enumerate().map(|(number, segment)| {
        Ok(SegmentRequest {
            name: segment.name.clone(),
            cells: smallvec![number],
            nodes: match segment.kind {
                SegmentKind::Stage => Nodes::Stage,
                SegmentKind::Chain { .. } => Nodes::Chain { steps: steps.clone(), chunks: true },
            },
            sources: sources(segment, &opened.segments, &input)?,
            emits: segment
                .emits
                .iter()
                .map(|emit| {
                    let which = if emit.is_by_steps { Which::All } else { Which::Last };
                    Emit { name: emit.name.clone(), output: emit.output.clone(), which }
                })
                .collect(),
            emits_all: false,
            streams: false,
        })
    });
    let segments = segments.collect::<Result<_, String>>()?;
    Ok(UnfoldRequest { cells: cells.collect(), segments, lengths: BTreeMap::new() })
}

fn sources(
    segment: &Segment,
    all: &[Segment],
    input: &dyn Fn(&str) -> Result<usize, String>,
) -> Result<BTreeMap<String, SourceRequest>, String> {
    let reversed = segment.kind == SegmentKind::Chain { reverse: true };
    let tensor = |of: &SegmentTensor| match of {
        SegmentTensor::Input(name) => input(name).map(Tensor::Input),
        SegmentTensor::Emitted { segment, name } => {
            let emit = all[*segment].emits.iter().position(|emit| emit.name == *name);
            let emit = emit.ok_or_else(|| format!("'{name}' is emitted by no segment"))?;
            Ok(Tensor::Emitted(Emitted { segment: *segment, emit }))
        }
    };
    let source = |source: &SegmentSource| -> Result<SourceRequest, String> {
        Ok(match source {
            SegmentSource::Steps(of) => Source::Step { of: tensor(of)?, reversed },
            SegmentSource::Whole(of) => Source::Whole(tensor(of)?),
            SegmentSource::State(output) => {
                Source::Carried { output: output.clone(), start: Start::Row(Constant::Value(0.0)), is_kept: false }
            }
            SegmentSource::Lengths => Source::Steps,
        })
    };
    segment.inputs.iter().map(|own| Ok((own.name.clone(), source(&own.source)?))).collect()
}
