//! The kernels of the example networks at full width, compiled by the real NVRTC for cards that need not be there
//! (`make kernels ALL=1`, `make gpu-kit`). A kernel that does not compile, or spills registers, is named with its
//! network.
//!
//! Binaries are written as the server keeps them, so that a server finds them in its `--cuda-kernel-directory`.

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    path::Path,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use paternoster_config::lengths::CellLengths;
use paternoster_device::cuda::{Compiler, KERNELS, KernelElement, KernelSource};
use paternoster_engine::{Precision, cuda::Plan};
use paternoster_model::{Lengths, TensorSpec};
use paternoster_onnx::{
    Model,
    weights::Seeded,
    zoo::{self, Width, cells},
};
use paternoster_testing::fake_cuda::with_fake_cuda;

use crate::networks::network;

#[path = "../../benches/cards/cuts.rs"]
#[expect(dead_code, reason = "no number of rows has kernels of its own")]
mod cuts;
#[path = "../../benches/cards/programs.rs"]
#[expect(dead_code, reason = "nothing is loaded here")]
mod programs;
#[path = "../../benches/cards/networks.rs"]
#[expect(dead_code, reason = "no number of rows has kernels of its own")]
mod timed;

/// The folder of the binaries; each compute capability gets one in it, such as `sm_90`.
const FOLDER: &str = "KERNELS_FOLDER";
/// Compute capabilities, such as `8.0,9.0`.
const CAPABILITIES: &str = "KERNELS_CAPABILITIES";
/// What the compiler says of a kernel whose registers do not suffice.
const SPILLED: &str = "spilled";
/// Plans that wait for a compiler. Each holds its network's weights.
const WAITING: usize = 2;
/// TF32 has the kernels of IEEE: only the library's products differ.
const PRECISIONS: [Precision; 3] = [Precision::Ieee, Precision::Bf16, Precision::Fp16];
/// Stages of the network that the kit serves in stages and that is not measured in them (`scripts/gpu_load.py`).
const SERVED_STAGES: usize = 4;

/// Spills registers: a check that accepts it proves nothing.
const SPILLS: KernelSource<'_> = KernelSource {
    name: "planted.cu",
    text: "
KERNEL(planted, 1024, float* x) {
    float values[200];
#pragma unroll
    for (int i = 0; i < 200; ++i) values[i] = x[i * 1024 + TID];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 200; ++i) x[i * 1024 + TID] = values[i] * values[199 - i];
}
",
};

type Build = fn() -> Result<Model, Box<dyn Error>>;

/// The example networks, each as a whole.
const NETWORKS: [(&str, Build); 28] = [
    ("lstm, step", || Ok(cells::lstm::step(Width::FULL)?)),
    ("lstm, project", || Ok(cells::lstm::project(Width::FULL)?)),
    ("lstm, projected step", || Ok(cells::lstm::projected_step(Width::FULL)?)),
    ("seq2seq, encoder", || Ok(cells::seq2seq::encoder(Width::FULL)?)),
    ("seq2seq, decoder", || Ok(cells::seq2seq::decoder(Width::FULL)?)),
    ("tree-lstm, leaf", || Ok(cells::tree_lstm::leaf(Width::FULL)?)),
    ("tree-lstm, node", || Ok(cells::tree_lstm::node(Width::FULL)?)),
    ("gnmt, forward", || Ok(cells::gnmt::forward(Width::FULL)?)),
    ("gnmt, backward", || Ok(cells::gnmt::backward(Width::FULL)?)),
    ("gnmt, upper", || Ok(cells::gnmt::upper(Width::FULL)?)),
    ("gnmt, decoder", || Ok(cells::gnmt::decoder(Width::FULL)?)),
    ("deepspeech2, conv", || Ok(cells::deepspeech2::conv(Width::FULL)?)),
    ("deepspeech2, forward", || Ok(cells::deepspeech2::forward(Width::FULL)?)),
    ("deepspeech2, backward", || Ok(cells::deepspeech2::backward(Width::FULL)?)),
    ("deepspeech2, dense", || Ok(cells::deepspeech2::dense(Width::FULL)?)),
    ("las, listener", || Ok(cells::las::listener(Width::FULL)?)),
    ("las, upper", || Ok(cells::las::upper(Width::FULL)?)),
    ("las, speller", || Ok(cells::las::speller(Width::FULL)?)),
    ("transformer, encoder", || Ok(cells::transformer::encoder(Width::FULL)?)),
    ("transformer, decoder", || Ok(cells::transformer::decoder(Width::FULL)?)),
    ("minilm", || Ok(zoo::minilm(Seeded::new(1))?)),
    ("bert-base", || Ok(zoo::bert_base(Width::FULL)?)),
    ("mobilenet", || Ok(zoo::mobilenet(Width::FULL)?)),
    ("resnet50", || Ok(zoo::resnet50(Width::FULL)?)),
    ("resnet152", || Ok(zoo::resnet152(Width::FULL)?)),
    ("vgg19", || Ok(zoo::vgg19(Width::FULL)?)),
    ("unet", || Ok(zoo::unet(Width::FULL)?)),
    ("linknet", || Ok(zoo::linknet(Width::FULL)?)),
];

