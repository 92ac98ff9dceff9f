//! Recurrent graphs in the shapes that exporters give them.

use paternoster_model::DataType;
use paternoster_onnx::{
    Model, PortDim,
    build::{Graph, Value},
};

/// Features of a step, and the length of a state.
pub(crate) const FEATURES: usize = 5;
pub(crate) const HIDDEN: usize = 6;

/// A graph, and its inputs for one request: −1 for the number of steps.
pub(crate) struct Exported {
    pub(crate) name: String,
    pub(crate) model: Model,
    pub(crate) inputs: Vec<(String, DataType, Vec<i64>)>,
}

impl Exported {
    pub(crate) fn new(name: impl Into<String>, graph: Graph, inputs: &[(&str, DataType, &[i64])]) -> Self {
        let inputs = inputs.iter().map(|(name, datatype, dims)| ((*name).to_owned(), *datatype, dims.to_vec()));
        Self { name: name.into(), model: graph.finish().expect("the graph is sound"), inputs: inputs.collect() }
    }
}

/// A repeatable sequence of pseudo-random numbers.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as u32) % limit
    }

    /// Returns a number from −0.7 to 0.7.
    pub(crate) fn real(&mut self) -> f32 {
        self.below(14_001) as f32 / 10_000.0 - 0.7
    }
}

pub(crate) fn weight(graph: &mut Graph, noise: &mut Noise, name: &str, dims: &[usize]) -> Value {
    let values: Vec<f32> = (0..dims.iter().product()).map(|_| noise.real()).collect();
    graph.constant(name, dims, &values)
}

pub(crate) fn batch_input(graph: &mut Graph) -> Value {
    graph.input("x", DataType::Fp32, &["batch".into(), "time".into(), (FEATURES as i64).into()])
}

pub(crate) const X: (&str, DataType, &[i64]) = ("x", DataType::Fp32, &[-1, FEATURES as i64]);

/// A recurrent layer.
#[derive(Clone)]
pub(crate) struct Layer {
    op: &'static str,
    direction: &'static str,
    features: usize,
    peepholes: bool,
    clip: bool,
    batch_first: bool,
    seed: u64,
    /// Before the names of weights.
    name: String,
}

/// What a layer gives: all outputs, then the last states.
pub(crate) struct Made {
    pub(crate) every: Value,
    last: Value,
}

impl Layer {
    pub(crate) fn new(op: &'static str) -> Self {
        let (direction, features, name) = ("forward", FEATURES, String::new());
        Self { op, direction, features, peepholes: false, clip: false, batch_first: false, seed: 1, name }
    }

    pub(crate) fn direction(self, direction: &'static str) -> Self {
        Self { direction, ..self }
    }

    pub(crate) fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    pub(crate) fn with_peepholes(self) -> Self {
        Self { peepholes: true, ..self }
    }

    pub(crate) fn with_clip(self) -> Self {
        Self { clip: true, ..self }
    }

    /// Sets what the names of its weights begin with.
    pub(crate) fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    pub(crate) fn features(self, features: usize) -> Self {
        Self { features, ..self }
    }

    fn directions(&self) -> usize {
        if self.direction == "bidirectional" { 2 } else { 1 }
    }

