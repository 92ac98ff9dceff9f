//! The command line of `simulate`, from arguments to figures.

use std::fs;

use clap::Parser;
use paternoster_observe::{
    RequestEnd,
    timeline::{TaskLaunch, TaskRows, Timeline},
};

use super::*;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    args: SimulateArgs,
}

fn args(words: &[&str]) -> SimulateArgs {
    let words = [&["simulate"][..], words].concat();
    Command::try_parse_from(words).unwrap_or_else(|error| panic!("refused: {error}")).args
}

/// Arguments for a short run.
fn short(words: &[&str]) -> SimulateArgs {
    args(&[&["--requests", "300", "--seeds", "2"][..], words].concat())
}

fn refusal(words: &[&str]) -> String {
    run(&short(words)).expect_err("it cannot be simulated").to_string()
}

fn lines(words: &[&str]) -> Vec<Line> {
    let args = short(words);
    let ask = Ask::new(&args).expect("everything is there");
    compare(&args, &ask).expect("it can be simulated").1
}

const RESNET: [&str; 6] = ["--table", "npu", "--model", "resnet", "--stages", "3"];

#[test]
fn every_policy_is_played_under_every_load() {
    let lines = lines(&[&RESNET[..], &["--policy", "serial", "--policy", "lazy", "--load", "0.2,0.5"]].concat());
    let named: Vec<(&str, Option<f64>)> = lines.iter().map(|line| (line.policy.as_str(), line.part)).collect();
    assert_eq!(named, [("serial", Some(0.2)), ("serial", Some(0.5)), ("lazy", Some(0.2)), ("lazy", Some(0.5))]);
    for line in &lines {
        let all = line.figures.all();
        assert_eq!((all.offered, all.completed), (2 * 285, 2 * 285), "two seeds, without the warm-up");
    }
}

#[test]
fn figures_do_not_depend_on_the_number_of_threads() {
    let on = |threads| {
        let words = [&RESNET[..], &["--rate", "900", "--threads", threads, "--seeds", "5"]].concat();
        let words: Vec<&str> = [&["--requests", "200"][..], &words].concat();
        let args = args(&words);
        let ask = Ask::new(&args).expect("everything is there");
        let (_, lines) = compare(&args, &ask).expect("it can be simulated");
        lines.iter().map(|line| (line.figures.busy_ns, line.figures.all().latencies.mean_ns())).collect::<Vec<_>>()
    };
    assert_eq!(on("1"), on("4"));
}

#[test]
fn a_saturated_window_completes_the_peak() {
    let lines = lines(&[&RESNET[..], &["--policy", "window", "--load", "3"]].concat());
    let [line] = lines.as_slice() else { panic!("one line") };
    let share = line.figures.throughput(&line.figures.all()) / (line.rate.expect("it has a rate") / 3.0);
    assert!((0.5..1.05).contains(&share), "at three times the peak, {share} of it is completed");
}

#[test]
fn models_share_the_device_by_their_shares() {
    let words = ["--table", "npu", "--model", "resnet:3", "--model", "gnmt:1:fixed-24", "--rate", "100"];
    let lines = lines(&[&words[..], &["--policy", "lazy"]].concat());
    let offered: Vec<u64> = lines[0].figures.models.iter().map(|model| model.offered).collect();
    assert!(offered[0] > 2 * offered[1] && offered[1] > 0, "{offered:?}");
}

#[test]
fn a_trace_is_played_as_it_is() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let trace = directory.path().join("trace.csv");
    fs::write(&trace, "arrival_s,length\n0.0,8\n0.5,16\n").expect("a file for the test");
    let path = trace.display().to_string();
    let words = ["--table", "titan-rtx", "--model", "bert-base", "--policy", "serial", "--trace", &path];
    let played = lines(&[&words[..], &["--warm-up", "0"]].concat());
    let figures = &played[0].figures;
    assert_eq!((figures.all().completed, figures.arriving_ns), (2 * 2, 2 * 500_000_000));
    let long: String = (0..40).map(|second| format!("{second}.5,8\n")).collect();
    fs::write(&trace, long).expect("a file for the test");
    let counted = lines(&words)[0].figures.all().offered;
    assert_eq!(counted, 2 * 38, "the warm-up is a twentieth of the trace");
    fs::write(&trace, "0.0,8\nsoon,16\n").expect("a file for the test");
    let refusal = refusal(&words);
    assert!(refusal.contains("trace.csv' line 2: found 'soon'"), "{refusal}");
}

