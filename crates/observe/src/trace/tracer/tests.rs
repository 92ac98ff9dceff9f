//! Selection of traced requests, inheritance of settings, and trace files.

use std::{fs, path::Path};

use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::{
    ExecutionTimings, RequestEnd, TaskRun,
    trace::{Parts, TraceLevel, TracedTensor, Transport},
};

const TIMESTAMPS: TraceLevel = TraceLevel { timestamps: true, tensors: false };

fn settings(rate: u32, count: Option<u32>, log_frequency: u32) -> TraceSettings {
    TraceSettings { level: TIMESTAMPS, rate, count, log_frequency }
}

fn to_file(folder: &TempDir, settings: TraceSettings) -> Tracer {
    let file = Some(folder.path().join("trace.json"));
    Tracer::start(TraceOptions { settings, file, export: None }).expect("a thread")
}

/// Traces one request of a model, if it is selected.
fn ask(tracer: &Tracer, model: &str) -> Option<Arc<RequestTrace>> {
    let head = tracer.head(&HeaderMap::new())?;
    let (transport, received) = (Transport::Grpc, Instant::now());
    tracer.begin(&TracedRequest { transport, head, received, model, version: 3, id: "one \"quoted\"" })
}

fn traced(tracer: &Tracer, model: &str, requests: usize) -> usize {
    (0..requests).filter(|_| ask(tracer, model).is_some()).count()
}

fn change(tracer: &Tracer, model: Option<&str>, name: &str, values: &[&str]) -> Result<(), TraceSettingError> {
    let values: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
    tracer.change(model, [(name, &*values)])
}

fn shown(tracer: &Tracer, model: Option<&str>, name: &str) -> String {
    let settings = tracer.settings(model);
    let (_, values) = settings.into_iter().find(|(shown, _)| *shown == name).expect("it is a setting");
    values.join(",")
}

fn list(path: &Path) -> Vec<Value> {
    let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let list: Value = serde_json::from_slice(&text).expect("a JSON list at any time");
    list.as_array().expect("a list").clone()
}

fn ids(path: &Path) -> Vec<u64> {
    list(path)
        .iter()
        .filter(|object| object.get("model_name").is_some())
        .filter_map(|named| named["id"].as_u64())
        .collect()
}

#[test]
fn every_nth_request_is_traced_until_the_count_is_used_up() {
    let folder = TempDir::new().expect("a folder");
    let tracer = to_file(&folder, settings(3, Some(2), 0));
    let which: Vec<usize> = (1..=12).filter(|_| ask(&tracer, "m").is_some()).collect();
    assert_eq!(which, [3, 6], "two of every third");
    assert_eq!(shown(&tracer, None, "trace_count"), "0");
    assert_eq!(tracer.stats().sampled_requests(), 2);
}

#[test]
fn a_tracer_that_is_off_keeps_nothing_of_a_request() {
    let folder = TempDir::new().expect("a folder");
    let off = to_file(&folder, TraceSettings { level: TraceLevel::OFF, ..settings(1, None, 0) });
    assert!(off.head(&HeaderMap::new()).is_none());
    let nowhere = TraceOptions { settings: settings(1, None, 0), ..TraceOptions::default() };
    let nowhere = Tracer::start(nowhere).expect("no thread is needed");
    assert!(nowhere.head(&HeaderMap::new()).is_none(), "there is no file");
    assert_eq!(
        change(&nowhere, None, "trace_level", &["TIMESTAMPS"]),
        Err(TraceSettingError::Inconsistent("trace file name is not given"))
    );
}

#[test]
fn settings_of_a_model_go_before_the_servers_and_fall_back_when_cleared() {
    let folder = TempDir::new().expect("a folder");
    let tracer = to_file(&folder, settings(2, None, 0));
    change(&tracer, Some("own"), "trace_rate", &["1"]).expect("a rate");
    assert_eq!((traced(&tracer, "own", 4), traced(&tracer, "other", 4)), (4, 2));

    change(&tracer, None, "trace_rate", &["4"]).expect("a rate");
    change(&tracer, None, "trace_count", &["9"]).expect("a count");
    assert_eq!(shown(&tracer, Some("own"), "trace_rate"), "1", "it is specified");
    assert_eq!(shown(&tracer, Some("own"), "trace_count"), "9", "it is not");
    change(&tracer, None, "trace_count", &[]).expect("clearing");

    change(&tracer, Some("own"), "trace_rate", &[]).expect("clearing");
    assert_eq!(shown(&tracer, Some("own"), "trace_rate"), "4", "the server's");
    change(&tracer, None, "trace_rate", &[]).expect("clearing");
    assert_eq!(shown(&tracer, Some("own"), "trace_rate"), "2", "what the server was started with");

    change(&tracer, Some("own"), "trace_level", &["OFF"]).expect("a level");
    assert_eq!((traced(&tracer, "own", 4), traced(&tracer, "other", 4)), (0, 2));
    assert_eq!(
        change(&tracer, Some("other"), "trace_rate", &["0"]),
        Err(TraceSettingError::Inconsistent("sample rate must be non-zero"))
    );
    assert_eq!(shown(&tracer, Some("other"), "trace_rate"), "2", "a change that is refused changes nothing");
}

