//! Serves models by cells as they were exported: opens recurrent layers and decoders, and describes how a request
//! unfolds into the programs.

use std::collections::BTreeMap;

use paternoster_batching::{Knobs, Policy, StageKnobs};
use paternoster_config::{
    generate::{MAX_TOKENS, OUTPUT},
    policies::Automatic,
    stages::StageRequest,
    unfold::{CellRequest, Constant, NodesRequest, SegmentRequest, SourceRequest, UnfoldRequest},
};
use paternoster_model::{
    Dims, ModelSpec,
    unfold::{
        CellInputSource, Emit, EmitRange, Emitted, Expression, Limit, MOST_STEPS, Nodes, Operator, Start, Tensor,
    },
};
use paternoster_onnx::{
    SealedModel, decoder,
    recurrent::{is_recurrent_model, open_sealed},
    segments::{OpenedSegment, SegmentKind, SegmentSource, SegmentTensor},
};
use smallvec::smallvec;
use tracing::info;

use super::{Generation, LoadError, LoadPlace, Opening, ResolvedVersion, opening::Opener};

/// Returns a version as it is served by cells; `None` if its graph has no recurrent layers or stays whole. The
/// log says why it stays whole.
///
/// # Errors
/// Returns the reason if the program cannot be read or opened at all, or would stay whole where the configuration asks
/// for cells.
pub(super) fn by_cells(resolved: &ResolvedVersion, opener: &Opener<'_>) -> Result<Option<ResolvedVersion>, LoadError> {
    if !matches!(resolved.opening, Opening::RecurrentLayers | Opening::Batches) {
        return Ok(None);
    }
    let asked = match &resolved.knobs.policy {
        Policy::Cellular(knobs) => Some(knobs),
        _ => None,
    };
    let program = &resolved.program;
    let graph = program.read()?;
    if !is_recurrent_model(&graph) {
        return match asked {
            Some(_) => Err(stays_whole(resolved, "it has no recurrent layers (LSTM, GRU, RNN) and no Scan")),
            None => Ok(None),
        };
    }
    let name = &resolved.spec.name;
    if resolved.opening == Opening::Batches {
        let message = "dynamic_batching serves recurrent layers as a whole. By cells requests join and leave at each \
                       step: remove dynamic_batching, or add parameters { key: \"batching.policy\" value { \
                       string_value: \"cellular\" } }";
        info!(model = name, "{message}");
        return Ok(None);
    }
    let whole = |reason: LoadError| {
        if asked.is_some() {
            return Err(stays_whole(resolved, &reason.to_string()));
        }
        info!(model = name, reason = reason.to_string(), "recurrent layers are served as a whole");
        Ok(None)
    };
    if let Err(reason) = has_rows(&resolved.spec) {
        return whole(reason);
    }
    let model = opener.open(program, graph, &StageRequest::default())?;
    let opened = open_sealed(&model).map_err(LoadError::graph).and_then(|(opened, programs)| {
        let steps = Expression::Length(input_of(&resolved.spec, &opened.steps_of)?);
        let nodes = |kind| match kind {
            SegmentKind::Stage => Nodes::Stage,
            SegmentKind::Chain { .. } | SegmentKind::Decode => Nodes::Chain { steps: steps.clone(), chunks: true },
        };
        let mut unfold = unfolding(&opened.segments, nodes, &resolved.spec)?;
        unfold.limits = vec![Limit::Length { input: input_of(&resolved.spec, &opened.steps_of)?, most: MOST_STEPS }];
        let segments = opened.segments.iter().map(|segment| segment.name.as_str()).collect::<Vec<_>>().join(", ");
        let (layers, steps_of) = (opened.layers, opened.steps_of.as_str());
        info!(model = name, layers, segments, steps_of, "recurrent layers are served by cells");
        let policy = Policy::Cellular(asked.cloned().unwrap_or_default());
        Ok(with_cells(resolved, policy, unfold, programs))
    });
    opened.map_or_else(whole, |resolved| Ok(Some(resolved)))
}

