//! `--policy`: the `batching` section of a `model.yaml`, in full or abbreviated, read by the server's own code.

use paternoster_batching::{Knobs, Policy, PolicyKind, Predictor};
use paternoster_config::{complete, convert, policy_text::PolicyText, yaml};
use paternoster_lab::simulate::ModelTable;
use serde_yaml::{Mapping, Value};

use super::MOST_US;

/// LazyBatching's oracle: `lazy` with exact knowledge of all times, which only a simulator can have.
const ORACLE: &str = "oracle";

/// The key that replaces `--boundary-us` for one policy.
const BOUNDARY: &str = "boundary_us";

/// Placeholder configuration of a model of cells, whose actual cells come from the device table.
const SOME_CELLS: &str = "cells: { cell: { program: cell.onnx } }\nunfold: [ stage: cell ]\n";

/// What a model's knobs depend on in addition to the policy's text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances {
    pub(super) lanes: u16,
    /// Tasks that a lane accepts before earlier ones have ended.
    pub(super) depth: u16,
    pub(super) objective_ms: Option<f64>,
    pub(super) max_batch: Option<u32>,
}

/// A policy to simulate: a name (`lazy`), a name with its knobs (`lazy: { max_depth: 2 }`), or the keys of a `batching`
/// section (`policy: window, queueing: { … }, window: { … }`). `stages`, `max_batch_size` and `boundary_us` may be
/// among the keys, and an own name may precede an equals sign.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// Its name in figures and plots.
    pub(super) name: String,
    /// Number of stages, if it sets one.
    pub(super) stages: Option<usize>,
    /// Time that each of its tasks takes in addition to the table's, if it sets one.
    pub(super) boundary_us: Option<f64>,
    max_batch: Option<Value>,
    batching: Mapping,
    is_oracle: bool,
}

impl Asked {
    /// Parses a policy's text.
    ///
    /// # Errors
    /// Fails if it is not a mapping that begins with a policy.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let (name, policy) = text.split_once('=').map_or((text, text), |(name, policy)| (name, policy));
        let name = name.trim().to_owned();
        let wrong =
            || format!("policy '{name}': expected its name and its knobs, as 'window: {{ max_queue_delay_us: 500 }}'");
        let PolicyText { mut batching, model } = PolicyText::read(policy).ok_or_else(wrong)?;
        let stages = match model.get("stages") {
            None => None,
            Some(given) => {
                let count = given.as_u64().and_then(|count| usize::try_from(count).ok());
                Some(count.ok_or_else(|| format!("policy '{name}': stages: expected a number"))?)
            }
        };
        let boundary_us = match batching.remove(BOUNDARY) {
            None => None,
            Some(given) => {
                let us = given.as_f64().filter(|us| (0.0..=MOST_US).contains(us));
                let expected = || format!("policy '{name}': {BOUNDARY}: expected a number from 0 to {MOST_US}");
                Some(us.ok_or_else(expected)?)
            }
        };
        let is_oracle = batching.get("policy").and_then(Value::as_str) == Some(ORACLE);
        if is_oracle {
            let lazy = PolicyKind::Lazy.name();
            if let Some(knobs) = batching.remove(ORACLE) {
                batching.insert(lazy.into(), knobs);
            }
            batching.insert("policy".into(), lazy.into());
        }
        let max_batch = model.get("max_batch_size").cloned();
        Ok(Self { name, stages, boundary_us, max_batch, batching, is_oracle })
    }

    /// Returns the knobs of a model under this policy.
    ///
    /// # Errors
    /// Names the policy, the key and what was expected.
    pub(super) fn knobs(&self, model: &ModelTable, around: Circumstances) -> Result<Knobs, String> {
        let is_cellular = self.is_cellular(model)?;
        let mut batching = self.batching.clone();
        if let Some(objective_ms) = around.objective_ms.filter(|_| !batching.contains_key("latency_objective_ms")) {
            batching.insert("latency_objective_ms".into(), objective_ms.into());
        }
        let given = self.max_batch.clone().or(around.max_batch.map(Value::from));
        let largest = given.clone().unwrap_or_else(|| model.max_batch_rows.into());
        let mut top = Mapping::new();
        // Each cell has a limit of its own, within the given one.
        top.insert("max_batch_size".into(), if is_cellular { 1.into() } else { largest.clone() });
        top.insert("batching".into(), Value::Mapping(batching));
        let refused = |key: &str, message: &str| match key {
            "" => format!("policy '{}': {message}", self.name),
            key => format!("policy '{}': {key}: {message}", self.name),
        };
        let mut written = serde_yaml::to_string(&top).map_err(|fault| refused("", &fault.to_string()))?;
        let in_flight = u32::from(around.lanes.max(1)) * u32::from(around.depth.max(1));
        written.push_str(&format!("instance: {{ count: {in_flight} }}\n"));
        if is_cellular {
            written.push_str(SOME_CELLS);
        } else if model.is_padded() || model.cells.is_some() {
            written
                .push_str("inputs: [{ name: input, dtype: FP32, dims: [length], pad: { axis: length, value: 0 } }]\n");
        }
        let stages = if model.cells.is_some() { 1 } else { model.latencies.stages.len() };
        if (2..=256).contains(&stages) {
            written.push_str(&format!("stages: {stages}\n"));
        }
        let (mut settings, origin) =
            yaml::parse("policy", written.as_bytes()).map_err(|fault| refused(&fault.key, &fault.message))?;
        complete::scheduler(&mut settings);
        let converted = convert::model(&settings, 1, &Default::default(), &origin);
        let (_, mut knobs, _) = converted.map_err(|fault| refused(&fault.key, &fault.message))?;
        if let (true, Policy::Lazy(lazy)) = (self.is_oracle, &mut knobs.policy) {
            lazy.predictor = Predictor::Oracle;
        }
        if let (Policy::Cellular(cellular), Some(graph)) = (&mut knobs.policy, &model.cells) {
            let most = given.map(|given| self.largest(&given)).transpose()?;
            cellular.cells = graph.cells_within(most.unwrap_or(u32::MAX));
            cellular.segments = graph.segment_knobs();
            knobs.max_batch_rows = cellular.cells.iter().map(|cell| cell.max_rows).max().unwrap_or(1);
        }
        knobs.latencies = Some(model.task_latencies(&knobs.policy));
        Ok(knobs)
    }

    /// Returns whether a model runs its cells under this policy.
    fn is_cellular(&self, model: &ModelTable) -> Result<bool, String> {
        let policy = self.batching.get("policy").and_then(Value::as_str).unwrap_or_default();
        let is_cellular = policy == PolicyKind::Cellular.name();
        let by_cells = [PolicyKind::Cellular.name(), "auto", PolicyKind::Lazy.name()].contains(&policy);
        let refused = |why: &str| Err(format!("policy '{}': the model '{}' {why}", self.name, model.name));
        match &model.cells {
            None if is_cellular => {
                refused("has no cells: expected a model whose requests unfold, as 'lstm' of the table 'v100'")
            }
            Some(graph) if graph.has_trees() && !by_cells => {
                refused("has trees, which cannot be padded to share a batch: expected cellular or lazy")
            }
            cells => Ok(cells.is_some() && by_cells),
        }
    }

    fn largest(&self, given: &Value) -> Result<u32, String> {
        let most = given.as_u64().and_then(|rows| u32::try_from(rows).ok()).filter(|rows| *rows > 0);
        most.ok_or_else(|| format!("policy '{}': max_batch_size: expected a number from 1", self.name))
    }
}

