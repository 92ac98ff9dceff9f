//! A task that waits for memory on one lane holds up no other lane, and how many kernels a step's graph has.

use std::{collections::BTreeSet, sync::Arc, thread, time::Instant};

use bytes::Bytes;
use paternoster_batching::{CellularKnobs, Knobs, LaneId, Policy};
use paternoster_engine::{
    Precision, Program,
    cuda::{OnCard, Plan},
};
use paternoster_executor::{CellPrograms, Journal, JournalEntry};
use paternoster_model::{
    DataType, Lengths, ModelSpec, TensorSpec,
    unfold::{
        CellInputSource, CellSpec, Emit, EmitRange, Emitted, Expression, NodeType, Nodes, Segment, Start, Tensor,
        Unfolding,
    },
};
use paternoster_onnx::zoo::{Width, cells};
use paternoster_testing::{
    fake_control::{hold, release, traced},
    fake_cuda::with_fake_cuda,
    program::FakeProgram,
};
use smallvec::smallvec;

use crate::{
    models::{Asked, FORMS, Form, MOST_TOKENS},
    rng::Rng,
    running::{self, MAX_ROWS, PATIENCE, journaled, pool},
};

/// More tasks than a program has sections of host memory on a stream.
const DEPTH: u16 = 8;

#[test]
fn a_task_that_waits_for_memory_holds_up_no_other_lane_and_no_other_model() {
    with_fake_cuda(&[], || {
        let journal = Arc::new(Journal::default());
        let pool = journaled(2, DEPTH, Some(Arc::clone(&journal)));
        assert!(FORMS.contains(&Form::Chain));
        let [long, short] = [Form::Chain, Form::AllSteps].map(|form| {
            let (spec, mut knobs, programs) = form.version(MAX_ROWS, 8);
            if let Policy::Cellular(cellular) = &mut knobs.policy {
                // Each step is a task.
                cellular.max_chunk_ns = Some(1);
            }
            Arc::new(running::on_cards(&pool, (spec, knobs, programs)).expect("the card has room"))
        });
        // Tasks are launched ahead only once their times are known.
        for seed in 0..8 {
            running::run(&long, Form::Chain, &mut Rng::new(seed), 1, 0);
            running::run(&short, Form::AllSteps, &mut Rng::new(seed), 1, 0);
        }
        journal.take();
        hold();
        let issued = |lanes: &mut Vec<LaneId>, is_enough: &dyn Fn(&[LaneId]) -> bool| {
            let deadline = Instant::now() + PATIENCE;
            while !is_enough(lanes) {
                assert!(Instant::now() < deadline, "tasks were launched on {lanes:?} only");
                lanes.extend(journal.take().iter().filter_map(|noted| match noted {
                    JournalEntry::Issued { task, .. } => Some(task.lane),
                    JournalEntry::Refused(_) | JournalEntry::Ended(_) => None,
                }));
                thread::yield_now();
            }
        };
        // A chain stays on its lane while its tasks are in flight. It has more of them than the lane has memory for.
        let tokens = |count: u64| Asked { tokens: (1..=count).collect(), children: vec![] };
        let asked = [tokens(u64::from(MOST_TOKENS)), tokens(1)];
        let waits = long.submit(Form::Chain.request(&asked[0]));
        let mut lanes = Vec::new();
        issued(&mut lanes, &|lanes| lanes.len() == 4);
        let own = lanes[0];
        assert!(lanes.iter().all(|lane| *lane == own), "{lanes:?}");
        let other = short.submit(Form::AllSteps.request(&asked[1]));
        issued(&mut lanes, &|lanes| lanes.iter().any(|lane| *lane != own));
        release(u64::MAX);
        running::block_on(async {
            for (form, asked, answer) in [(Form::Chain, &asked[0], waits), (Form::AllSteps, &asked[1], other)] {
                let response = answer.await.expect("nothing fails");
                assert_eq!(running::values(&response), form.answer(asked));
            }
        });
        assert!(pool.stop(PATIENCE));
    });
}

