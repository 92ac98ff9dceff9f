use bytes::Bytes;
use parking_lot::Mutex;
use paternoster_engine::{EngineError, Execution, Program};
use paternoster_model::{
    BoundaryDim, BoundaryTensor, CellId, DataType, Exit, ExitTo, InputTensor, Next, Sink, StagePlan, StageSpec,
    SymbolId, TensorSpec,
};
use paternoster_testing::program::{FakeProgram, dense, execution, floats};

use super::*;
use crate::stages::{Programs, StagePrograms};

/// Every output is the sum of all inputs plus the number of the output. Records where it had to write.
#[derive(Default)]
struct Add {
    outputs: usize,
    given: Mutex<Vec<Option<usize>>>,
}

impl Add {
    fn outputs(outputs: usize) -> Arc<Self> {
        Arc::new(Self { outputs, ..Self::default() })
    }
}

impl Program for Add {
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
        let mut sum: Vec<f32> = Vec::new();
        for input in batch.inputs {
            let values = floats(input);
            sum.resize(values.len(), 0.0);
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        let shape = Dims::from_slice(dense(&batch.inputs[0]).0);
        let output = |number: usize| {
            let values: Vec<f32> = sum.iter().map(|value| value + number as f32).collect();
            BatchOutput { shape: shape.clone(), data: Bytes::copy_from_slice(bytemuck::cast_slice(&values)) }
        };
        Ok(Execution { outputs: (0..self.outputs).map(output).collect(), ..Execution::default() })
    }

    fn run_into(&self, batch: &Batch<'_>, given: &mut [Option<&mut [u8]>]) -> Result<Execution, EngineError> {
        let mut execution = self.run(batch)?;
        let places = given.iter().map(|given| given.as_ref().map(|memory| memory.as_ptr() as usize));
        self.given.lock().extend(places);
        for (output, memory) in execution.outputs.iter_mut().zip(given) {
            if let Some(memory) = memory {
                memory.copy_from_slice(&std::mem::take(&mut output.data));
            }
        }
        Ok(execution)
    }
}

fn tensor(name: &str, width: i64) -> TensorSpec {
    TensorSpec::new(name, DataType::Fp32, &[width])
}

fn boundary(name: &str, dims: Option<&[BoundaryDim]>) -> BoundaryTensor {
    let dims = dims.map(smallvec::SmallVec::from_slice);
    BoundaryTensor { name: name.to_owned(), datatype: DataType::Fp32, dims }
}

fn reads(name: &str, boundary: u16, tensor: u16) -> (TensorSpec, InputSource) {
    (self::tensor(name, -1), InputSource::Boundary { boundary, tensor })
}

/// `x` → stage 0 → `h` → stage 1 → `y`.
fn chain(dims: Option<&[BoundaryDim]>) -> StagePlan {
    let first = StageSpec {
        inputs: vec![(tensor("x", 2), InputSource::Request(0))],
        outputs: vec![(tensor("h", 2), Sink::Boundary(0))],
        exits: vec![],
    };
    let last =
        StageSpec { inputs: vec![reads("h", 0, 0)], outputs: vec![(tensor("y", 2), Sink::Reply(0))], exits: vec![] };
    StagePlan { stages: vec![first, last], boundaries: vec![vec![boundary("h", dims)]] }
}

const TWO: &[BoundaryDim] = &[BoundaryDim::Fixed(2)];

/// A version under test, and one of its batches.
struct Bench {
    spec: ModelSpec,
    stages: Arc<Stages>,
    class: ShapeClass,
    kept: Vec<(u16, Arc<BoundaryRows>)>,
    buffers: Arc<BufferPool>,
}

/// The rows of a request in a task: its inputs and own lengths, first row, number of rows, and place in the batch.
type Rows<'a> = (&'a [Option<InputTensor>], &'a [u32], u32, u32, u32);

fn part<'a>(&(inputs, _, start, count, _): &Rows<'a>) -> Part<'a> {
    let rows = inputs[0].as_ref().map_or(0, |input| input.shape[0] as u32);
    Part { inputs, rows, start, count }
}

impl Bench {
    fn new(plan: StagePlan, outputs: &[&str], programs: Vec<Arc<dyn Program>>) -> Self {
        let spec = ModelSpec {
            name: "m".to_owned(),
            version: 1,
            max_batch_size: 4,
            inputs: vec![tensor("x", 2)],
            outputs: outputs.iter().map(|name| tensor(name, 2)).collect(),
            symbols: vec![],
            decoupled: false,
        };
        Self::of(spec, plan, programs)
    }