    pub(crate) fn add(&self, graph: &mut Graph, x: &Value, lengths: Option<&Value>, starts: &[Value]) -> Made {
        let mut noise = Noise::new(self.seed);
        let (gates, states) = match self.op {
            "LSTM" => (4 * HIDDEN, 2),
            "GRU" => (3 * HIDDEN, 1),
            _ => (HIDDEN, 1),
        };
        let count = self.directions();
        let name = |rest: &str| format!("{}{rest}", self.name);
        let w = weight(graph, &mut noise, &name("W"), &[count, gates, self.features]);
        let r = weight(graph, &mut noise, &name("R"), &[count, gates, HIDDEN]);
        let b = weight(graph, &mut noise, &name("B"), &[count, 2 * gates]);
        let p = self.peepholes.then(|| weight(graph, &mut noise, &name("P"), &[count, 3 * HIDDEN]));
        let mut node = graph.op(self.op, &[x, &w, &r, &b]);
        node = match lengths {
            Some(lengths) => node.with(lengths),
            None => node.skip(),
        };
        for state in 0..states {
            node = match starts.get(state) {
                Some(start) => node.with(start),
                None => node.skip(),
            };
        }
        if let Some(p) = &p {
            node = node.with(p);
        }
        node = node.attr("hidden_size", HIDDEN as i64).attr("direction", self.direction);
        if self.clip {
            node = node.attr("clip", 0.4_f32);
        }
        if self.op == "GRU" {
            node = node.attr("linear_before_reset", 1_i64);
        }
        if self.batch_first {
            node = node.attr("layout", 1_i64);
        }
        let [every, last] = node.named(&name("layer")).values();
        Made { every, last }
    }
}

pub(crate) fn transposed(graph: &mut Graph, value: &Value, order: &[i64]) -> Value {
    graph.op("Transpose", &[value]).attr("perm", order).value()
}

fn reshaped(graph: &mut Graph, value: &Value, shape: &[i64]) -> Value {
    let shape = graph.literal(shape);
    graph.op("Reshape", &[value, &shape]).value()
}

/// The zeros that PyTorch's exporter gives a layer of `count` directions over all layers: as many rows as the input.
fn torch_zeros(graph: &mut Graph, x: &Value, count: i64) -> Value {
    let shape = graph.op("Shape", &[x]).value();
    let one = graph.scalar(1_i64);
    let rows = graph.op("Gather", &[&shape, &one]).attr("axis", 0_i64).value();
    let axes = graph.literal(&[0_i64]);
    let rows = graph.op("Unsqueeze", &[&rows, &axes]).value();
    let (count, hidden) = (graph.literal(&[count]), graph.literal(&[HIDDEN as i64]));
    let shape = graph.op("Concat", &[&count, &rows, &hidden]).attr("axis", 0_i64).value();
    let zero = graph.scalar(0.0_f32);
    graph.op("Expand", &[&zero, &shape]).value()
}

/// The output of a layer as PyTorch's exporter joins its directions: [time, batch, directions × hidden].
fn torch_joined(graph: &mut Graph, layer: &Layer, every: &Value) -> Value {
    if layer.directions() == 1 {
        let axes = graph.literal(&[1_i64]);
        return graph.op("Squeeze", &[every, &axes]).value();
    }
    let turned = transposed(graph, every, &[0, 2, 1, 3]);
    reshaped(graph, &turned, &[0, 0, -1])
}

fn torch(graph: &mut Graph, layer: &Layer) -> (Value, Made) {
    let x = batch_input(graph);
    let x = transposed(graph, &x, &[1, 0, 2]);
    let zeros = torch_zeros(graph, &x, layer.directions() as i64);
    let made = layer.add(graph, &x, None, &[zeros.clone(), zeros]);
    let joined = torch_joined(graph, layer, &made.every);
    (transposed(graph, &joined, &[1, 0, 2]), made)
}

pub(crate) fn linear(graph: &mut Graph, x: &Value, name: &str, from: usize, to: usize) -> Value {
    let mut noise = Noise::new(from as u64 + to as u64);
    let (w, b) = (
        weight(graph, &mut noise, &format!("{name}.w"), &[from, to]),
        weight(graph, &mut noise, &format!("{name}.b"), &[to]),
    );
    let product = graph.op("MatMul", &[x, &w]).value();
    graph.op("Add", &[&b, &product]).value()
}

pub(crate) fn named_output(graph: &mut Graph, value: &Value, name: &str, dims: &[PortDim]) {
    let output = graph.op("Identity", &[value]).named(name).value();
    graph.output(&output, DataType::Fp32, dims);
}