#[test]
fn a_count_that_is_specified_goes_on_when_other_settings_change() {
    let folder = TempDir::new().expect("a folder");
    let tracer = to_file(&folder, settings(1, None, 0));
    change(&tracer, Some("m"), "trace_count", &["5"]).expect("a count");
    assert_eq!(traced(&tracer, "m", 2), 2);
    change(&tracer, Some("m"), "trace_rate", &["1"]).expect("a rate");
    change(&tracer, None, "trace_rate", &["1"]).expect("a rate");
    assert_eq!(shown(&tracer, Some("m"), "trace_count"), "3");
    assert_eq!(traced(&tracer, "m", 9), 3);
}

#[test]
fn only_so_many_models_have_settings_of_their_own() {
    let folder = TempDir::new().expect("a folder");
    let tracer = to_file(&folder, settings(1, None, 0));
    for model in 0..MOST_MODELS {
        change(&tracer, Some(&model.to_string()), "trace_rate", &["7"]).expect("there is room");
    }
    assert_eq!(change(&tracer, Some("more"), "trace_rate", &["7"]), Err(TraceSettingError::TooMany(MOST_MODELS)));
    change(&tracer, Some("0"), "trace_rate", &["8"]).expect("it has some");
    change(&tracer, Some("0"), "trace_rate", &[]).expect("clearing");
    change(&tracer, Some("more"), "trace_rate", &["7"]).expect("there is room again");
}

#[test]
fn a_trace_says_when_its_request_was_where() {
    let folder = TempDir::new().expect("a folder");
    let tracer = to_file(&folder, settings(1, None, 0));
    let trace = ask(&tracer, "m").expect("it is traced");
    trace.submitted(trace.record.admitted, Parts::Whole);
    let timings = ExecutionTimings { compute_input_ns: 10, compute_infer_ns: 70, compute_output_ns: 20 };
    let task = TaskRun { cell: 0, started_ns: 200, ended_ns: 300, timings, batch_rows: 4 };
    trace.ran(&task);
    let timings = ExecutionTimings { compute_output_ns: 30, ..timings };
    trace.ran(&TaskRun { cell: 1, started_ns: 400, ended_ns: 500, timings, ..task });
    trace.ended(100, 600, RequestEnd::Completed);
    drop(trace.sending());
    drop(trace);
    tracer.flush();

    let objects = list(&folder.path().join("trace.json"));
    assert_eq!(objects[0]["model_name"], "m");
    assert_eq!(objects[0]["model_version"], 3);
    assert_eq!(objects[0]["request_id"], "one \"quoted\"");
    let stamps: HashMap<&str, i128> = objects[1..]
        .iter()
        .map(|object| {
            assert_eq!(object["id"], objects[0]["id"]);
            let stamp = &object["timestamps"][0];
            (stamp["name"].as_str().expect("a name"), i128::from(stamp["ns"].as_u64().expect("a time")))
        })
        .collect();
    let since_start = |name: &str| stamps[name] - stamps["REQUEST_START"];
    let expected = [
        ("QUEUE_START", 100),
        ("COMPUTE_START", 200),
        ("COMPUTE_INPUT_END", 210),
        ("COMPUTE_OUTPUT_START", 470),
        ("COMPUTE_END", 500),
        ("REQUEST_END", 600),
    ];
    for (name, ns) in expected {
        assert_eq!(since_start(name), ns, "{name}");
    }
    assert!(stamps["GRPC_WAITREAD_START"] <= stamps["GRPC_WAITREAD_END"]);
    assert!(stamps["GRPC_SEND_START"] <= stamps["GRPC_SEND_END"]);
}

/// Of a trace's objects: the one that names its request, and the names of its timestamps.
fn trace_of(objects: &[Value], id: u64) -> (&Value, Vec<&str>) {
    let of_trace: Vec<&Value> = objects.iter().filter(|object| object["id"] == id).collect();
    let (named, stamps) = of_trace.split_first().expect("a trace");
    (named, stamps.iter().filter_map(|object| object["timestamps"][0]["name"].as_str()).collect())
}