/// Returns a decoder as it is served by cells: a stage for the prompt, and a loop over the tokens.
///
/// # Errors
/// Returns the reason if the program cannot be read or opened.
pub(super) fn decoder(
    resolved: &ResolvedVersion,
    generation: &Generation,
    opener: &Opener<'_>,
) -> Result<ResolvedVersion, LoadError> {
    let program = &resolved.program;
    let model = opener.open(program, program.read()?, &StageRequest::default())?;
    let (decoder, programs) = decoder::open_sealed(&model, &generation.ends)
        .map_err(|reason| LoadError::graph(format!("it cannot generate: {reason}")))
        .map_err(|error| error.within(LoadPlace::Program(program.file.clone())))?;
    let name = &resolved.spec.name;
    let (most, ends) = (generation.max_tokens, &generation.ends);
    // A graph with a table of positions knows their number itself.
    let positions = decoder.positions.unwrap_or(generation.max_length);
    let longest = generation.max_length.min(positions).max(2);
    info!(model = name, max_tokens = most, max_length = longest, end_tokens = ?ends, "a decoder is served by cells");
    let number = |number: u64| Expression::Number(number);
    let minus = |left, right| Expression::Joined(Operator::Minus, Box::new([left, right]));
    // The smaller one of max_tokens and max_length − prompt, because differences are at least 0.
    let left = minus(number(longest), Expression::Length(0));
    let max_steps = minus(number(most), minus(number(most), left));
    let until = decoder.ended.map(|ended| (ended, 1));
    let decode = Nodes::Decode { max_steps, until, expected_steps: None };
    let nodes = |kind| match kind {
        SegmentKind::Decode => decode.clone(),
        SegmentKind::Stage | SegmentKind::Chain { .. } => Nodes::Stage,
    };
    let mut unfold = unfolding(&decoder.segments, nodes, &resolved.spec)?;
    unfold.limits = vec![Limit::Length { input: 0, most: longest - 1 }];
    let max_tokens = input_of(&resolved.spec, MAX_TOKENS)?;
    for (number, segment) in unfold.segments.iter_mut().enumerate() {
        let is_loop = segment.nodes != Nodes::Stage;
        unfold.limits.extend(is_loop.then_some(Limit::Steps { segment: number, input: max_tokens }));
        segment.streams = is_loop && resolved.spec.decoupled;
        segment.emits.iter_mut().filter(|_| is_loop).for_each(|emit| emit.name = OUTPUT.to_owned());
    }
    Ok(with_cells(resolved, resolved.knobs.policy.clone(), unfold, programs))
}

/// Says why a graph cannot be served as its configuration asks.
pub(super) fn stays_whole(resolved: &ResolvedVersion, reason: &str) -> LoadError {
    let program = resolved.program.file.display();
    LoadError::graph(format!(
        "the policy 'cellular' needs recurrent layers in the graph that can run by steps, or 'cells' and 'unfold', but \
         '{program}' stays whole: {reason}"
    ))
}

/// Checks that requests have rows, and all inputs.
fn has_rows(spec: &ModelSpec) -> Result<(), LoadError> {
    if !spec.has_batch_axis() {
        return Err(LoadError::settings("the model has no batch axis"));
    }
    match spec.inputs.iter().find(|input| input.optional) {
        Some(input) => Err(LoadError::settings(format!("the input '{}' may be left out", input.name))),
        None => Ok(()),
    }
}

fn with_cells(
    resolved: &ResolvedVersion,
    policy: Policy,
    unfold: UnfoldRequest,
    programs: Vec<SealedModel>,
) -> ResolvedVersion {
    let stages = u16::try_from(programs.len()).map_or(resolved.knobs.stages.clone(), StageKnobs::chain);
    let knobs = Knobs {
        max_batch_rows: unfold.max_rows(),
        mergeable: true,
        // Lanes of a CPU share its cores.
        max_in_flight: 1,
        stages,
        policy,
        ..resolved.knobs.clone()
    };
    ResolvedVersion {
        knobs,
        cells: programs.iter().map(|_| resolved.program.clone()).collect(),
        automatic: Automatic { batch_sizes: resolved.automatic.is_any(), ..Automatic::default() },
        unfold: Some(unfold),
        opened: programs,
        ..resolved.clone()
    }
}