#[test]
fn tasks_run_as_they_were_recorded() {
    let timeline = Timeline::on(1_000);
    timeline.model_up(0, "resnet-0", 1);
    for number in 0..40 {
        let at_ns = number * 10_000_000;
        let (stage, lane, lengths) = (0, 0, &[][..]);
        let launch = TaskLaunch { task: number, model: 0, stage, lane, batch: number, bucket_rows: 1, lengths };
        timeline.arrived(at_ns, number, 0, 1);
        timeline.launched(at_ns, &launch, [TaskRows { req: number, start: 0, count: 1, at: 0 }]);
        timeline.completed(at_ns + 3_300_000, number, false);
        timeline.ended(at_ns + 3_300_000, number, RequestEnd::Completed);
    }
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("trace.json");
    let picture = timeline.recording().expect("it is on").picture();
    picture.write_chrome(&mut fs::File::create(&path).expect("a file for the test")).expect("it is written");
    let file = path.display().to_string();
    let resnet = ["--table", "npu", "--model", "resnet", "--stages", "1", "--policy", "serial", "--rate", "1"];
    let mean_ns = |more: &[&str]| lines(&[&resnet[..], more].concat())[0].figures.all().latencies.mean_ns();
    let (by_table, as_recorded) = (mean_ns(&[]), mean_ns(&["--recorded", &file]));
    assert!((1.0e6..1.2e6).contains(&by_table) && (3.3e6..3.4e6).contains(&as_recorded), "{by_table}, {as_recorded}");

    fs::write(&path, "{\"traceEvents\": []}").expect("a file for the test");
    let refusal = refusal(&[&resnet[..], &["--recorded", &file]].concat());
    assert!(refusal.contains("trace.json': it is a trace, but not a timeline of paternoster"), "{refusal}");
}

#[test]
fn more_requests_need_more_devices_and_too_many_are_said_to_be() {
    let devices = |rate: &str, p99: &str| {
        let words = ["--capacity", rate, "--p99-ms", p99, "--policy", "serial", "--max-devices", "16"];
        let args = short(&[&RESNET[..], &words].concat());
        let ask = Ask::new(&args).expect("everything is there");
        let asked = (args.capacity.expect("given"), args.p99_ms.expect("given"));
        size(&args, &ask, asked.0, asked.1).expect("it can be simulated")[0].devices
    };
    let needed = ["300", "1500", "4000"].map(|rate| devices(rate, "8"));
    assert!(needed.iter().all(Option::is_some) && needed.is_sorted() && needed[0] < needed[2], "{needed:?}");
    assert_eq!(devices("1500", "1"), None, "a request alone takes 1.1 ms");
    assert_eq!(devices("2000", "50"), Some(3), "two devices complete 1,818 requests a second, however short the run");
}

#[test]
fn files_hold_what_was_asked_for() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let file = |name: &str| directory.path().join(name).display().to_string();
    let (csv, svg) = (file("out.csv"), file("out.svg"));
    let words = ["--rate", "100,900", "--policy", "window", "--csv", &csv, "--svg", &svg, "--json"];
    run(&short(&[&RESNET[..], &words].concat())).expect("it can be simulated");
    let written = fs::read_to_string(&csv).expect("it was written");
    let rows: Vec<&str> = written.lines().collect();
    let titles = "policy,objective_ms,load,rate,model,mean_ms,p50_ms,";
    assert!(rows[0].starts_with(titles) && rows.len() == 3, "{written}");
    assert!(rows[1].starts_with("window,,,100,resnet,"), "{written}");
    for name in ["mean", "p90", "p99", "throughput", "goodput", "quantiles", "queued", "computing"]
        .map(|name| format!("out-{name}.svg"))
    {
        let name = name.as_str();
        let drawn = fs::read_to_string(file(name)).expect("it was drawn");
        assert!(drawn.contains("resnet on npu") && drawn.contains("window"), "{name}");
    }
    for name in ["out-missed.svg", "out-time.svg"] {
        assert!(!directory.path().join(name).exists(), "{name} would be empty");
    }
    let refusal = refusal(&[&RESNET[..], &["--rate", "100", "--csv", "/no/such/out.csv"]].concat());
    assert!(refusal.starts_with("cannot write '/no/such/out.csv': "), "{refusal}");
}