/// The binaries of one compute capability, and what came of them.
struct Target {
    /// As compilers name it, such as `sm_90`.
    name: String,
    compiler: Compiler,
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    /// The compiler's messages, by what was compiled.
    refused: BTreeMap<String, String>,
    /// By all threads together.
    spent: Duration,
}

impl Target {
    fn new(folder: &Path, capability: &str) -> Self {
        let (major, minor) = capability.split_once('.').expect("a capability is written as 9.0");
        let number = |text: &str| text.parse().expect("a capability has two numbers");
        let name = format!("sm_{major}{minor}");
        let compiler = Compiler::new(Some(folder.join(&name))).for_architecture(number(major), number(minor));
        Self { name, compiler, found: Mutex::default() }
    }

    fn compile(&self, what: &str, compile: impl FnOnce(&Compiler) -> Result<(), String>) {
        let began = Instant::now();
        let done = compile(&self.compiler);
        let mut found = self.found.lock().expect("no thread panics with it");
        found.spent += began.elapsed();
        if let Err(log) = done {
            println!("refused for {}: {what}: {log}", self.name);
            found.refused.insert(what.to_owned(), log);
        }
    }
}

/// What receives plans, and what they are plans of.
type Give<'g> = &'g dyn Fn(String, Plan);

/// Compiles the kernels that are the same for all networks, and those of all plans that `planned` gives.
fn compile(targets: &[Target], planned: impl FnOnce(Give<'_>)) {
    let (sender, waiting) = crossbeam_channel::bounded::<(String, Plan)>(WAITING);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            let waiting = waiting.clone();
            scope.spawn(move || {
                for (what, plan) in waiting {
                    for target in targets {
                        target.compile(&what, |compiler| plan.compile(compiler));
                    }
                }
            });
        }
        for target in targets {
            written(target);
        }
        planned(&|what, plan| sender.send((what, plan)).expect("a thread receives it"));
        drop(sender);
    });
}

/// Compiles the files of `kernels/`. Most plans use some of them.
fn written(target: &Target) {
    let files = [
        KERNELS.parameters,
        KERNELS.rows,
        KERNELS.signal,
        KERNELS.softmax,
        KERNELS.layer_norm,
        KERNELS.argmax,
        KERNELS.attention,
    ];
    for source in files {
        for element in [KernelElement::F32, KernelElement::F16, KernelElement::Bf16] {
            let what = format!("{}, {element:?}", source.name);
            target.compile(&what, |compiler| compiler.compile(source, element).map(drop));
        }
    }
}

/// Plans a network as the server does, for each of the lengths that it prepares by default.
fn at_all_lengths(name: &str, model: &Model, give: Give<'_>) {
    let spec = programs::spec(name, model, 64).expect("it has a specification");
    let symbols = spec.inputs.iter().flat_map(|input| input.symbols.iter().flatten());
    let axes = symbols.map(|symbol| usize::from(symbol.0) + 1).max().unwrap_or(0);
    let axes = spec.symbols[..axes].to_vec();
    let lengths = CellLengths::of(&BTreeMap::new(), &[&axes]).expect("nothing is listed");
    for lengths in lengths.cells[0].combinations().expect("there are few") {
        let prepared = |tensors: &[TensorSpec]| -> Vec<TensorSpec> {
            tensors.iter().map(|tensor| TensorSpec { dims: tensor.dims_at(&lengths), ..tensor.clone() }).collect()
        };
        let (inputs, outputs) = (prepared(&spec.inputs), prepared(&spec.outputs));
        for precision in PRECISIONS {
            let what = format!("{name}, {:?}, {precision}", lengths.as_slice());
            let plan = Plan::new(model, &inputs, &outputs, true, precision);
            give(what.clone(), plan.unwrap_or_else(|error| panic!("{what}: {error}")));
        }
    }
}

