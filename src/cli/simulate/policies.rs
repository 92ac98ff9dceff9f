//! `--policy`: the `batching` section of a `model.yaml`, in short or whole, read as the server reads it.

use crate::{
    batching::{Knobs, Policy, Predictor},
    repository::config::{convert, params::PolicyName, yaml},
    simulate::ModelTable,
};

/// LazyBatching's oracle: `lazy` that knows exactly how long everything takes. Only a simulator can offer it.
const ORACLE: &str = "oracle";

/// What the knobs of a model hang on besides the policy's text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances {
    pub(super) lanes: u16,
    pub(super) objective_ms: Option<f64>,
    pub(super) max_batch: Option<u32>,
}

/// The knobs of a model under a policy: a name (`lazy`), a name with its knobs (`lazy: { max_depth: 2 }`), or the keys of a
/// `batching` section (`policy: window, queueing: { … }, window: { … }`).
///
/// # Errors
/// Names the policy, the key and what was expected.
pub(super) fn knobs(text: &str, model: &ModelTable, around: Circumstances) -> Result<Knobs, String> {
    let text = text.trim();
    let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name.trim(), Some(rest.trim())));
    let is_oracle = name == ORACLE;
    let name = if is_oracle { PolicyName::Lazy.as_str() } else { name };
    let mut section = match rest {
        None => format!("policy: {name}"),
        Some(_) if name == "policy" || PolicyName::from_name(name).is_err() => text.to_owned(),
        Some(own) => format!("policy: {name}, {name}: {own}"),
    };
    if let Some(objective_ms) = around.objective_ms.filter(|_| !section.contains("latency_objective_ms")) {
        section.push_str(&format!(", latency_objective_ms: {objective_ms}"));
    }
    let tasks = around.lanes.max(1);
    let stages = model.latencies.stages.len();
    let mut yaml = format!(
        "max_batch_size: {}\ninstance: {{ count: {tasks} }}\nbatching: {{ {section} }}\n",
        around.max_batch.unwrap_or(model.max_batch_rows)
    );
    if model.is_padded() {
        yaml.push_str("inputs: [{ name: input, dtype: FP32, dims: [length], pad: { axis: length, value: 0 } }]\n");
    }
    if (2..=256).contains(&stages) {
        yaml.push_str(&format!("stages: {stages}\n"));
    }
    let refused = |key: &str, message: &str| match key {
        "" => format!("policy '{text}': {message}"),
        key => format!("policy '{text}': {key}: {message}"),
    };
    let (config, origin) =
        yaml::parse("policy", yaml.as_bytes()).map_err(|fault| refused(&fault.key, &fault.message))?;
    let converted = convert::model(&config, 1, &Default::default(), &origin);
    let (_, mut knobs, _) = converted.map_err(|fault| refused(&fault.key, &fault.message))?;
    if let (true, Policy::Lazy(lazy)) = (is_oracle, &mut knobs.policy) {
        lazy.predictor = Predictor::Oracle;
    }
    knobs.latencies = Some(model.latencies.clone());
    Ok(knobs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        batching::{LazyKnobs, WindowKnobs},
        simulate::built_in,
    };

    const ALONE: Circumstances = Circumstances { lanes: 2, objective_ms: None, max_batch: None };

    fn read(text: &str, around: Circumstances) -> Result<Knobs, String> {
        let table = built_in("titan-rtx", 1).expect("it is built in");
        knobs(text, table.model("bert-base").expect("it is built in"), around)
    }

    #[test]
    fn a_policy_is_a_name_a_name_with_knobs_or_a_section() {
        let of = |text| read(text, ALONE).expect("it is a policy");
        assert_eq!(of("window").policy, Policy::Window(WindowKnobs::default()));
        let delayed = WindowKnobs { max_queue_delay_ns: 5_000_000, ..WindowKnobs::default() };
        assert_eq!(of("window: { max_queue_delay_us: 5000 }").policy, Policy::Window(delayed));
        let bucketed = of("policy: window, queueing: { bucket_width: 40 }, latency_objective_ms: 20");
        assert_eq!((bucketed.queueing.bucket_width, bucketed.objective_ns), (40, Some(20_000_000)));
        assert_eq!((bucketed.max_batch_rows, bucketed.max_in_flight), (64, 2));
        let Policy::Diversity(diversity) = of("diversity").policy else { panic!("another policy") };
        assert!(diversity.input.is_some() && diversity.load.is_none(), "the model is padded");
        let oracle = LazyKnobs { predictor: Predictor::Oracle, max_depth: 2, ..LazyKnobs::default() };
        assert_eq!(of("oracle: { max_depth: 2 }").policy, Policy::Lazy(oracle));
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
}