/// A classifier: `self.linear(self.rnn(x)[0][:, -1])`.
pub(crate) fn last_step(layer: &Layer) -> Exported {
    let mut graph = Graph::new("classifier");
    let (every, _) = torch(&mut graph, layer);
    let last = graph.scalar(-1_i64);
    let last = graph.op("Gather", &[&every, &last]).attr("axis", 1_i64).value();
    let y = linear(&mut graph, &last, "head", layer.directions() * HIDDEN, 3);
    named_output(&mut graph, &y, "y", &["batch".into(), 3.into()]);
    Exported::new(format!("last step of {}", layer.op), graph, &[X])
}

/// A tagger: a response for each step.
pub(crate) fn every_step(layer: &Layer) -> Exported {
    let mut graph = Graph::new("tagger");
    let (every, _) = torch(&mut graph, layer);
    let y = linear(&mut graph, &every, "head", layer.directions() * HIDDEN, 3);
    let y = graph.op("Softmax", &[&y]).attr("axis", -1_i64).value();
    named_output(&mut graph, &y, "y", &["batch".into(), "time".into(), 3.into()]);
    Exported::new(format!("every step of {} {}", layer.direction, layer.op), graph, &[X])
}

/// A stack of layers, whose starts are slices of one tensor of zeros.
pub(crate) fn stack(layers: usize, direction: &'static str) -> Exported {
    let mut graph = Graph::new("stack");
    let x = batch_input(&mut graph);
    let x = transposed(&mut graph, &x, &[1, 0, 2]);
    let directions = Layer::new("LSTM").direction(direction).directions();
    let zeros = torch_zeros(&mut graph, &x, (layers * directions) as i64);
    let (mut y, mut features) = (x, FEATURES);
    for number in 0..layers {
        let first = (number * directions) as i64;
        let (start, end) = (graph.literal(&[first]), graph.literal(&[first + directions as i64]));
        let axes = graph.literal(&[0_i64]);
        let zeros = graph.op("Slice", &[&zeros, &start, &end, &axes]).value();
        let seed = number as u64 + 1;
        let layer = Layer { features, seed, name: format!("l{number}."), ..Layer::new("LSTM").direction(direction) };
        let made = layer.add(&mut graph, &y, None, &[zeros.clone(), zeros]);
        y = torch_joined(&mut graph, &layer, &made.every);
        features = directions * HIDDEN;
    }
    let y = transposed(&mut graph, &y, &[1, 0, 2]);
    named_output(&mut graph, &y, "y", &["batch".into(), "time".into(), (features as i64).into()]);
    Exported::new(format!("stack of {layers} {direction}"), graph, &[X])
}

/// A layer whose first states are learned, the same for every request.
pub(crate) fn learned_start() -> Exported {
    let mut graph = Graph::new("learned");
    let x = batch_input(&mut graph);
    let x = transposed(&mut graph, &x, &[1, 0, 2]);
    let shape = graph.op("Shape", &[&x]).value();
    let one = graph.literal(&[1_i64]);
    let rows = graph.op("Gather", &[&shape, &one]).attr("axis", 0_i64).value();
    let hidden = graph.literal(&[HIDDEN as i64]);
    let shape = graph.op("Concat", &[&one, &rows, &hidden]).attr("axis", 0_i64).value();
    let mut noise = Noise::new(9);
    let starts = ["h0", "c0"].map(|name| {
        let start = weight(&mut graph, &mut noise, name, &[1, 1, HIDDEN]);
        graph.op("Expand", &[&start, &shape]).value()
    });
    let layer = Layer::new("LSTM");
    let made = layer.add(&mut graph, &x, None, &starts);
    let y = torch_joined(&mut graph, &layer, &made.every);
    let y = transposed(&mut graph, &y, &[1, 0, 2]);
    named_output(&mut graph, &y, "y", &["batch".into(), "time".into(), (HIDDEN as i64).into()]);
    Exported::new("learned start", graph, &[X])
}

