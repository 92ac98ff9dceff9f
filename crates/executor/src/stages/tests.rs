use paternoster_model::ExitTo;
use paternoster_testing::program::FakeProgram;

use super::*;

fn never_run() -> Arc<dyn Program> {
    Arc::new(FakeProgram::failing("a test never runs it"))
}

fn tensor(name: &str) -> TensorSpec {
    TensorSpec::new(name, DataType::Fp32, &[1])
}

fn spec(outputs: &[&str]) -> ModelSpec {
    ModelSpec {
        name: "m".to_owned(),
        version: 1,
        max_batch_size: 4,
        inputs: vec![tensor("x")],
        outputs: outputs.iter().map(|name| tensor(name)).collect(),
        symbols: vec![],
        decoupled: false,
    }
}

fn reads(name: &str, boundary: u16) -> (TensorSpec, InputSource) {
    (tensor(name), InputSource::Boundary { boundary, tensor: 0 })
}

fn left(name: &str) -> Vec<BoundaryTensor> {
    vec![BoundaryTensor { name: name.to_owned(), datatype: DataType::Fp32, dims: None }]
}

/// `x` → `a` → `b` → `y`, three stages.
fn plan() -> StagePlan {
    let stage = |input, output| StageSpec { inputs: vec![input], outputs: vec![output], exits: vec![] };
    StagePlan {
        stages: vec![
            stage((tensor("x"), InputSource::Request(0)), (tensor("a"), Sink::Boundary(0))),
            stage(reads("a", 0), (tensor("b"), Sink::Boundary(0))),
            stage(reads("b", 1), (tensor("y"), Sink::Reply(0))),
        ],
        boundaries: vec![left("a"), left("b")],
    }
}

fn cut(spec: &ModelSpec, plan: StagePlan) -> Result<StagePrograms, String> {
    let programs = plan.stages.iter().map(|_| never_run()).collect();
    StagePrograms::cut(spec, plan, programs)
}

fn refusal(change: impl FnOnce(&mut StagePlan)) -> String {
    let mut plan = plan();
    change(&mut plan);
    cut(&spec(&["y"]), plan).expect_err("the plan is not sound")
}

#[test]
fn the_core_learns_which_boundaries_are_read_and_which_stages_decide() {
    let mut plan = plan();
    plan.stages[2].inputs.extend([reads("a", 0), reads("b", 1)]);
    plan.stages[1].exits = vec![Exit { value: 0, at_least: 0.5, to: ExitTo::Stage(2) }];
    let knobs = cut(&spec(&["y"]), plan).expect("the plan is sound").knobs();
    let knobs: Vec<(&[u16], bool)> = knobs.iter().map(|stage| (stage.reads.as_slice(), stage.decides)).collect();
    assert_eq!(knobs, [([].as_slice(), false), (&[0], true), (&[0, 1], false)]);
}

#[test]
fn a_tensor_with_two_uses_is_one_output_of_its_program() {
    let mut plan = plan();
    plan.stages[1].outputs.push((tensor("b"), Sink::Reply(1)));
    let (inputs, outputs) = StagePrograms::ports(&plan.stages[1]);
    assert_eq!((inputs.len(), outputs.len()), (1, 1));
    assert_eq!((inputs[0].name, outputs[0].name), ("a", "b"));
    assert!(cut(&spec(&["y", "b"]), plan).is_ok());
}

#[test]
fn whole_programs_are_one_stage_that_reads_nothing() {
    let whole = StagePrograms::from(never_run());
    assert_eq!((whole.count(), whole.knobs()), (1, StageKnobs::chain(1)));
}

#[test]
fn stages_and_programs_are_as_many() {
    let error = StagePrograms::cut(&spec(&["y"]), plan(), vec![]).expect_err("there are no programs");
    assert_eq!(error, "the stages of model 'm' are 3 with 0 programs and 2 boundaries");
}

#[test]
fn stages_need_a_batch_axis() {
    let spec = ModelSpec { max_batch_size: 0, ..spec(&["y"]) };
    assert_eq!(cut(&spec, plan()).expect_err("no axis"), "the stages of model 'm' need a batch axis");
}

#[test]
fn every_tensor_is_made_once_before_it_is_read() {
    let early = refusal(|plan| plan.stages[1].inputs = vec![reads("b", 1)]);
    assert!(early.contains("stage 1 reads 'b'") && early.contains("not there by then"), "{early}");
    let missing = refusal(|plan| plan.stages[1].outputs.clear());
    assert!(missing.contains("stage 1 makes 'b' 0 times"), "{missing}");
    let twice = refusal(|plan| plan.stages[1].outputs.push((tensor("c"), Sink::Boundary(0))));
    assert!(twice.contains("stage 1 makes 'b' 2 times"), "{twice}");
    let nowhere = refusal(|plan| plan.stages[2].outputs.push((tensor("c"), Sink::Boundary(0))));
    assert!(nowhere.contains("stage 2 leaves 'c' where its boundary has no tensor"), "{nowhere}");
    let strings = refusal(|plan| plan.stages[0].outputs[0].0.datatype = DataType::Bytes);
    assert!(strings.contains("stage 0 leaves strings in 'a'"), "{strings}");
}

#[test]
fn every_output_is_given_once() {
    let missing = refusal(|plan| plan.stages[2].outputs.clear());
    assert!(missing.contains("never give output 'y'"), "{missing}");
    let twice = refusal(|plan| plan.stages[0].outputs.push((tensor("z"), Sink::Reply(0))));
    assert!(twice.contains("stage 2 gives output 0, as stage 0 does"), "{twice}");
    let unknown = refusal(|plan| plan.stages[0].outputs.push((tensor("z"), Sink::Reply(7))));
    assert!(unknown.contains("stage 0 gives output 7, which the model has not"), "{unknown}");
}

#[test]
fn exits_leave_no_row_without_what_it_needs() {
    let exit = |stage: usize, exit: Exit| refusal(|plan| plan.stages[stage].exits = vec![exit]);
    let to = |to: ExitTo| Exit { value: 0, at_least: 0.5, to };
    let unanswered = exit(1, to(ExitTo::Done(vec![None])));
    assert!(unanswered.contains("ends rows whose outputs nothing has given"), "{unanswered}");
    let back = exit(1, to(ExitTo::Stage(1)));
    assert!(back.contains("sends rows to stage 1"), "{back}");
    let past = exit(0, to(ExitTo::Stage(2)));
    assert!(past.contains("past the stage that makes 'b', which they need"), "{past}");
    let value = exit(1, Exit { value: 5, ..to(ExitTo::Stage(2)) });
    assert!(value.contains("decides by an output that it has not"), "{value}");
    let typed = refusal(|plan| {
        plan.stages[1].outputs[0].0.datatype = DataType::Int64;
        plan.stages[1].exits = vec![to(ExitTo::Stage(2))];
    });
    assert!(typed.contains("decides by 'b', which is INT64, not FP32"), "{typed}");
    let unseen = {
        let mut plan = plan();
        plan.stages[1].outputs.push((tensor("z"), Sink::Reply(1)));
        plan.stages[2].inputs = vec![reads("a", 0)];
        plan.stages[0].exits = vec![to(ExitTo::Stage(2))];
        cut(&spec(&["y", "z"]), plan).expect_err("z is skipped")
    };
    assert!(unseen.contains("past a stage that gives outputs"), "{unseen}");
}
