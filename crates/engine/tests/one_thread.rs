//! Graphs that were read from files are compiled for one thread when runs share the cores for the first time. In a
//! process of its own, because all runs of the process count.
//!
//! Needs the library of ONNX Runtime, as `crates/executor/tests/pool/onnxruntime.rs` does.

use std::{fs, path::Path, sync::Arc, thread};

use bytes::Bytes;
use paternoster_device::BufferPool;
use paternoster_engine::{
    Batch, BatchInput, EngineError, Program, ProgramPort, StopSignal,
    onnxruntime::{OnnxProgram, Runtime},
};
use paternoster_model::DataType;
use paternoster_onnx::{ExternalFiles, Model, SealedModel, zoo};
use paternoster_testing::runtime::runtime;

const ROW: [f32; 16] = [1.5; 16];

fn compile(runtime: &Runtime, model: &SealedModel) -> OnnxProgram {
    let port = |name| ProgramPort { name, datatype: DataType::Fp32 };
    OnnxProgram::compile_sealed(runtime, model, &[port("INPUT0")], &[port("OUTPUT0")]).expect("the model compiles")
}

fn compile_file(runtime: &Runtime, model: &Model, path: &Path) -> OnnxProgram {
    model.write(path).expect("the file can be written");
    compile(runtime, &SealedModel::read(path).expect("it is sound"))
}

fn run(program: &OnnxProgram, stop: &StopSignal) -> Result<Vec<f32>, EngineError> {
    let input = BatchInput::Dense { shape: &[1, 16], data: bytemuck::cast_slice(&ROW) };
    let buffers = BufferPool::new(0);
    let batch = Batch { rows: 1, inputs: &[input], steps: &[], output_shapes: &[None], buffers: &buffers, stop };
    Ok(bytemuck::pod_collect_to_vec(&program.run(&batch)?.outputs[0].data))
}

#[test]
fn a_file_is_compiled_for_one_thread_when_runs_share_the_cores() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let scale = |factor| zoo::scale(factor).expect("the graph is sound");
    let [path, changing, gone] = ["kept.onnx", "changing.onnx", "gone.onnx"].map(|name| folder.path().join(name));
    let kept = compile_file(runtime, &scale(2.0), &path);
    let changed = compile_file(runtime, &scale(3.0), &changing);
    let removed = compile_file(runtime, &scale(4.0), &gone);
    let sent = SealedModel::new("sent", scale(5.0).to_bytes(), &ExternalFiles::None).expect("it is sound");
    assert!(compile(runtime, &sent).is_compiled_for_one_thread(), "there is no file to read it from later");
    let endless = zoo::runaway().expect("the graph is sound");
    let endless =
        compile(runtime, &SealedModel::new("endless", endless.to_bytes(), &ExternalFiles::None).expect("sound"));
    let (go_on, stop) = (StopSignal::default(), StopSignal::default());
    let of = |program, factor: f32| {
        let found = run(program, &go_on).expect("it runs");
        assert_eq!(found, ROW.map(|number| number * factor));
    };
    for _ in 0..3 {
        of(&kept, 2.0);
        runtime.finish_compiling();
        assert!(!kept.is_compiled_for_one_thread(), "its runs have the cores to themselves");
    }
    scale(6.0).write(&changing).expect("the file can be written");
    fs::remove_file(&gone).expect("the file can be removed");
    thread::scope(|scope| {
        let other = scope.spawn(|| run(&endless, &stop));
        // The other run may not have begun yet.
        while !kept.is_compiled_for_one_thread() {
            of(&kept, 2.0);
        }
        of(&kept, 2.0);
        for (program, factor) in [(&changed, 3.0), (&removed, 4.0)] {
            runtime.finish_compiling();
            of(program, factor);
            runtime.finish_compiling();
            assert!(!program.is_compiled_for_one_thread(), "the file is not what was loaded");
            of(program, factor);
        }
        assert!(!other.is_finished());
        stop.raise();
        assert!(other.join().expect("no panic").is_err(), "it was stopped");
    });
    of(&kept, 2.0);
}

struct File(Vec<u8>, #[allow(dead_code, reason = "it is counted")] Arc<()>);

impl AsRef<[u8]> for File {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn a_compiled_program_keeps_nothing_of_its_file() {
    let Some(runtime) = runtime() else { return };
    let alive = Arc::new(());
    let content = zoo::scale(7.0).expect("the graph is sound").to_bytes().to_vec();
    let content = Bytes::from_owner(File(content, Arc::clone(&alive)));
    let sealed = SealedModel::new("counted", content, &ExternalFiles::None).expect("it is sound");
    let program = compile(runtime, &sealed);
    assert_eq!(Arc::strong_count(&alive), 2, "the model has it");
    drop(sealed);
    assert_eq!(Arc::strong_count(&alive), 1, "its sessions have their own weights");
    drop(program);
}