/// A classifier over the last states of all directions, with an output for the states too.
pub(crate) fn last_states(direction: &'static str) -> Exported {
    let mut graph = Graph::new("states");
    let layer = Layer::new("GRU").direction(direction);
    let (_, made) = torch(&mut graph, &layer);
    let turned = transposed(&mut graph, &made.last, &[1, 0, 2]);
    let width = layer.directions() * HIDDEN;
    let flat = reshaped(&mut graph, &turned, &[-1, width as i64]);
    let y = linear(&mut graph, &flat, "head", width, 3);
    named_output(&mut graph, &y, "y", &["batch".into(), 3.into()]);
    named_output(&mut graph, &flat, "state", &["batch".into(), (width as i64).into()]);
    Exported::new(format!("last states {direction}"), graph, &[X])
}

/// The mean over all steps.
pub(crate) fn pooled() -> Exported {
    let mut graph = Graph::new("pooled");
    let (every, _) = torch(&mut graph, &Layer::new("LSTM"));
    let mean = graph.op("ReduceMean", &[&every]).attr("axes", [1]).attr("keepdims", 0_i64).value();
    let y = linear(&mut graph, &mean, "head", HIDDEN, 3);
    named_output(&mut graph, &y, "y", &["batch".into(), 3.into()]);
    Exported::new("pooled", graph, &[X])
}

/// Attention over all steps, and a residual from the input.
pub(crate) fn attention() -> Exported {
    let mut graph = Graph::new("attention");
    let (every, _) = torch(&mut graph, &Layer::new("LSTM"));
    let scores = linear(&mut graph, &every, "score", HIDDEN, 1);
    let weights = graph.op("Softmax", &[&scores]).attr("axis", 1_i64).value();
    let weighted = graph.op("Mul", &[&every, &weights]).value();
    let axes = graph.literal(&[1_i64]);
    let context = graph.op("ReduceSum", &[&weighted, &axes]).attr("keepdims", 1_i64).value();
    let mixed = graph.op("Add", &[&every, &context]).value();
    named_output(&mut graph, &mixed, "y", &["batch".into(), "time".into(), (HIDDEN as i64).into()]);
    Exported::new("attention", graph, &[X])
}

/// A table of positions is added to the inputs.
pub(crate) fn positions() -> Exported {
    let mut graph = Graph::new("positions");
    let x = batch_input(&mut graph);
    let shape = graph.op("Shape", &[&x]).value();
    let (zero, one) = (graph.scalar(0_i64), graph.scalar(1_i64));
    let length = graph.op("Gather", &[&shape, &one]).attr("axis", 0_i64).value();
    let range = graph.op("Range", &[&zero, &length, &one]).value();
    let table = weight(&mut graph, &mut Noise::new(3), "table", &[64, FEATURES]);
    let positions = graph.op("Gather", &[&table, &range]).attr("axis", 0_i64).value();
    let x = graph.op("Add", &[&x, &positions]).value();
    let turned = transposed(&mut graph, &x, &[1, 0, 2]);
    let layer = Layer::new("LSTM");
    let made = layer.add(&mut graph, &turned, None, &[]);
    let y = torch_joined(&mut graph, &layer, &made.every);
    let y = transposed(&mut graph, &y, &[1, 0, 2]);
    named_output(&mut graph, &y, "y", &["batch".into(), "time".into(), (HIDDEN as i64).into()]);
    Exported::new("positions", graph, &[X])
}

