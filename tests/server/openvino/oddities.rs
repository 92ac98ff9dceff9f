//! Graphs whose outputs an engine may not write where it is told: inputs that are outputs, operators that do nothing,
//! constants, outputs without elements. Each runs in memory that an earlier request has stained, and both engines must
//! give its exact answer.

use std::sync::Arc;

use paternoster_device::BufferPool;
use paternoster_engine::{Batch, BatchInput, OnnxEngine, Precision, Program, ProgramPort, StopSignal};
use paternoster_model::{DataType, Dims};
use paternoster_onnx::{
    Model, PortDim, Signature,
    build::{Graph, Value},
    pb,
};
use paternoster_testing::{openvino::openvino, runtime::runtime};

use crate::openvino::{
    rig::sealed,
    stain::{assert_clean, stain, stained_pool},
};

const WIDTH: i64 = 4;

/// Returns an output from the rows of the input `A`: its shape and its numbers.
type Expected = fn(&[f32]) -> (Vec<i64>, Vec<u8>);

/// A graph that reads `A`, FP32 `[batch, 4]`.
struct Oddity {
    name: &'static str,
    model: Model,
    outputs: Vec<(&'static str, Expected)>,
}

fn rows(numbers: Vec<f32>) -> (Vec<i64>, Vec<u8>) {
    (vec![numbers.len() as i64 / WIDTH, WIDTH], bytes(&numbers))
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn same(input: &[f32]) -> (Vec<i64>, Vec<u8>) {
    rows(input.to_vec())
}

fn negative(input: &[f32]) -> (Vec<i64>, Vec<u8>) {
    rows(input.iter().map(|number| -number).collect())
}

fn in_pairs(input: &[f32]) -> (Vec<i64>, Vec<u8>) {
    (vec![input.len() as i64 / WIDTH, 2, 2], bytes(input))
}

fn constant(_: &[f32]) -> (Vec<i64>, Vec<u8>) {
    (vec![3], bytes(&[1.0, 2.0, 3.0]))
}

fn shape(input: &[f32]) -> (Vec<i64>, Vec<u8>) {
    (vec![2], [input.len() as i64 / WIDTH, WIDTH].into_iter().flat_map(i64::to_le_bytes).collect())
}

fn batch() -> [PortDim; 2] {
    [PortDim::from("batch"), PortDim::from(WIDTH)]
}

/// Builds a graph. `build` returns the outputs.
fn oddity(name: &'static str, outputs: &[(&'static str, Expected)], build: impl FnOnce(&mut Graph, &Value)) -> Oddity {
    let mut graph = Graph::new(name);
    let input = graph.input("A", DataType::Fp32, &batch());
    build(&mut graph, &input);
    for (name, expected) in outputs {
        let (shape, _) = expected(&[0.0; 8]);
        let datatype = if *name == "shape" { DataType::Int64 } else { DataType::Fp32 };
        let by_rows = *name != "shape" && *name != "K" && *name != "L";
        let dims = shape.iter().enumerate().map(|(axis, length)| match axis {
            0 if by_rows => PortDim::from("batch"),
            _ => PortDim::from(*length),
        });
        graph.output(&Value::by_name(name), datatype, &dims.collect::<Vec<_>>());
    }
    Oddity { name, model: graph.finish().expect("the graph is sound"), outputs: outputs.to_vec() }
}

/// A graph of one operator on `A` alone, which does nothing.
fn idle(name: &'static str, operator: &'static str) -> Oddity {
    oddity(name, &[("B", same)], |graph, input| {
        let node = graph.op(operator, &[input]).named("B");
        match operator {
            "Cast" => node.attr("to", 1),
            "Concat" => node.attr("axis", 1),
            _ => node,
        }
        .value();
    })
}