#[cfg(test)]
mod tests {
    use paternoster_batching::{AutoKnobs, LazyKnobs, WindowKnobs};
    use paternoster_lab::simulate::built_in;

    use super::*;

    const ALONE: Circumstances = Circumstances { lanes: 2, depth: 1, objective_ms: None, max_batch: None };

    fn read(text: &str, around: Circumstances) -> Result<Knobs, String> {
        let table = built_in("titan-rtx", 1).expect("it is built in");
        Asked::read(text)?.knobs(table.model("bert-base").expect("it is built in"), around)
    }

    #[test]
    fn auto_is_what_the_server_makes_of_it() {
        let of = |around| read("auto", around).expect("it is valid").policy;
        assert_eq!(of(ALONE), Policy::Auto(AutoKnobs { by_target: false }));
        let with_objective = of(Circumstances { objective_ms: Some(5.0), ..ALONE });
        assert_eq!(with_objective, Policy::Auto(AutoKnobs { by_target: true }));
    }

    #[test]
    fn a_policy_is_a_name_a_name_with_knobs_or_a_section() {
        let of = |text| read(text, ALONE).expect("it is a policy");
        let window = WindowKnobs { preferred_batch_sizes: vec![64], max_queue_delay_ns: 0 };
        assert_eq!(of("window").policy, Policy::Window(window.clone()));
        let delayed = WindowKnobs { max_queue_delay_ns: 5_000_000, ..window };
        assert_eq!(of("window: { max_queue_delay_us: 5000 }").policy, Policy::Window(delayed));
        let bucketed = of("policy: window, queueing: { bucket_width: 40 }, latency_objective_ms: 20");
        assert_eq!((bucketed.queueing.bucket_width, bucketed.objective_ns), (Some(40), Some(20_000_000)));
        assert_eq!((bucketed.max_batch_rows, bucketed.max_in_flight), (64, 2));
        let Policy::Diversity(diversity) = of("diversity").policy else { panic!("another policy") };
        assert!(diversity.input.is_some() && diversity.load.is_none(), "the model is padded");
        let oracle = LazyKnobs { predictor: Predictor::Oracle, max_depth: 2, ..LazyKnobs::default() };
        assert_eq!(of("oracle: { max_depth: 2 }").policy, Policy::Lazy(oracle));
    }