/// Plans a network in stages.
fn in_stages(name: &str, model: &Model, stages: usize, length: u32, give: Give<'_>) {
    let spec = programs::spec(name, model, 64).expect("it has a specification");
    let lengths: Lengths = spec.symbols.iter().map(|_| length).collect();
    for precision in PRECISIONS {
        let plans = programs::stage_plans(model, &spec, stages, &lengths, precision);
        let (_, plans) = plans.unwrap_or_else(|error| panic!("{name} in {stages} stages: {error}"));
        for (stage, plan) in plans.into_iter().enumerate() {
            give(format!("{name}, {length}, {precision}, stage {stage}"), plan);
        }
    }
}

/// Plans everything that the kit measures and serves on a card.
fn measured(give: Give<'_>) {
    for (name, build) in timed::all(false) {
        let network = build().expect("the graph is sound");
        for precision in PRECISIONS {
            let plan = Plan::new(&network.model, &network.inputs, &network.outputs, true, precision);
            give(format!("{name}, {precision}"), plan.unwrap_or_else(|error| panic!("{name}: {error}")));
        }
    }
    for network in cuts::all(false) {
        let model = (network.build)().expect("the graph is sound");
        for &length in network.lengths {
            in_stages(network.name, &model, network.stages, length, give);
        }
    }
    let served = zoo::resnet50(Width::FULL).expect("the graph is sound");
    in_stages("resnet50", &served, SERVED_STAGES, 0, give);
}

#[test]
#[ignore = "minutes, and the real NVRTC: make kernels ALL=1"]
fn of_every_network() {
    let Some(folder) = env::var_os(FOLDER) else {
        return eprintln!("skipped: {FOLDER} is not set; `make kernels ALL=1` sets it");
    };
    let capabilities = env::var(CAPABILITIES).expect("there are compute capabilities");
    let targets: Vec<Target> = capabilities.split(',').map(|one| Target::new(Path::new(&folder), one)).collect();
    for Target { name, compiler, .. } in &targets {
        let refusal = compiler.compile(SPILLS, KernelElement::F32).expect_err("it spills");
        assert!(refusal.contains(SPILLED), "{name}: {refusal}");
    }
    compile(&targets, |give| {
        for (name, build) in NETWORKS {
            at_all_lengths(name, &build().expect("the graph is sound"), give);
        }
        measured(give);
    });
    for Target { name, found, .. } in &targets {
        let Found { refused, spent } = &*found.lock().expect("no thread panics with it");
        let spilled = refused.values().filter(|log| log.contains(SPILLED)).count();
        println!("{name}: {} refused, {spilled} of them spill, {:.0} s", refused.len(), spent.as_secs_f64());
    }
    let is_refused = |target: &Target| !target.found.lock().expect("no thread panics with it").refused.is_empty();
    assert!(!targets.iter().any(is_refused), "kernels were refused");
}

#[test]
fn tf32_has_the_kernels_of_ieee() {
    for model in [cells::lstm::step(Width::QUARTER), zoo::linknet(Width::QUARTER)] {
        let case = network(model, &[], 2_000);
        assert_eq!(case.plan_in(Precision::Tf32).source(), case.plan_in(Precision::Ieee).source());
        assert_ne!(case.plan_in(Precision::Fp16).source(), case.plan_in(Precision::Ieee).source());
    }
}

#[test]
fn what_is_refused_is_named_with_the_compilers_words() {
    with_fake_cuda(&[], || {
        let folder = tempfile::tempdir().expect("a folder");
        let target = Target::new(folder.path(), "9.0");
        let planted = KernelSource { name: "planted.cu", text: "KERNEL(planted, 32, float* x) { x[0] = nothing; }" };
        target.compile("a network", |compiler| compiler.compile(planted, KernelElement::F32).map(drop));
        target.compile("another", |compiler| compiler.compile(KERNELS.softmax, KernelElement::F32).map(drop));
        let found = target.found.into_inner().expect("nothing panicked");
        let refused: Vec<_> =
            found.refused.iter().map(|(what, log)| (what.as_str(), log.contains("nothing"))).collect();
        assert_eq!(refused, [("a network", true)]);
        assert_eq!(folder.path().join("sm_90").read_dir().expect("a binary was kept").count(), 1);
    });
}