fn oddities() -> Vec<Oddity> {
    let neg = |graph: &mut Graph, input: &Value| graph.op("Neg", &[input]).named("B").value();
    let mut all = vec![
        oddity("an input that is an output", &[("B", negative), ("A", same)], |graph, input| {
            neg(graph, input);
        }),
        oddity("an input that is the first output", &[("A", same), ("B", negative)], |graph, input| {
            neg(graph, input);
        }),
        oddity("an input that is the only output", &[("A", same)], |graph, input| {
            neg(graph, input);
        }),
        oddity("a chain of identities", &[("B", same), ("C", same)], |graph, input| {
            let first = graph.op("Identity", &[input]).named("B").value();
            graph.op("Identity", &[&first]).named("C").value();
        }),
        oddity("an output of two names", &[("B", negative), ("C", negative)], |graph, input| {
            let first = neg(graph, input);
            graph.op("Identity", &[&first]).named("C").value();
        }),
        oddity("an output and its dropout", &[("B", negative), ("C", negative)], |graph, input| {
            let first = neg(graph, input);
            graph.op("Dropout", &[&first]).named("C").value();
        }),
        oddity(
            "an input, its dropout and its negative",
            &[("A", same), ("D", same), ("B", negative)],
            |graph, input| {
                graph.op("Dropout", &[input]).named("D").value();
                neg(graph, input);
            },
        ),
        oddity("the negative of a dropout", &[("D", same), ("B", negative)], |graph, input| {
            let kept = graph.op("Dropout", &[input]).named("D").value();
            neg(graph, &kept);
        }),
        oddity("a reshaped input", &[("R", in_pairs)], |graph, input| {
            let to = graph.literal(&[0_i64, 2, 2]);
            graph.op("Reshape", &[input, &to]).named("R").value();
        }),
        oddity("an initializer that is an output", &[("B", negative), ("K", constant)], |graph, input| {
            neg(graph, input);
            graph.constant("K", &[3], &[1.0_f32, 2.0, 3.0]);
        }),
        oddity("a constant of two names", &[("K", constant), ("B", negative), ("L", constant)], |graph, input| {
            neg(graph, input);
            let first = graph.constant("K", &[3], &[1.0_f32, 2.0, 3.0]);
            graph.op("Identity", &[&first]).named("L").value();
        }),
        oddity("a folded constant", &[("K", constant), ("B", negative)], |graph, input| {
            neg(graph, input);
            let half = graph.literal(&[0.5_f32, 1.0, 1.5]);
            graph.op("Add", &[&half, &half]).named("K").value();
        }),
        oddity("the shape of an input", &[("shape", shape), ("B", negative)], |graph, input| {
            graph.op("Shape", &[input]).named("shape").value();
            neg(graph, input);
        }),
        oddity("all of an input", &[("B", same)], |graph, input| {
            let (start, end) = (graph.literal(&[0_i64]), graph.literal(&[i64::MAX]));
            graph.op("Slice", &[input, &start, &end]).named("B").value();
        }),
        oddity("an input without padding", &[("B", same)], |graph, input| {
            let pads = graph.literal(&[0_i64; 4]);
            graph.op("Pad", &[input, &pads]).named("B").value();
        }),
        oddity("an input that no node reads", &[("B", negative)], |graph, input| {
            graph.input("Z", DataType::Fp32, &batch());
            neg(graph, input);
        }),
        oddity("a dropout beside an input that no node reads", &[("D", same)], |graph, input| {
            graph.input("Z", DataType::Fp32, &batch());
            graph.op("Dropout", &[input]).named("D").value();
        }),
    ];
    for (name, operator) in [
        ("the identity", "Identity"),
        ("the dropout", "Dropout"),
        ("the maximum of one", "Max"),
        ("the minimum of one", "Min"),
        ("the sum of one", "Sum"),
        ("the mean of one", "Mean"),
        ("a concatenation of one", "Concat"),
        ("a cast to its own type", "Cast"),
    ] {
        all.push(idle(name, operator));
    }
    all
}

/// A way to run a program.
#[derive(Clone, Copy, Debug)]
enum Memory {
    /// The pool's, since the shapes are known.
    Pool,
    /// The caller's.
    Given,
    /// The engine's.
    Engine,
}

impl Oddity {
    /// Runs some batches in one way, and checks the answers.
    fn check(&self, program: &dyn Program, engine: OnnxEngine, memory: Memory, buffers: &Arc<BufferPool>) {
        for (round, count) in [2_usize, 3, 0, 1, 2].into_iter().enumerate() {
            let what = format!("{engine}, {}, {memory:?}, round {round}", self.name);
            let input: Vec<f32> = (0..count * WIDTH as usize).map(|at| (at + 100 * round) as f32 + 0.5).collect();
            let (dims, data) = same(&input);
            // The graph may have a second input, which nothing reads.
            let inputs = [&data, &data].map(|data| BatchInput::Dense { shape: &dims, data });
            let expected: Vec<(Dims, Vec<u8>)> = self
                .outputs
                .iter()
                .map(|(_, expected)| expected(&input))
                .map(|(dims, data)| (Dims::from_slice(&dims), data))
                .collect();
            let shapes: Vec<Option<Dims>> = match memory {
                Memory::Pool | Memory::Given => expected.iter().map(|(shape, _)| Some(shape.clone())).collect(),
                Memory::Engine => vec![None; expected.len()],
            };
            let (stop, steps) = (StopSignal::default(), vec![0; count]);
            let inputs = &inputs[..self.inputs()];
            let batch =
                Batch { rows: count as u32, inputs, steps: &steps, output_shapes: &shapes, buffers, stop: &stop };
            let mut own: Vec<Vec<u8>> = expected.iter().map(|(_, data)| vec![0; data.len()]).collect();
            own.iter_mut().for_each(|memory| stain(memory));
            let mut given: Vec<Option<&mut [u8]>> = match memory {
                Memory::Given => own.iter_mut().map(|memory| Some(memory.as_mut_slice())).collect(),
                Memory::Pool | Memory::Engine => Vec::new(),
            };
            let outputs =
                program.run_into(&batch, &mut given).unwrap_or_else(|error| panic!("{what}: {error}")).outputs;
            for ((((name, _), output), own), (shape, data)) in
                self.outputs.iter().zip(&outputs).zip(&own).zip(&expected)
            {
                let made: &[u8] = if matches!(memory, Memory::Given) { own } else { &output.data };
                let what = format!("{what}, output '{name}'");
                assert_clean(made, &what);
                assert_eq!((&output.shape, made), (shape, &data[..]), "{what}");
            }
        }
    }