#[test]
fn the_steps_of_a_request_have_traces_that_are_written_with_its_own() {
    let folder = TempDir::new().expect("a folder");
    let tracer = to_file(&folder, settings(1, None, 1));
    let whole = ask(&tracer, "ensemble").expect("it is traced");
    let outer = whole.step("outer", 2).expect("steps have traces in files");
    let inner = outer.step("inner", 7).expect("and theirs too");
    let timings = ExecutionTimings { compute_input_ns: 1, compute_infer_ns: 7, compute_output_ns: 2 };
    for trace in [&whole, &outer, &inner] {
        trace.submitted(trace.record.admitted, Parts::Whole);
        trace.ran(&TaskRun { cell: 0, started_ns: 20, ended_ns: 30, timings, batch_rows: 1 });
        trace.responded();
        trace.ended(10, 40, RequestEnd::Completed);
    }
    drop(whole.sending());
    drop(whole);
    drop(outer);
    tracer.flush();
    assert!(!folder.path().join("trace.json.0").exists(), "a step has not ended");
    drop(inner);
    drop(ask(&tracer, "next"));
    tracer.flush();

    let objects = list(&folder.path().join("trace.json.0"));
    let names = |name: &str, version: i64, parent: Option<u64>, id: u64| {
        let mut named = serde_json::json!({
            "id": id, "model_name": name, "model_version": version, "request_id": "one \"quoted\"",
        });
        if let Some(parent) = parent {
            named["parent_id"] = parent.into();
        }
        named
    };
    let of_request = ["REQUEST_START", "QUEUE_START", "INFER_RESPONSE_COMPLETE", "REQUEST_END"];
    let of_compute = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"];
    let of_transport = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"];
    let (named, stamps) = trace_of(&objects, 1);
    assert_eq!((named, stamps), (&names("ensemble", 3, None, 1), [of_transport, of_request].concat()));
    let (named, stamps) = trace_of(&objects, 2);
    assert_eq!((named, stamps), (&names("outer", 2, Some(1), 2), of_request.to_vec()), "its step was computed");
    let (named, stamps) = trace_of(&objects, 3);
    assert_eq!((named, stamps), (&names("inner", 7, Some(2), 3), [of_request, of_compute].concat()));
    assert_eq!(ids(&folder.path().join("trace.json.1")), [4], "one request counts once");
    assert_eq!(tracer.stats().sampled_requests(), 2);
}

#[test]
fn a_request_keeps_a_bounded_number_of_traces_of_its_steps() {
    let folder = TempDir::new().expect("a folder");
    let tracer = to_file(&folder, settings(1, None, 0));
    let whole = ask(&tracer, "ensemble").expect("it is traced");
    let steps = 2_000;
    for _ in 0..steps / 2 {
        drop(whole.step("step", 1).map(|step| step.step("step", 1)));
    }
    drop(whole);
    tracer.flush();
    let file = folder.path().join("trace.json");
    let written = list(&file).iter().filter(|object| object["model_name"] == "step").count() as u64;
    // A step that has no trace gives its own steps none.
    assert_eq!((written, tracer.stats().dropped_traces()), (1_000, 500));
}

#[test]
fn a_long_chain_of_one_cell_is_one_spell_and_many_short_ones_are_bounded() {
    let folder = TempDir::new().expect("a folder");
    let tracer = to_file(&folder, settings(1, None, 0));
    let trace = ask(&tracer, "m").expect("it is traced");
    let timings = ExecutionTimings { compute_input_ns: 1, compute_infer_ns: 2, compute_output_ns: 3 };
    let task = |at: u64, cell| TaskRun { cell, started_ns: at * 10, ended_ns: at * 10 + 9, timings, batch_rows: 1 };
    (0..1000).for_each(|at| trace.ran(&task(at, 0)));
    {
        let progress = trace.record.progress.lock();
        let [interval] = &*progress.intervals else { panic!("one interval: {:?}", progress.intervals) };
        let run = interval.run;
        assert_eq!((interval.tasks, run.started_ns, run.ended_ns), (1000, 0, 9_999));
        assert_eq!(run.timings.compute_infer_ns, 2000);
    }
    (1000..2000).for_each(|at| trace.ran(&task(at, (at % 3) as u16)));
    let progress = trace.record.progress.lock();
    assert_eq!(progress.intervals.len(), 64);
    assert_eq!(progress.intervals.iter().map(|interval| interval.tasks).sum::<u32>(), 2000, "none is lost");
}