/// Returns a model whose requests unfold into the steps of an LSTM.
fn lstm() -> (ModelSpec, Knobs, CellPrograms) {
    let hidden = Width::QUARTER.of(1024) as i64;
    let state = |name: &str| TensorSpec::new(name.to_owned(), DataType::Fp32, &[hidden]);
    let x = TensorSpec::new("x".to_owned(), DataType::Int64, &[]);
    let (inputs, outputs) = (vec![x, state("h"), state("c")], vec![state("h_next"), state("c_next")]);
    let model = cells::lstm::step(Width::QUARTER).expect("the zoo's model is right");
    let plan = Plan::new(&model, &inputs, &outputs, true, Precision::Ieee).unwrap_or_else(|error| panic!("{error}"));
    let on_host = Arc::new(FakeProgram::failing("it runs on cards alone"));
    let program = Arc::new(OnCard::new(on_host, vec![(Lengths::new(), plan)])) as Arc<dyn Program>;
    let zeros = Start::Row(Bytes::from(vec![0; hidden as usize * 4]));
    let carried = |output| CellInputSource::Carried { output, start: zeros.clone(), is_kept: false };
    let token = CellInputSource::Step { of: Tensor::Input(0), reversed: false };
    let cell = CellSpec { name: "step".to_owned(), inputs, outputs, max_rows: MAX_ROWS, min_followup: 1, priority: 1 };
    let segment = Segment {
        name: "only".to_owned(),
        types: smallvec![NodeType { cell: 0, inputs: vec![token, carried(0), carried(1)] }],
        nodes: Nodes::Chain { steps: Expression::Length(0), chunks: false },
        emits: vec![Emit { name: "h_next".to_owned(), output: 0, which: EmitRange::Last }],
        streams: false,
    };
    let unfolding = Unfolding {
        cells: vec![cell],
        segments: vec![segment],
        outputs: vec![Emitted { segment: 0, emit: 0 }],
        limits: Vec::new(),
    };
    let spec = ModelSpec {
        name: "lstm".to_owned(),
        version: 1,
        max_batch_size: 1,
        inputs: vec![TensorSpec::new("tokens".to_owned(), DataType::Int64, &[-1])],
        outputs: vec![state("hidden")],
        symbols: vec![],
        decoupled: false,
    };
    let cells = CellPrograms::new(&spec, unfolding, vec![program]).expect("the unfolding is sound");
    let (cell_knobs, segments) = cells.knobs();
    let cellular = CellularKnobs { cells: cell_knobs, segments, slots: 8, ..CellularKnobs::default() };
    let knobs = Knobs { max_batch_rows: MAX_ROWS, policy: Policy::Cellular(cellular), ..Knobs::default() };
    (spec, knobs, cells)
}

/// The step's product is one node. Beside it are the row moves, the embedding, the gates and the signal. A graph of
/// several steps has these once for each, and one signal.
#[test]
fn a_step_of_an_lstm_is_five_kernels_beside_its_product() {
    with_fake_cuda(&[], || {
        let pool = pool(1, 2);
        let (spec, knobs, cells) = lstm();
        let mut handle = None;
        let trace = traced(|| {
            handle = Some(running::on_cards(&pool, (spec, knobs, cells.into())).expect("the card has room"));
        });
        let graphs = trace.lines().filter_map(|line| Some(line.split_once("nodes=[")?.1.rsplit_once("] -> ")?.0));
        let graphs: Vec<Vec<&str>> = graphs.map(|nodes| nodes.split("; ").collect()).collect();
        let names = |graph: &Vec<&str>| -> Vec<String> {
            graph.iter().filter_map(|node| node.split(' ').next()).map(str::to_owned).collect()
        };
        // The embedding is in `kernel_0`, the gates are in `kernel_1`.
        let step = ["gather_rows", "kernel_0", "matmul", "kernel_1", "scatter_rows"];
        let mut counts = BTreeSet::new();
        for graph in &graphs {
            let names = names(graph);
            let count = names.iter().filter(|name| *name == "matmul").count();
            let expected: Vec<&str> = [step.repeat(count), vec!["signal"]].concat();
            assert_eq!(names, expected);
            counts.insert(count);
        }
        assert!(counts.into_iter().eq([1, 2, 4, 8, 16]), "{trace}");
        drop(handle);
        assert!(pool.stop(PATIENCE));
    });
}