/// Convolutions over the steps come first.
pub(crate) fn convolved() -> Exported {
    let mut graph = Graph::new("convolved");
    let x = batch_input(&mut graph);
    let turned = transposed(&mut graph, &x, &[0, 2, 1]);
    let filter = weight(&mut graph, &mut Noise::new(4), "filter", &[FEATURES, FEATURES, 3]);
    let y = graph.op("Conv", &[&turned, &filter]).attr("pads", [1, 1]).attr("kernel_shape", [3]).value();
    let y = graph.op("Relu", &[&y]).value();
    let y = transposed(&mut graph, &y, &[2, 0, 1]);
    let layer = Layer::new("GRU");
    let made = layer.add(&mut graph, &y, None, &[]);
    let y = torch_joined(&mut graph, &layer, &made.every);
    let y = transposed(&mut graph, &y, &[1, 0, 2]);
    named_output(&mut graph, &y, "y", &["batch".into(), "time".into(), (HIDDEN as i64).into()]);
    Exported::new("convolved", graph, &[X])
}

/// The last state of one layer is joined to each step of another one's input.
pub(crate) fn context() -> Exported {
    let mut graph = Graph::new("context");
    let x = batch_input(&mut graph);
    let turned = transposed(&mut graph, &x, &[1, 0, 2]);
    let encoder = Layer { name: "encoder.".to_owned(), ..Layer::new("LSTM") };
    let made = encoder.add(&mut graph, &turned, None, &[]);
    let context = linear(&mut graph, &made.last, "bridge", HIDDEN, FEATURES);
    let joined = graph.op("Add", &[&turned, &context]).value();
    let decoder = Layer { name: "decoder.".to_owned(), seed: 2, ..Layer::new("LSTM") };
    let made = decoder.add(&mut graph, &joined, None, &[]);
    let y = torch_joined(&mut graph, &decoder, &made.every);
    let y = transposed(&mut graph, &y, &[1, 0, 2]);
    named_output(&mut graph, &y, "y", &["batch".into(), "time".into(), (HIDDEN as i64).into()]);
    Exported::new("context", graph, &[X])
}

/// As tf2onnx writes a Keras model: lengths of all rows, starts that are tiled zeros, and `Squeeze` after the layer.
pub(crate) fn keras(every_step: bool) -> Exported {
    let mut graph = Graph::new("keras");
    let words = graph.input("words", DataType::Int64, &["unk__1".into(), "unk__2".into()]);
    let table = weight(&mut graph, &mut Noise::new(3), "embedding", &[11, FEATURES]);
    let x = graph.op("Gather", &[&table, &words]).value();
    let x = transposed(&mut graph, &x, &[1, 0, 2]);
    let shape = graph.op("Shape", &[&x]).value();
    let [zero, one, two] = [0_i64, 1, 2].map(|number| graph.literal(&[number]));
    let steps = graph.op("Slice", &[&shape, &zero, &one, &zero]).value();
    let rows = graph.op("Slice", &[&shape, &one, &two, &zero]).value();
    let lengths = graph.op("Tile", &[&steps, &rows]).value();
    let lengths = graph.op("Cast", &[&lengths]).attr("to", 6_i64).value();
    let hidden = graph.literal(&[HIDDEN as i64]);
    let shape = graph.op("Concat", &[&rows, &hidden]).attr("axis", 0_i64).value();
    let start = graph.op("ConstantOfShape", &[&shape]).value();
    let start = graph.op("Unsqueeze", &[&start, &zero]).value();
    let layer = Layer::new("LSTM");
    let made = layer.add(&mut graph, &x, Some(&lengths), &[start.clone(), start]);
    if every_step {
        let y = graph.op("Squeeze", &[&made.every, &one]).value();
        let y = transposed(&mut graph, &y, &[1, 0, 2]);
        let y = linear(&mut graph, &y, "dense", HIDDEN, 3);
        named_output(&mut graph, &y, "y", &["unk__1".into(), "unk__2".into(), 3.into()]);
    } else {
        let y = graph.op("Squeeze", &[&made.last, &zero]).value();
        let y = linear(&mut graph, &y, "dense", HIDDEN, 3);
        named_output(&mut graph, &y, "y", &["unk__1".into(), 3.into()]);
    }
    Exported::new("keras", graph, &[("words", DataType::Int64, &[-1])])
}