#[test]
fn programs_can_check_that_no_request_is_lost() {
    let limited = "window, queueing: { queue: { max_queue_size: 3, default_timeout_us: 2000 } }";
    let words = ["--rate", "2500", "--warm-up", "0", "--policy", limited, "--policy", "window"];
    let two_models = ["--table", "npu", "--model", "resnet:2", "--model", "transformer:1:fixed-24"];
    let args = short(&[&two_models[..], &words].concat());
    let ask = Ask::new(&args).expect("everything is there");
    let (_, lines) = compare(&args, &ask).expect("it can be simulated");
    let runs = output::json(&ask, &lines);
    assert_eq!(runs.len(), 2 * 3, "two models and their sum under each policy");
    for run in &runs {
        let count = |name: &str| run[name].as_f64().unwrap_or_else(|| panic!("{name} is missing: {run}"));
        assert_eq!(count("completed") + count("refused"), count("requests"), "{run}");
        assert!((count("throughput") * count("span_s") - count("completed")).abs() < 1e-6, "{run}");
        assert!((count("batch") * count("tasks") - count("rows")).abs() < 1e-6 && count("tasks") > 0.0, "{run}");
    }
    let of = |run: usize, name: &str| runs[run][name].as_f64().expect("it is a count") as u64;
    assert_eq!(of(2, "requests"), 2 * 300, "the sum");
    assert!(of(2, "refused") > 0 && of(5, "refused") == 0, "only the first policy refuses any");
    assert_eq!(of(3, "rows"), 18 * of(3, "completed"), "each image of ResNet-50 runs each of 18 stages once");
}

#[test]
fn each_objective_is_a_run_of_its_own() {
    let words = ["--rate", "600", "--policy", "serial", "--objective-ms", "1.2,4,400"];
    let lines = lines(&[&RESNET[..], &words].concat());
    let missed: Vec<f64> = lines.iter().map(|line| line.figures.all().missed()).collect();
    assert_eq!(lines.iter().map(|line| line.objective_ms).collect::<Vec<_>>(), [1.2, 4.0, 400.0].map(Some));
    assert!(missed[0] > 0.3 && missed[1] < missed[0] && missed[2] == 0.0, "{missed:?}");
    let directory = tempfile::tempdir().expect("a directory for the test");
    let svg = directory.path().join("out.svg").display().to_string();
    run(&short(&[&RESNET[..], &words, &["--svg", &svg]].concat())).expect("it can be simulated");
    let drawn = fs::read_to_string(directory.path().join("out-missed.svg")).expect("it was drawn");
    assert!(drawn.contains("objective in ms") && drawn.contains("600 requests/s"), "{drawn}");
    let several = refusal(&[&RESNET[..], &["--capacity", "9", "--p99-ms", "9", "--objective-ms", "1,2"]].concat());
    assert!(several.starts_with("--objective-ms: expected one objective with --capacity"), "{several}");
}