#[test]
fn with_a_frequency_each_file_holds_so_many_traces() {
    let folder = TempDir::new().expect("a folder");
    let tracer = to_file(&folder, settings(1, None, 2));
    assert_eq!(traced(&tracer, "m", 5), 5);
    tracer.flush();
    let file = |number: u32| folder.path().join(format!("trace.json.{number}"));
    assert_eq!([ids(&file(0)), ids(&file(1)), ids(&file(2))], [vec![1, 2], vec![3, 4], vec![5]]);
    let refused = change(&tracer, None, "log_frequency", &["1"]);
    assert_eq!(refused, Err(TraceSettingError::Fixed("log frequency")), "clients could fill the folder with files");
    assert_eq!(shown(&tracer, None, "log_frequency"), "2");
}

#[test]
fn traces_that_cannot_be_written_are_counted_and_the_next_ones_are_tried() {
    let folder = TempDir::new().expect("a folder");
    let directory = folder.path().join("not there yet");
    let file = Some(directory.join("trace.json"));
    let options = TraceOptions { settings: settings(1, None, 0), file, export: None };
    let tracer = Tracer::start(options).expect("a thread");
    assert_eq!(traced(&tracer, "m", 3), 3);
    tracer.flush();
    assert_eq!(tracer.stats().dropped_traces(), 3);
    fs::create_dir(&directory).expect("a folder");
    assert_eq!(traced(&tracer, "m", 1), 1);
    tracer.flush();
    assert_eq!(ids(&directory.join("trace.json")), [4]);
}

/// Creates a pipe, a file whose writer blocks until the test reads.
fn pipe(folder: &TempDir) -> std::path::PathBuf {
    let path = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo is there");
    assert!(made.success());
    path
}

#[test]
fn a_disk_that_takes_nothing_costs_traces_and_no_request_waits_for_it() {
    // 1,024 traces may wait, or 16 MiB of them, and the writer may hold one more.
    for (level, tensor_bytes, waiting) in
        [(TIMESTAMPS, 0, 1024), (TraceLevel { tensors: true, ..TIMESTAMPS }, 60_000, 270)]
    {
        let folder = TempDir::new().expect("a folder");
        let file = pipe(&folder);
        let settings = TraceSettings { level, ..settings(1, None, 0) };
        let options = TraceOptions { settings, file: Some(file.clone()), export: None };
        let tracer = Tracer::start(options).expect("a thread");
        for _ in 0..waiting + 100 {
            let trace = ask(&tracer, "m").expect("every request is traced");
            let (name, shape, data) = ("INPUT0".to_owned(), vec![1], "1".repeat(tensor_bytes));
            trace.tensor(TracedTensor { is_input: true, name, datatype: "UINT64", shape, data });
        }
        assert!(tracer.stats().dropped_traces() >= 90, "{} traces", tracer.stats().dropped_traces());
        // From here on the pipe can be written to, but does not support seeking.
        let _reader = fs::File::open(file).expect("it opens");
        tracer.flush();
        assert_eq!(tracer.stats().dropped_traces(), waiting + 100, "those that waited are counted too");
    }
}

#[test]
fn tensors_beyond_the_bound_are_recorded_without_their_elements() {
    let folder = TempDir::new().expect("a folder");
    let level = TraceLevel { tensors: true, timestamps: false };
    let tracer = to_file(&folder, TraceSettings { level, ..settings(1, None, 0) });
    let trace = ask(&tracer, "m").expect("it is traced");
    assert!(trace.has_tensors());
    for number in 0..1000 {
        let (name, shape, data) = (number.to_string(), vec![2, 3], "1".repeat(10_000));
        trace.tensor(TracedTensor { is_input: number == 0, name, datatype: "UINT64", shape, data });
    }
    drop(trace);
    tracer.flush();
    let objects = list(&folder.path().join("trace.json"));
    assert_eq!(objects.len(), 1 + 256, "the model's name, and as many tensors as are kept");
    assert!(objects.iter().all(|object| object.get("timestamps").is_none()), "the level has none");
    let tensors: Vec<&Value> = objects[1..].iter().collect();
    assert_eq!(
        (&tensors[0]["activity"], &tensors[1]["activity"]),
        (&"TENSOR_QUEUE_INPUT".into(), &"TENSOR_BACKEND_OUTPUT".into())
    );
    assert_eq!((&tensors[0]["tensor"]["shape"], &tensors[0]["tensor"]["dtype"]), (&"2,3".into(), &"UINT64".into()));
    let whole = tensors.iter().filter(|object| object["tensor"]["data"] != "").count();
    assert_eq!(whole, 6, "of 64 KiB");
}