/// Two inputs by steps, and one that is the same for all steps.
pub(crate) fn conditioned() -> Exported {
    let mut graph = Graph::new("conditioned");
    let words = graph.input("words", DataType::Int64, &["batch".into(), "time".into()]);
    let x = batch_input(&mut graph);
    let speaker = graph.input("speaker", DataType::Fp32, &["batch".into(), (FEATURES as i64).into()]);
    let table = weight(&mut graph, &mut Noise::new(3), "embedding", &[11, FEATURES]);
    let embedded = graph.op("Gather", &[&table, &words]).value();
    let axes = graph.literal(&[1_i64]);
    let speaker = graph.op("Unsqueeze", &[&speaker, &axes]).value();
    let sum = graph.op("Add", &[&embedded, &x]).value();
    let sum = graph.op("Add", &[&sum, &speaker]).value();
    let turned = transposed(&mut graph, &sum, &[1, 0, 2]);
    let layer = Layer::new("LSTM");
    let made = layer.add(&mut graph, &turned, None, &[]);
    let y = torch_joined(&mut graph, &layer, &made.every);
    let y = transposed(&mut graph, &y, &[1, 0, 2]);
    let y = graph.op("Concat", &[&y, &sum]).attr("axis", -1_i64).value();
    named_output(&mut graph, &y, "y", &["batch".into(), "time".into(), ((HIDDEN + FEATURES) as i64).into()]);
    let speaker: (&str, DataType, &[i64]) = ("speaker", DataType::Fp32, &[FEATURES as i64]);
    Exported::new("conditioned", graph, &[("words", DataType::Int64, &[-1]), X, speaker])
}

/// A layer of either layout, with outputs of all steps and of the last one.
pub(crate) fn batch_first(direction: &'static str, batch_first: bool) -> Exported {
    let mut graph = Graph::new("layout");
    let mut x = batch_input(&mut graph);
    if !batch_first {
        x = transposed(&mut graph, &x, &[1, 0, 2]);
    }
    let layer = Layer { batch_first, ..Layer::new("LSTM").direction(direction) };
    let mut made = layer.add(&mut graph, &x, None, &[]);
    if !batch_first {
        made.every = transposed(&mut graph, &made.every, &[2, 0, 1, 3]);
        made.last = transposed(&mut graph, &made.last, &[1, 0, 2]);
    }
    let count = layer.directions() as i64;
    named_output(&mut graph, &made.every, "every", &["batch".into(), "time".into(), count.into(), 6.into()]);
    named_output(&mut graph, &made.last, "last", &["batch".into(), count.into(), 6.into()]);
    Exported::new(format!("layout {direction} {batch_first}"), graph, &[X])
}

/// A classifier of an operator set in which axes are attributes.
pub(crate) fn older(opset: i64) -> Exported {
    let mut graph = Graph::new("older");
    let x = batch_input(&mut graph);
    let x = transposed(&mut graph, &x, &[1, 0, 2]);
    let layer = Layer::new("LSTM");
    let made = layer.add(&mut graph, &x, None, &[]);
    let every = graph.op("Squeeze", &[&made.every]).attr("axes", [1]).value();
    let every = transposed(&mut graph, &every, &[1, 0, 2]);
    let (start, end, axes) = (graph.literal(&[-1_i64]), graph.literal(&[i64::MAX]), graph.literal(&[1_i64]));
    let last = if opset < 10 {
        let start = graph.literal(&[-1_i64]);
        graph.op("Gather", &[&every, &start]).attr("axis", 1_i64).value()
    } else {
        graph.op("Slice", &[&every, &start, &end, &axes]).value()
    };
    let last = graph.op("Squeeze", &[&last]).attr("axes", [1]).value();
    let y = linear(&mut graph, &last, "head", HIDDEN, 3);
    named_output(&mut graph, &y, "y", &["batch".into(), 3.into()]);
    let mut exported = Exported::new(format!("opset {opset}"), graph, &[X]);
    exported.model.0.opset_import[0].version = Some(opset);
    exported
}
