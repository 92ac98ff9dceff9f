//! Converts the section `batching` of a `model.yaml` to a scheduler and knobs. Sections of policies that are not chosen
//! are checked, so that choosing one later causes no surprise, and otherwise ignored.

use crate::{
    batching::{PolicyKind, TimeoutAction, knob::given},
    repository::config::{
        ConfigError, Origin,
        model::{Batching, Queue, Queueing},
        pb::{self, model_config::SchedulingChoice, model_queue_policy::TimeoutAction as PbAction},
        sequences,
        settings::{PolicyName, Settings},
        tree::unknown_key,
        values::Parsed,
    },
};

/// Fills in the scheduler, and removes the knobs of policies that are not chosen. Without `batching` the policy is
/// `auto`; `complete` decides whether `auto` batches once the largest batch is known.
pub(super) fn policy(settings: &mut Settings, origin: &mut Origin) -> Result<(), ConfigError> {
    let has_sequences = sequences::batching(&settings.config).is_some();
    // For a model of cells, auto means cellular, and lazy uses the knobs of cellular too.
    let unfolds = settings.has_cells() || has_sequences;
    let batching = &mut settings.own.batching;
    origin.implies_policy = batching.policy.is_none();
    let Parsed(chosen) = *batching.policy.get_or_insert(Parsed(PolicyName::Auto));
    let is_chosen = |kind: PolicyKind| {
        let by_cells = unfolds && matches!(chosen, PolicyName::Auto | PolicyName::Of(PolicyKind::Lazy));
        chosen == PolicyName::Of(kind) || by_cells && kind == PolicyKind::Cellular
    };
    let is_stray = |name: &&String| {
        let mut kinds = PolicyKind::ALL.iter().filter(|kind| **kind != PolicyKind::Serial && !is_chosen(**kind));
        chosen == PolicyName::Auto && kinds.any(|kind| kind.name() == *name)
    };
    if let Some(name) = given(&*batching).iter().find(is_stray) {
        let message = format!("these knobs need 'policy: {name}'; auto has none");
        return Err(origin.error(&format!("batching.{name}"), message));
    }
    batching.adaptive.take_if(|_| !is_chosen(PolicyKind::Adaptive));
    batching.lazy.take_if(|_| !is_chosen(PolicyKind::Lazy));
    batching.diversity.take_if(|_| !is_chosen(PolicyKind::Diversity));
    batching.cellular.take_if(|_| !is_chosen(PolicyKind::Cellular));
    if let Some(diversity) = &mut batching.diversity {
        // A mapping of knobs also switches its kind on.
        diversity.input.as_mut().map(|own| own.is_on.get_or_insert(true));
        diversity.operator.as_mut().map(|own| own.is_on.get_or_insert(true));
        diversity.load.as_mut().map(|own| own.is_on.get_or_insert(true));
    }
    if has_sequences {
        let message = "a model with sequences has its queue in sequence_batching: move or remove this";
        origin.refuse_if(batching.queueing.is_some(), "batching.queueing", message)?;
        return origin.refuse_if(batching.window.is_some(), "batching.window", message);
    }
    let scheduler = scheduler(batching, chosen, origin)?;
    settings.config.scheduling_choice = scheduler.map(SchedulingChoice::DynamicBatching);
    Ok(())
}

/// Removes the queue and the window from the knobs, and returns the scheduler of the chosen policy. The keys of the
/// queue are in `queueing`, for every policy, or in `window`.
fn scheduler(
    batching: &mut Batching,
    chosen: PolicyName,
    origin: &mut Origin,
) -> Result<Option<pb::ModelDynamicBatching>, ConfigError> {
    let is_serial = chosen == PolicyName::Of(PolicyKind::Serial);
    batching.serial = None;
    let queueing = batching.queueing.take();
    let width = queueing.as_ref().and_then(|queueing| queueing.bucket_width);
    let message = "requests share no batch under the policy 'serial': remove this";
    origin.refuse_if(is_serial && width.is_some(), "batching.queueing.bucket_width", message)?;
    let is_of_window = |key: &String| ["max_queue_delay_us", "preferred_batch_sizes"].contains(&key.as_str());
    if let Some(key) = queueing.as_ref().and_then(|queueing| given(queueing).into_iter().find(is_of_window)) {
        return Err(origin.error(&format!("batching.queueing.{key}"), unknown_key(&key, [])));
    }
    let window = batching.window.take();
    let stray = window.as_ref().and_then(|window| given(window).into_iter().find(|key| !is_of_window(key)));
    if let (Some(_), Some(key)) = (&queueing, stray) {
        let message = format!("expected '{key}' in batching.queueing, with the queue's other keys");
        return Err(origin.error(&format!("batching.window.{key}"), message));
    }
    let is_window = chosen == PolicyName::Of(PolicyKind::Window);
    let window = window.filter(|_| is_window);
    let (place, queue) = match (&queueing, &window) {
        (Some(queueing), _) => ("batching.queueing", Some(queueing)),
        (None, Some(window)) => ("batching.window", Some(window)),
        (None, None) => ("batching", None),
    };
    name_places(place, origin);
    if queue.is_none() && (is_serial || chosen == PolicyName::Auto) {
        return Ok(None);
    }
    batching.bucket_width = queue.and_then(|queue| queue.bucket_width);
    let mut scheduler = queue.map(dynamic_batching).unwrap_or_default();
    if let Some(window) = &window {
        scheduler.max_queue_delay_microseconds = window.max_queue_delay_us.map_or(0, |delay| delay.0);
        scheduler.preferred_batch_size = window.preferred_batch_sizes.iter().flatten().map(|size| size.0).collect();
    }
    Ok(Some(scheduler))
}

/// Records where the fields of `dynamic_batching` are. `place` has the keys of the queue.
fn name_places(place: &str, origin: &mut Origin) {
    origin.name("dynamic_batching", place);
    origin.name("dynamic_batching.preferred_batch_size", "batching.window.preferred_batch_sizes");
    origin.name("dynamic_batching.default_queue_policy", format!("{place}.queue"));
    origin.name("dynamic_batching.priority_queue_policy", format!("{place}.priority_queues"));
    origin.name("batching.bucket_width", format!("{place}.bucket_width"));
}

fn dynamic_batching(queueing: &Queueing) -> pb::ModelDynamicBatching {
    let queues = queueing.priority_queues.iter().flatten().map(|(level, queue)| (level.0, queue_policy(queue)));
    pb::ModelDynamicBatching {
        preserve_ordering: queueing.preserve_ordering.unwrap_or(false),
        priority_levels: queueing.priority_levels.map_or(0, |levels| levels.0),
        default_priority_level: queueing.default_priority_level.map_or(0, |level| level.0),
        default_queue_policy: queueing.queue.as_ref().map(queue_policy),
        priority_queue_policy: queues.collect(),
        ..pb::ModelDynamicBatching::default()
    }
}

fn queue_policy(queue: &Queue) -> pb::ModelQueuePolicy {
    let action = match queue.timeout_action {
        Some(TimeoutAction::Delay) => PbAction::Delay,
        Some(TimeoutAction::Reject) | None => PbAction::Reject,
    };
    pb::ModelQueuePolicy {
        timeout_action: action.into(),
        default_timeout_microseconds: queue.default_timeout_us.map_or(0, |timeout| timeout.0),
        allow_timeout_override: queue.allow_timeout_override.unwrap_or(false),
        max_queue_size: queue.max_queue_size.map_or(0, |size| size.0),
    }
}