/// Describes how a request unfolds into the segments of an opened model.
///
/// # Errors
/// If the configuration lacks an input or output of the graph.
fn unfolding(
    opened: &[OpenedSegment],
    nodes: impl Fn(SegmentKind) -> NodesRequest,
    spec: &ModelSpec,
) -> Result<UnfoldRequest, LoadError> {
    let input = |name: &str| input_of(spec, name);
    // Clients get a number of each row as one element, as completion declares it.
    let is_other = |reshape: &Dims| !reshape.is_empty();
    if let Some(output) = spec.outputs.iter().find(|output| output.reshape.as_ref().is_some_and(is_other)) {
        return Err(LoadError::settings(format!("the configuration reshapes the output '{}'", output.name)));
    }
    let count = opened.len();
    let cells = opened.iter().enumerate().map(|(number, segment)| CellRequest {
        name: segment.name.clone(),
        program: String::new(),
        batch_sizes: None,
        min_followup: None,
        priority: u32::try_from(count - number).unwrap_or(u32::MAX),
        tensors: BTreeMap::new(),
    });
    let segments = opened.iter().enumerate().map(|(number, segment)| {
        Ok(SegmentRequest {
            name: segment.name.clone(),
            cells: smallvec![number],
            nodes: nodes(segment.kind),
            sources: sources(segment, opened, &input)?,
            emits: segment
                .emits
                .iter()
                .map(|emit| {
                    let which = if emit.is_by_steps { EmitRange::All } else { EmitRange::Last };
                    Emit { name: emit.name.clone(), output: emit.output.clone(), which }
                })
                .collect(),
            emits_all: false,
            streams: false,
        })
    });
    let segments = segments.collect::<Result<_, LoadError>>()?;
    Ok(UnfoldRequest { cells: cells.collect(), segments, lengths: BTreeMap::new(), limits: Vec::new() })
}

/// Returns the number of an input of the graph.
fn input_of(spec: &ModelSpec, name: &str) -> Result<usize, LoadError> {
    let known = spec.inputs.iter().position(|input| input.name == name && input.reshape.is_none());
    known.ok_or_else(|| LoadError::settings(format!("the configuration lacks or reshapes the input '{name}'")))
}

fn sources(
    segment: &OpenedSegment,
    all: &[OpenedSegment],
    input: &dyn Fn(&str) -> Result<usize, LoadError>,
) -> Result<BTreeMap<String, SourceRequest>, LoadError> {
    let reversed = segment.kind == SegmentKind::Chain { reverse: true };
    let tensor = |of: &SegmentTensor| match of {
        SegmentTensor::Input(name) => input(name).map(Tensor::Input),
        SegmentTensor::Emitted { segment, name } => {
            let emit = all[*segment].emits.iter().position(|emit| emit.name == *name);
            let emit = emit.ok_or_else(|| LoadError::graph(format!("'{name}' is emitted by no segment")))?;
            Ok(Tensor::Emitted(Emitted { segment: *segment, emit }))
        }
    };
    let source = |source: &SegmentSource| -> Result<SourceRequest, LoadError> {
        Ok(match source {
            SegmentSource::Steps(of) => CellInputSource::Step { of: tensor(of)?, reversed },
            SegmentSource::Whole(of) => CellInputSource::Whole(tensor(of)?),
            SegmentSource::State(output) => CellInputSource::Carried {
                output: output.clone(),
                start: Start::Row(Constant::Value(0.0)),
                is_kept: false,
            },
            SegmentSource::Lengths => CellInputSource::Steps,
            SegmentSource::Length(of) => CellInputSource::Length(tensor(of)?),
            SegmentSource::Fed { output, start } => CellInputSource::Carried {
                output: output.clone(),
                start: Start::Tensor(tensor(start)?),
                is_kept: false,
            },
            SegmentSource::Grown(output) => CellInputSource::Grown { output: output.clone() },
            SegmentSource::GrownLength => CellInputSource::GrownLength,
        })
    };
    segment.inputs.iter().map(|own| Ok((own.name.clone(), source(&own.source)?))).collect()
}