#[test]
fn policies_have_their_own_names_and_stages() {
    let words = ["--rate", "600", "--policy", "one=window, stages: 1", "--policy", "all = window, stages: 18"];
    let lines = lines(&[&["--table", "npu", "--model", "resnet"][..], &words].concat());
    let tasks: Vec<(&str, u64)> =
        lines.iter().map(|line| (line.policy.as_str(), line.figures.all().counters.tasks_launched)).collect();
    assert_eq!((tasks[0].0, tasks[1].0), ("one", "all"));
    assert!(tasks[1].1 > 15 * tasks[0].1, "{tasks:?}");
    let found = refusal(&[&RESNET[..], &["--rate", "9", "--policy", "window, stages: 99"]].concat());
    assert_eq!(found, "the model 'resnet' has 18 parts: expected from 1 to 18 stages, but found 99");
}

#[test]
fn numbers_that_exceed_the_clock_are_refused() {
    let times = ["--boundary-us", "--after-idle-us", "--front-us", "--horizon-us"];
    let times = times.map(|flag| (flag, ["-1", "60000001", "1e300", "inf", "NaN"], "from 0 to 60000000"));
    let rates = ["--rate", "--capacity"];
    let rates = rates.map(|flag| (flag, ["0", "-1", "1e-300", "1e10", "NaN"], "from 0.001 to 1000000000"));
    let milliseconds = ["--objective-ms", "--p99-ms"];
    let milliseconds =
        milliseconds.map(|flag| (flag, ["0", "-1", "86400001", "1e300", "NaN"], "from 0.000001 to 86400000"));
    let loads = [("--load", ["0", "-1", "1e-300", "1e300", "NaN"], "from 0.000001 to 1000")];
    for (flag, numbers, expected) in times.into_iter().chain(rates).chain(milliseconds).chain(loads) {
        for number in numbers {
            let given = format!("{flag}={number}");
            let words = [&["simulate"][..], &RESNET, &[&given]].concat();
            let refusal = Command::try_parse_from(words).expect_err("it is out of range").to_string();
            assert!(refusal.contains(&format!("expected a number {expected}")), "{flag} {number}: {refusal}");
        }
    }
    let endless = [&RESNET[..], &["--capacity", "1e6", "--p99-ms", "86400000"]].concat();
    assert!(refusal(&endless).ends_with("expected at most 1000000000"), "{}", refusal(&endless));
}

#[test]
fn the_longest_times_can_be_simulated() {
    let most = ["--boundary-us", "--after-idle-us", "--front-us", "--horizon-us"].map(|flag| [flag, "60000000"]);
    let words = [&RESNET[..], most.as_flattened(), &["--rate", "0.001", "--policy", "window"]].concat();
    let all = lines(&words)[0].figures.all();
    assert_eq!((all.offered, all.completed), (2 * 285, 2 * 285));
}

#[test]
fn a_policy_may_have_a_boundary_of_its_own() {
    let words = ["--rate", "1", "--boundary-us", "5", "--policy", "as given=window"];
    let own = ["--policy", "own=window, boundary_us: 290", "--policy", "one stage=window, stages: 1, boundary_us: 290"];
    let lines = lines(&[&["--table", "npu", "--model", "resnet"][..], &words, &own].concat());
    let least_ms = |line: usize| lines[line].figures.all().latencies.quantile_ns(0.0) as f64 / 1e6;
    let differences = [least_ms(1) - least_ms(0), least_ms(2) - least_ms(0)];
    let expected = [18.0 * 0.285, 0.290 - 18.0 * 0.005];
    // A histogram of latencies is exact to a hundredth.
    assert!(
        differences.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.07),
        "{differences:?}"
    );
}

#[test]
fn a_stepping_load_shows_the_highest_step_that_a_policy_carries() {
    let words = ["--arrivals", "stepped", "--requests", "20000", "--policy", "serial", "--objective-ms", "50"];
    let args = args(&[&RESNET[..], &words, &["--seeds", "1"]].concat());
    let ask = Ask::new(&args).expect("everything is there");
    let (_, lines) = compare(&args, &ask).expect("it can be simulated");
    let figures = &lines[0].figures;
    assert_eq!(figures.periods.len(), 10, "a period a step");
    let step = figures.highest_step(50e6).expect("it carries the first steps");
    assert!((800.0..900.0).contains(&step), "909 requests a second are the most; found {step}");
    let directory = tempfile::tempdir().expect("a directory for the test");
    plots::write(&directory.path().join("out.svg"), &ask, &lines).expect("it is drawn");
    let drawn = fs::read_to_string(directory.path().join("out-time.svg")).expect("it was drawn");
    assert!(drawn.contains("requests/s that arrive") && drawn.contains("serial"), "{drawn}");
}

