//! Runs a graph with both engines, and compares the answers.

use std::{
    fmt::Debug,
    sync::{Arc, Barrier},
    thread,
};

use paternoster_engine::{
    Batch, BatchInput, BatchOutput, Engines, OnnxEngine, Precision, Program, ProgramPort, StopSignal,
};
use paternoster_model::{DataType, Dims};
use paternoster_onnx::{ExternalFiles, Model, Port, PortDim, SealedModel, Signature};
use paternoster_testing::{openvino::openvino, runtime::runtime};

use crate::openvino::stain::{assert_clean, stained_pool};

/// Maximum difference between the engines' fp32 answers, as a fraction of the largest.
pub(crate) const FP32: f32 = 1e-4;

/// Runs of one program at the same time.
const TOGETHER: usize = 3;

/// Returns both engines; `None` if one is not installed.
pub(crate) fn engines() -> Option<Engines> {
    let (runtime, openvino) = (runtime()?, openvino()?);
    Some(Engines { onnxruntime: Some(Ok(runtime.clone())), openvino: openvino.clone() })
}

pub(crate) fn sealed(model: &Model) -> SealedModel {
    SealedModel::new("model.onnx", model.to_bytes(), &ExternalFiles::None).expect("it can be opened")
}

/// A graph, the lengths of its varying axes, and the exclusive limit of its whole numbers.
pub(crate) struct Network {
    name: &'static str,
    model: Model,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    lengths: Vec<(&'static str, i64)>,
    tokens: i64,
}

impl Network {
    pub(crate) fn new<E: Debug>(
        name: &'static str,
        model: Result<Model, E>,
        lengths: &[(&'static str, i64)],
        tokens: i64,
    ) -> Self {
        let model = model.expect("the graph is sound");
        let Signature { inputs, outputs, .. } = Signature::from_bytes(name, &model.to_bytes()).expect("it can be read");
        Self { name, model, inputs, outputs, lengths: lengths.to_vec(), tokens }
    }

    fn shape(&self, port: &Port, rows: i64) -> Vec<i64> {
        let length = |(axis, dim): (usize, &PortDim)| match dim {
            PortDim::Fixed(length) => *length,
            _ if axis == 0 => rows,
            PortDim::Symbol(name) => {
                let found = self.lengths.iter().find(|(known, _)| known == name);
                found.unwrap_or_else(|| panic!("{}: no length for {name}", self.name)).1
            }
            PortDim::Unknown => panic!("{port:?}"),
        };
        port.dims.as_deref().unwrap_or_default().iter().enumerate().map(length).collect()
    }

    /// Returns different numbers; whole ones are valid indices, lengths and masks.
    fn elements(&self, input: usize, count: usize) -> Vec<u8> {
        let port = &self.inputs[input];
        let shortest = self.lengths.iter().map(|(_, length)| *length).min().unwrap_or(1);
        let below = match port.name.as_str() {
            name if name.contains("mask") => 2,
            name if name.contains("length") => shortest + 1,
            _ => self.tokens,
        };
        let number = |place: usize| ((place * 7919 + input * 1299) % 10_007) as f32 / 5003.5 - 1.0;
        let whole = |place: usize| (place * 7919 + input * 31) as i64 % below;
        (0..count)
            .flat_map(|place| match port.datatype {
                Some(DataType::Fp32) => number(place).to_le_bytes().to_vec(),
                Some(DataType::Int64) => whole(place).to_le_bytes().to_vec(),
                Some(DataType::Int32) => (whole(place) as i32).to_le_bytes().to_vec(),
                Some(DataType::Bool) => vec![(whole(place) % 2) as u8],
                other => panic!("{}: no elements of {other:?}", self.name),
            })
            .collect()
    }

    fn program(&self, engines: &Engines, engine: OnnxEngine, precision: Precision) -> Arc<dyn Program> {
        fn ports(ports: &[Port]) -> Vec<ProgramPort<'_>> {
            ports
                .iter()
                .map(|port| ProgramPort { name: &port.name, datatype: port.datatype.expect("a datatype") })
                .collect()
        }
        let (inputs, outputs) = (ports(&self.inputs), ports(&self.outputs));
        let compiled = engines.compile((engine, precision), &sealed(&self.model), &inputs, &outputs);
        compiled.unwrap_or_else(|error| panic!("{} by {engine}: {error}", self.name))
    }

    fn run(&self, program: &dyn Program, rows: i64, output_shapes: &[Option<Dims>]) -> Vec<BatchOutput> {
        let shapes: Vec<Vec<i64>> = self.inputs.iter().map(|port| self.shape(port, rows)).collect();
        let count = |shape: &[i64]| shape.iter().product::<i64>() as usize;
        let elements: Vec<Vec<u8>> =
            shapes.iter().enumerate().map(|(input, shape)| self.elements(input, count(shape))).collect();
        let inputs: Vec<BatchInput<'_>> =
            shapes.iter().zip(&elements).map(|(shape, data)| BatchInput::Dense { shape, data }).collect();
        let (buffers, stop, steps) = (stained_pool(), StopSignal::default(), vec![0; rows as usize]);
        let batch =
            Batch { rows: rows as u32, inputs: &inputs, steps: &steps, output_shapes, buffers: &buffers, stop: &stop };
        let outputs = program.run(&batch).unwrap_or_else(|error| panic!("{}, {rows} rows: {error}", self.name)).outputs;
        for (port, output) in self.outputs.iter().zip(&outputs) {
            assert_clean(&output.data, &format!("{}, {rows} rows, output '{}'", self.name, port.name));
        }
        outputs
    }

    /// Runs the same batch on several threads at once, so that runs use one thread each as well as all threads.
    fn run_together(&self, program: &dyn Program, rows: i64, output_shapes: &[Option<Dims>]) -> Vec<Vec<BatchOutput>> {
        let start = Barrier::new(TOGETHER);
        let run = || {
            start.wait();
            self.run(program, rows, output_shapes)
        };
        thread::scope(|scope| {
            let runs: Vec<_> = (0..TOGETHER).map(|_| scope.spawn(run)).collect();
            runs.into_iter().map(|run| run.join().expect("the run ends")).collect()
        })
    }

    /// Runs one row and three rows with both engines, in fp32 and, if the processor supports it, in BF16, in memory
    /// that earlier requests have used.
    pub(crate) fn check(&self, bf16: f32) {
        let Some(runtime) = runtime() else { return };
        let engines =
            Engines { onnxruntime: Some(Ok(runtime.clone())), openvino: openvino().cloned().unwrap_or_default() };
        let reference = self.program(&engines, OnnxEngine::OnnxRuntime, Precision::Ieee);
        let unknown = vec![None; self.outputs.len()];
        let expected: Vec<_> = [1, 3].map(|rows| (rows, self.run(&*reference, rows, &unknown))).into();
        for (rows, expected) in &expected {
            let known: Vec<_> = expected.iter().map(|output| Some(output.shape.clone())).collect();
            for shapes in [&unknown, &known, &known] {
                for given in self.run_together(&*reference, *rows, shapes) {
                    self.compare(&given, expected, FP32, &format!("onnxruntime, several runs, {rows} rows"));
                }
            }
        }
        if openvino().is_none() {
            return;
        }
        let mut precisions = vec![(Precision::Ieee, FP32)];
        if engines.openvino.computes_in("BF16").expect("it is loaded") {
            precisions.push((Precision::Bf16, bf16));
        } else {
            eprintln!("{}: not compared in BF16, which the processor has no units for", self.name);
        }
        for (precision, tolerance) in precisions {
            let program = self.program(&engines, OnnxEngine::OpenVino, precision);
            for (rows, expected) in &expected {
                // Into the pool's memory, since the shapes are known, and into OpenVINO's own.
                let known: Vec<_> = expected.iter().map(|output| Some(output.shape.clone())).collect();
                for shapes in [&known, &unknown] {
                    let given = self.run(&*program, *rows, shapes);
                    self.compare(&given, expected, tolerance, &format!("{precision}, {rows} rows"));
                }
                for given in self.run_together(&*program, *rows, &known) {
                    self.compare(&given, expected, tolerance, &format!("{precision}, several runs, {rows} rows"));
                }
            }
        }
    }

    fn compare(&self, given: &[BatchOutput], expected: &[BatchOutput], tolerance: f32, what: &str) {
        for ((port, given), expected) in self.outputs.iter().zip(given).zip(expected) {
            let name = format!("{}, {what}, output '{}'", self.name, port.name);
            assert_eq!(given.shape, expected.shape, "{name}");
            if port.datatype == Some(DataType::Fp32) {
                let far = deviation(&given.data, &expected.data);
                eprintln!("{name}: {far:.1e}");
                assert!(far <= tolerance, "{name}: {far} of the largest, expected at most {tolerance}");
            } else if tolerance == FP32 {
                assert_eq!(given.data, expected.data, "{name}");
            }
        }
    }
}

/// Returns the largest difference between two fp32 outputs, as a fraction of the second's largest number.
pub(crate) fn deviation(given: &[u8], expected: &[u8]) -> f32 {
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
    };
    let (given, expected) = (numbers(given), numbers(expected));
    assert_eq!(given.len(), expected.len());
    assert!(given.iter().all(|number| number.is_finite()), "an answer is no number");
    let largest = expected.iter().fold(f32::MIN_POSITIVE, |most, number| most.max(number.abs()));
    given.iter().zip(&expected).fold(0.0_f32, |most, (one, other)| most.max((one - other).abs())) / largest
}