    fn inputs(&self) -> usize {
        self.signature().inputs.len()
    }

    fn signature(&self) -> Signature {
        Signature::from_bytes(self.name, &self.model.to_bytes()).expect("it can be read")
    }
}

fn check(engine: OnnxEngine) {
    let engines = match engine {
        OnnxEngine::OnnxRuntime => runtime().map(|runtime| paternoster_engine::Engines::from(Ok(runtime.clone()))),
        OnnxEngine::OpenVino => openvino().map(|openvino| paternoster_engine::Engines::from(openvino.clone())),
    };
    let Some(engines) = engines else { return };
    for oddity in oddities() {
        let Signature { inputs, outputs, .. } = oddity.signature();
        let [inputs, outputs] = [&inputs, &outputs].map(|ports| {
            let port = |port: &paternoster_onnx::Port| (port.name.clone(), port.datatype.expect("a datatype"));
            ports.iter().map(port).collect::<Vec<_>>()
        });
        let [inputs, outputs] = [&inputs, &outputs].map(|ports| {
            ports.iter().map(|(name, datatype)| ProgramPort { name, datatype: *datatype }).collect::<Vec<_>>()
        });
        for memory in [Memory::Pool, Memory::Given, Memory::Engine] {
            let compiled = engines.compile((engine, Precision::Ieee), &sealed(&oddity.model), &inputs, &outputs);
            let program = compiled.unwrap_or_else(|error| panic!("{engine}, {}: {error}", oddity.name));
            oddity.check(&*program, engine, memory, &stained_pool());
        }
    }
}

#[test]
fn by_onnx_runtime() {
    check(OnnxEngine::OnnxRuntime);
}

#[test]
fn by_openvino() {
    check(OnnxEngine::OpenVino);
}

/// Releases of ONNX Runtime before 1.32 declare a mean that their operator does not compute on the CPU. They return
/// nothing for it, and memory that is given for it stays as it is.
#[test]
fn an_output_is_computed_or_fails_by_name() {
    let Some(runtime) = runtime() else { return };
    let mut graph = Graph::new("mean");
    let shape = [PortDim::from("batch"), PortDim::from(2), PortDim::from(WIDTH)];
    let input = graph.input("A", DataType::Fp32, &shape);
    let gamma = graph.constant("gamma", &[4], &[1.0_f32; 4]);
    let [norm, mean] = graph.op("SkipLayerNormalization", &[&input, &input, &gamma]).named("B").values();
    graph.output(&norm, DataType::Fp32, &shape);
    graph.output(&mean, DataType::Fp32, &[PortDim::from("batch"), PortDim::from(2), PortDim::from(1)]);
    let mut model = graph.finish().expect("it is written without being checked");
    let domain = "com.microsoft".to_owned();
    model.0.graph.as_mut().expect("a graph").node[0].domain = Some(domain.clone());
    model.0.opset_import.push(pb::OperatorSetIdProto { domain: Some(domain), version: Some(1) });
    let port = |name| ProgramPort { name, datatype: DataType::Fp32 };
    let engines = paternoster_engine::Engines::from(Ok(runtime.clone()));
    let by = (OnnxEngine::OnnxRuntime, Precision::Ieee);
    let outputs = [port("B"), port("B.1")];
    let program = engines.compile(by, &sealed(&model), &[port("A")], &outputs).expect("it compiles");
    let (data, dims, stop) = (bytes(&[0.5; 8]), [1, 2, WIDTH], StopSignal::default());
    let inputs = [BatchInput::Dense { shape: &dims, data: &data }];
    let shapes = [Some(Dims::from_slice(&dims)), Some(Dims::from_slice(&[1, 2, 1]))];
    let buffers = stained_pool();
    for _ in 0..3 {
        let batch =
            Batch { rows: 1, inputs: &inputs, steps: &[0], output_shapes: &shapes, buffers: &buffers, stop: &stop };
        match program.run(&batch) {
            Ok(computed) => assert_eq!(computed.outputs[1].data, bytes(&[1.0; 2]), "the mean of 0.5 + 0.5"),
            Err(error) => assert_eq!(error.message, "the graph did not compute output 'B.1'"),
        }
    }
}