    #[test]
    fn a_policy_may_have_a_name_stages_and_a_largest_batch_of_its_own() {
        let asked = Asked::read("GraphB(5) = window: { max_queue_delay_us: 5000 }, stages: 4, max_batch_size: 8");
        let asked = asked.expect("it is a policy");
        assert_eq!((asked.name.as_str(), asked.stages), ("GraphB(5)", Some(4)));
        let table = built_in("titan-rtx", 1).expect("it is built in");
        let knobs = asked.knobs(table.model("unet").expect("it is built in"), ALONE).expect("it is a policy");
        assert_eq!(knobs.max_batch_rows, 8);
        assert_eq!(Asked::read("window").expect("it is a policy").name, "window");
        let refusal = Asked::read("window, stages: few").expect_err("no number");
        assert_eq!(refusal, "policy 'window, stages: few': stages: expected a number");
        for out_of_range in ["-1", "1e300", ".nan"] {
            let policy = format!("window, boundary_us: {out_of_range}");
            let refusal = Asked::read(&policy).expect_err("no task takes so long");
            assert_eq!(refusal, format!("policy '{policy}': boundary_us: expected a number from 0 to 60000000"));
        }
    }

    #[test]
    fn the_command_lines_objective_and_batch_stand_unless_the_policy_has_its_own() {
        let around = Circumstances { objective_ms: Some(50.0), max_batch: Some(8), ..ALONE };
        let plain = read("lazy: { reject_late: true }", around).expect("there is an objective");
        assert_eq!((plain.objective_ns, plain.max_batch_rows), (Some(50_000_000), 8));
        let own = read("policy: lazy, latency_objective_ms: 5", around).expect("it is a policy");
        assert_eq!(own.objective_ns, Some(5_000_000));
    }

    #[test]
    fn what_is_no_policy_is_refused_with_what_was_expected() {
        let refusal = |text| read(text, ALONE).expect_err("it is no policy");
        let found = refusal("lasy");
        assert!(
            found.starts_with("policy 'lasy': batching.policy: expected auto") && found.ends_with("'lazy'?"),
            "{found}"
        );
        let found = refusal("lazy: { max_dept: 2 }");
        assert!(found.contains("unknown key 'max_dept'; did you mean 'max_depth'?"), "{found}");
        assert!(refusal("lazy: { reject_late: true }").contains("there is none"), "late against what?");
        assert!(refusal("window: { max_queue_delay_us: }{").starts_with("policy 'window: "), "no YAML");
    }

    fn of_cells(model: &str, text: &str, around: Circumstances) -> Result<Knobs, String> {
        let table = built_in("v100", 1).expect("it is built in");
        Asked::read(text)?.knobs(table.model(model).expect("it is built in"), around)
    }

    #[test]
    fn a_model_of_cells_has_those_of_its_table_within_the_largest_batch() {
        let sizes = |text, around| {
            let knobs = of_cells("seq2seq", text, around).expect("it has cells");
            let Policy::Cellular(cellular) = knobs.policy else { panic!("another policy") };
            assert_eq!(cellular.segments.len(), 2);
            let sizes: Vec<u32> = cellular.cells.iter().map(|cell| cell.max_rows).collect();
            (sizes, cellular.max_tasks, cellular.frontier, knobs.max_batch_rows, knobs.max_in_flight)
        };
        assert_eq!(sizes("cellular", ALONE), (vec![512, 256], 5, true, 512, 2));
        assert_eq!(sizes("auto", Circumstances { depth: 5, ..ALONE }), (vec![512, 256], 5, true, 512, 10));
        let knobs = "cellular: { mode: paper, max_tasks: 2, frontier: false }, max_batch_size: 300";
        assert_eq!(sizes(knobs, Circumstances { max_batch: Some(64), ..ALONE }), (vec![300, 256], 2, false, 300, 2));
        assert_eq!(sizes("cellular", Circumstances { max_batch: Some(64), ..ALONE }).0, [64, 64]);
        let refusal = of_cells("lstm", "cellular, max_batch_size: 0", ALONE).expect_err("no batch");
        assert_eq!(refusal, "policy 'cellular, max_batch_size: 0': max_batch_size: expected a number from 1");
    }

    #[test]
    fn under_other_policies_a_model_of_cells_is_one_padded_graph() {
        let knobs = of_cells("seq2seq", "window, queueing: { bucket_width: 10 }", ALONE).expect("it can be padded");
        assert_eq!((knobs.max_batch_rows, knobs.queueing.bucket_width), (256, Some(10)));
        assert_eq!(knobs.latencies.map(|table| table.stages.len()), Some(1));
        let refusal = of_cells("tree-lstm", "window", ALONE).expect_err("trees cannot");
        let expected = "has trees, which cannot be padded to share a batch: expected cellular or lazy";
        assert_eq!(refusal, format!("policy 'window': the model 'tree-lstm' {expected}"));
    }

    #[test]
    fn a_model_without_cells_is_not_cellular() {
        let refusal = read("cellular: { slots: 2 }", ALONE).expect_err("it has none");
        let expected = "has no cells: expected a model whose requests unfold, as 'lstm' of the table 'v100'";
        assert_eq!(refusal, format!("policy 'cellular: {{ slots: 2 }}': the model 'bert-base' {expected}"));
    }
}