#[test]
fn cells_carry_more_than_padded_graphs_and_answer_sooner() {
    let words = ["--table", "v100", "--model", "lstm", "--boundary-us", "65", "--horizon-us", "2000"];
    let policies = ["--policy", "cellular", "--policy", "graphs=window, queueing: { bucket_width: 10 }"];
    let lines = lines(&[&words[..], &policies, &["--load", "0.2"]].concat());
    let [cellular, graphs] = [0, 1].map(|line: usize| lines[line].figures.all());
    assert_eq!((cellular.completed, graphs.completed), (2 * 285, 2 * 285));
    assert!(cellular.latencies.mean_ns() < graphs.latencies.mean_ns() / 1.5);
    assert!(cellular.counters.tasks_launched > 4 * graphs.counters.tasks_launched, "a task is a step");
}

#[test]
fn trees_are_workloads_of_models_that_have_them() {
    let words = ["--table", "v100", "--model", "tree-lstm", "--policy", "cellular", "--rate", "100"];
    for workload in [&[][..], &["--workload", "trees-16"]] {
        assert_eq!(lines(&[&words[..], workload].concat())[0].figures.all().completed, 2 * 285);
    }
    let found = refusal(&[&words[..], &["--workload", "wmt15"]].concat());
    assert_eq!(found, "--workload: expected trees, trees-16, but found 'wmt15'");
    let lstm = ["--table", "v100", "--model", "lstm", "--policy", "cellular", "--rate", "100"];
    let found = refusal(&[&lstm[..], &["--workload", "trees"]].concat());
    assert!(found.starts_with("--workload: expected wmt15, ") && found.ends_with("but found 'trees'"), "{found}");
}

#[test]
fn words_that_name_nothing_are_refused_with_what_there_is() {
    let npu = |words: &[&str]| refusal(&[&["--table", "npu"][..], words].concat());
    let models =
        "resnet, gnmt, transformer, vggnet, mobilenet, las, bert-base, gnmt-cells, transformer-cells, las-cells";
    assert_eq!(npu(&[]), format!("name a model of the table 'npu': --model {}", models.replace(", ", "|")));
    assert_eq!(npu(&["--model", "bert"]), format!("the table 'npu' has no model 'bert'; it has {models}"));
    assert_eq!(npu(&["--model", "resnet:x"]), "model 'resnet:x': expected a share above 0, but found 'x'");
    assert!(npu(&["--model", "gnmt", "--workload", "wmt"]).starts_with("--workload: expected wmt15, "));
    let found = npu(&["--model", "resnet", "--arrivals", "burst"]);
    assert_eq!(found, "--arrivals: expected poisson, stepped, ramp, bursts, but found 'burst'");
    assert!(npu(&["--model", "resnet", "--policy", "lasy"]).starts_with("policy 'lasy': "));
    let found = npu(&["--model", "resnet", "--stages", "99"]);
    assert_eq!(found, "the model 'resnet' has 18 parts: expected from 1 to 18 stages, but found 99");
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    for wrong in [
        &["--load", "0.5", "--rate", "9"][..],
        &["--capacity", "9"],
        &["--p99-ms", "9"],
        &["--capacity", "9", "--p99-ms", "9", "--rate", "9"],
        &["--trace", "t.csv", "--rate", "9"],
        &["--load", "0"],
        &["--rate", "-1"],
        &["--requests", "0"],
        &["--backlog", "9", "--trace", "t.csv"],
        &["--lanes", "0"],
    ] {
        let words = [&["simulate", "--table", "npu"][..], wrong].concat();
        assert!(Command::try_parse_from(words).is_err(), "{wrong:?} is taken");
    }
}