    fn of(spec: ModelSpec, plan: StagePlan, programs: Vec<Arc<dyn Program>>) -> Self {
        let tensors: Vec<usize> = plan.boundaries.iter().map(Vec::len).collect();
        let StagePrograms(Programs::Cut(stages)) =
            StagePrograms::cut(&spec, plan, programs).expect("the plan is sound")
        else {
            panic!("a plan makes stages");
        };
        let kept = (0..).zip(tensors.into_iter().map(|tensors| BoundaryRows::new(4, tensors))).collect();
        Self { spec, stages, class: ShapeClass::default(), kept, buffers: BufferPool::new(0) }
    }

    fn run(&self, number: usize, rows: &[Rows<'_>]) -> Result<TaskOutput, String> {
        let parts: Vec<Part<'_>> = rows.iter().map(part).collect();
        let lengths: Vec<Lengths> = rows.iter().map(|(_, lengths, ..)| Lengths::from_slice(lengths)).collect();
        let places = Places::new(rows.iter().map(|&(.., count, at)| (at, count)));
        let task = StageTask {
            spec: &self.spec,
            stages: &self.stages,
            number,
            class: &self.class,
            parts: &parts,
            lengths: &lengths.iter().collect::<Vec<_>>(),
            places: &places,
            reads: &self.kept,
            writes: self.kept.get(number).map(|(_, rows)| rows),
            buffers: &self.buffers,
            stop: &StopSignal::default(),
        };
        task.run()
    }
}

fn request(values: &[f32]) -> Vec<Option<InputTensor>> {
    let shape = Dims::from_slice(&[values.len() as i64 / 2, 2]);
    vec![Some(InputTensor { shape, data: Bytes::copy_from_slice(bytemuck::cast_slice(values)) })]
}

/// Returns part, output, rows and values of each piece.
fn pieces(ran: &TaskOutput) -> Vec<(usize, usize, std::ops::Range<u32>, Vec<f32>)> {
    let values = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    ran.outputs
        .as_ref()
        .expect("they are there at once")
        .pieces
        .iter()
        .map(|(part, piece)| (*part, piece.output, piece.rows.clone(), values(&piece.tensor.data)))
        .collect()
}

#[test]
fn rows_go_through_the_boundary_at_their_places() {
    let bench = Bench::new(chain(Some(TWO)), &["y"], vec![Add::outputs(1), Add::outputs(1)]);
    let (one, other) = (request(&[1.0, 2.0]), request(&[3.0, 4.0, 5.0, 6.0]));
    bench.run(0, &[(&one, &[], 0, 1, 0), (&other, &[], 0, 2, 1)]).expect("it runs");
    // The first request's row has left; a newcomer joined after the others.
    let newcomer = request(&[7.0, 8.0]);
    bench.run(0, &[(&newcomer, &[], 0, 1, 3)]).expect("it runs");
    let ran = bench.run(1, &[(&other, &[], 1, 1, 2), (&newcomer, &[], 0, 1, 3)]).expect("it runs");
    assert_eq!(pieces(&ran), [(0, 0, 1..2, vec![5.0, 6.0]), (1, 0, 0..1, vec![7.0, 8.0])]);
    let ran = bench.run(1, &[(&one, &[], 0, 1, 0), (&newcomer, &[], 0, 1, 3)]).expect("rows between are left out");
    assert_eq!(pieces(&ran), [(0, 0, 0..1, vec![1.0, 2.0]), (1, 0, 0..1, vec![7.0, 8.0])]);
}

#[test]
fn a_program_writes_a_boundary_itself_where_its_dims_are_known() {
    for (dims, itself) in [(Some(TWO), true), (None, false)] {
        let first = Add::outputs(1);
        let bench = Bench::new(chain(dims), &["y"], vec![first.clone(), Add::outputs(1)]);
        let one = request(&[1.0, 2.0]);
        bench.run(0, &[(&one, &[], 0, 1, 1)]).expect("it runs");
        let given = first.given.lock()[0];
        assert_eq!(given.is_some(), itself);
        let (_, rows) = bench.kept[0].1.read(0, &Places::new([(1, 1)].into_iter()), &bench.buffers).expect("written");
        assert!(given.is_none_or(|given| given == rows.as_slice().as_ptr() as usize), "no copy is made");
        let ran = bench.run(1, &[(&one, &[], 0, 1, 1)]).expect("it runs");
        assert_eq!(pieces(&ran), [(0, 0, 0..1, vec![1.0, 2.0])]);
    }
}

#[test]
fn rows_of_a_boundary_have_the_batchs_padded_length() {
    let mut x = tensor("x", -1);
    x.symbols = SmallVec::from_slice(&[Some(SymbolId(0))]);
    let y = TensorSpec { name: "y".to_owned(), ..x.clone() };
    let spec = ModelSpec {
        name: "m".to_owned(),
        version: 1,
        max_batch_size: 4,
        inputs: vec![x.clone()],
        outputs: vec![y],
        symbols: vec!["tokens".to_owned()],
        decoupled: false,
    };
    let mut plan = chain(Some(&[BoundaryDim::Symbol(SymbolId(0))]));
    plan.stages[0].inputs[0].0 = x;
    let mut bench = Bench::of(spec, plan, vec![Add::outputs(1), Add::outputs(1)]);
    bench.class = ShapeClass(Lengths::from_slice(&[3]));
    let one = vec![Some(InputTensor {
        shape: Dims::from_slice(&[1, 1]),
        data: Bytes::copy_from_slice(&5.0_f32.to_le_bytes()),
    })];
    let other = vec![Some(InputTensor {
        shape: Dims::from_slice(&[1, 3]),
        data: Bytes::copy_from_slice(bytemuck::cast_slice(&[6.0_f32, 7.0, 8.0])),
    })];
    bench.run(0, &[(&one, &[1], 0, 1, 0), (&other, &[3], 0, 1, 1)]).expect("it runs");
    let ran = bench.run(1, &[(&one, &[1], 0, 1, 0), (&other, &[3], 0, 1, 1)]).expect("it runs");
    assert_eq!(pieces(&ran), [(0, 0, 0..1, vec![5.0]), (1, 0, 0..1, vec![6.0, 7.0, 8.0])]);
}

#[test]
fn a_connection_may_skip_stages_and_an_early_output_be_an_answer_too() {
    // h is returned as y0 and goes to both later stages; the last stage adds h and g.
    let mut plan = chain(Some(TWO));
    plan.stages[0].outputs.push((tensor("h", 2), Sink::Reply(0)));
    plan.stages[1].outputs = vec![(tensor("g", 2), Sink::Boundary(0))];
    plan.boundaries.push(vec![boundary("g", Some(TWO))]);
    plan.stages.push(StageSpec {
        inputs: vec![reads("g", 1, 0), reads("h", 0, 0)],
        outputs: vec![(tensor("y1", 2), Sink::Reply(1))],
        exits: vec![],
    });
    let first = Add::outputs(1);
    let bench = Bench::new(plan, &["y0", "y1"], vec![first.clone(), Add::outputs(1), Add::outputs(1)]);
    let rows = request(&[1.0, 2.0]);
    let ran = bench.run(0, &[(&rows, &[], 0, 1, 0)]).expect("it runs");
    assert_eq!(pieces(&ran), [(0, 0, 0..1, vec![1.0, 2.0])]);
    assert_eq!(first.given.lock().as_slice(), [None], "one tensor, made once, copied once");
    bench.run(1, &[(&rows, &[], 0, 1, 0)]).expect("it runs");
    let ran = bench.run(2, &[(&rows, &[], 0, 1, 0)]).expect("it runs");
    assert_eq!(pieces(&ran), [(0, 1, 0..1, vec![2.0, 4.0])]);
}

/// A chain whose first stage has exits at the value 10, with one FP32 per row: the sum of a row of one element.
fn with_exits(exits: Vec<Exit>) -> Bench {
    let mut plan = chain(Some(&[BoundaryDim::Fixed(1)]));
    plan.stages[0].inputs[0].0 = tensor("x", 1);
    plan.stages[0].outputs.push((tensor("early", 1), Sink::Exit));
    plan.stages[0].exits = exits;
    let spec = ModelSpec {
        name: "m".to_owned(),
        version: 1,
        max_batch_size: 4,
        inputs: vec![tensor("x", 1)],
        outputs: vec![tensor("y", 1)],
        symbols: vec![],
        decoupled: false,
    };
    plan.stages.push(StageSpec {
        inputs: vec![(tensor("h", 1), InputSource::Boundary { boundary: 0, tensor: 0 })],
        outputs: vec![(tensor("y", 1), Sink::Reply(0))],
        exits: vec![],
    });
    plan.stages[1].outputs = vec![];
    plan.boundaries.push(vec![]);
    Bench::of(spec, plan, vec![Add::outputs(2), Add::outputs(0), Add::outputs(1)])
}

fn narrow(values: &[f32]) -> Vec<Option<InputTensor>> {
    let shape = Dims::from_slice(&[values.len() as i64, 1]);
    vec![Some(InputTensor { shape, data: Bytes::copy_from_slice(bytemuck::cast_slice(values)) })]
}

fn nexts(ran: &TaskOutput) -> Vec<Next> {
    ran.outcomes.iter().map(|outcome| outcome.next).collect()
}

#[test]
fn rows_that_meet_the_threshold_are_done_with_the_exits_outputs() {
    let exit = Exit { value: 0, at_least: 10.0, to: ExitTo::Done(vec![Some(1)]) };
    let bench = with_exits(vec![exit]);
    let (one, other) = (narrow(&[12.0, 3.0, 10.0, f32::NAN]), narrow(&[20.0, 30.0]));
    let ran = bench.run(0, &[(&one, &[], 0, 3, 0), (&other, &[], 1, 1, 3)]).expect("it runs");
    assert_eq!(nexts(&ran), [Next::Done, Next::On, Next::Done, Next::Done]);
    let expected = [(0, 0, 0..1, vec![13.0]), (0, 0, 2..3, vec![11.0]), (1, 0, 1..2, vec![31.0])];
    assert_eq!(pieces(&ran), expected, "the second output answers, for these rows only");
    let ran = bench.run(0, &[(&one, &[], 3, 1, 0)]).expect("it runs");
    assert_eq!((nexts(&ran), pieces(&ran)), (vec![Next::On], vec![]), "what is no number meets no threshold");
}

#[test]
fn rows_may_skip_stages_and_the_first_exit_that_fits_counts() {
    let skip = Exit { value: 0, at_least: 20.0, to: ExitTo::Stage(2) };
    let done = Exit { value: 0, at_least: 10.0, to: ExitTo::Done(vec![Some(1)]) };
    let bench = with_exits(vec![skip, done]);
    let rows = narrow(&[25.0, 15.0, 5.0]);
    let ran = bench.run(0, &[(&rows, &[], 0, 3, 0)]).expect("it runs");
    assert_eq!(nexts(&ran), [Next::Skip(CellId(2)), Next::Done, Next::On]);
    assert_eq!(pieces(&ran), [(0, 0, 1..2, vec![16.0])]);
    let ran = bench.run(2, &[(&rows, &[], 0, 1, 0)]).expect("the first row skips a stage");
    assert_eq!(pieces(&ran), [(0, 0, 0..1, vec![25.0])]);
}

#[test]
fn an_exit_without_one_value_a_row_is_named() {
    let exit = Exit { value: 0, at_least: 1.0, to: ExitTo::Stage(1) };
    let mut plan = chain(Some(TWO));
    plan.stages[0].exits = vec![exit];
    let bench = Bench::new(plan, &["y"], vec![Add::outputs(1), Add::outputs(1)]);
    let error = bench.run(0, &[(&request(&[1.0, 2.0]), &[], 0, 1, 0)]).err().expect("two values are not one");
    let expected = "output 'h' of stage 0 of model 'm': decides over 1 rows with 8 bytes, expected one FP32 a row";
    assert_eq!(error, expected);
}

#[test]
fn rows_that_were_never_left_cannot_be_read() {
    let bench = Bench::new(chain(Some(TWO)), &["y"], vec![Add::outputs(1), Add::outputs(1)]);
    let rows = request(&[1.0, 2.0]);
    bench.run(0, &[(&rows, &[], 0, 1, 0)]).expect("it runs");
    let error = bench.run(1, &[(&rows, &[], 0, 1, 1)]).err().expect("nothing is at place 1");
    assert!(error.starts_with("input 'h' of stage 1 of model 'm': row 1"), "{error}");
    let nothing = Bench { kept: vec![], ..bench };
    let error = nothing.run(1, &[(&rows, &[], 0, 1, 0)]).err().expect("the batch holds no lease");
    assert_eq!(error, "input 'h' of stage 1 of model 'm': the batch keeps nothing at boundary 0");
    let error = nothing.run(0, &[(&rows, &[], 0, 1, 0)]).err().expect("there is no room");
    assert_eq!(error, "output 'h' of stage 0 of model 'm': the batch has no room at the boundary");
}

#[test]
fn a_stage_that_loses_rows_is_named() {
    let one_row = FakeProgram::new(|batch| execution(batch, &[(&[1, 2], &[0; 8])]));
    let bench = Bench::new(chain(None), &["y"], vec![Arc::new(one_row), Add::outputs(1)]);
    let error = bench.run(0, &[(&request(&[1.0, 2.0, 3.0, 4.0]), &[], 0, 2, 0)]).err().expect("a row is missing");
    assert_eq!(error, "output 'h' of stage 0 of model 'm': has the shape [1, 2], expected 2 rows on axis 0");
}
