//! A model's settings for the rate limiter. The instance groups of a model are served as one: each of its batches holds
//! the largest number of units of each resource that any group names, and has the best priority of any group. A group
//! without settings has priority 1, as in Triton.

use paternoster_batching::{RateLimiterKnobs, ResourceDemand};

use super::{
    ConfigError, Origin,
    pb::{self, model_rate_limiter::Resource},
};

/// Returns the settings of all instance groups together.
pub fn read(config: &pb::ModelConfig) -> RateLimiterKnobs {
    let mut resources: Vec<ResourceDemand> = Vec::new();
    for (_, _, Resource { name, global, count }) in listed(config) {
        match resources.iter_mut().find(|demand| demand.name == *name) {
            Some(demand) => demand.count = demand.count.max(*count),
            None => resources.push(ResourceDemand { name: name.clone(), is_global: *global, count: *count }),
        }
    }
    let limiters = || config.instance_group.iter().map(|group| group.rate_limiter.as_ref());
    if limiters().all(|limiter| limiter.is_none()) {
        return RateLimiterKnobs::default();
    }
    // 0 counts as 1.
    let priority = limiters().map(|limiter| limiter.map_or(1, |limiter| limiter.priority.max(1))).min();
    RateLimiterKnobs { resources, priority: priority.unwrap_or(0) }
}

/// Checks the resources of all instance groups.
///
/// # Errors
/// Rejects a resource without a name, one that a group names twice, and one that is global in one place and not in
/// another.
pub fn check(config: &pb::ModelConfig, origin: &Origin) -> Result<(), ConfigError> {
    for (group, number, resource) in listed(config) {
        let path = |key: &str| format!("instance_group[{group}].rate_limiter.resources[{number}].{key}");
        let name = &resource.name;
        origin.refuse_if(name.is_empty(), &path("name"), "expected the name of a resource")?;
        let before = listed(config).take_while(|(other, at, _)| (*other, *at) != (group, number));
        for (other, _, earlier) in before.filter(|(_, _, earlier)| earlier.name == *name) {
            let message = format!("the group names '{name}' twice; expected once");
            origin.refuse_if(other == group, &path("name"), message)?;
            let message = format!("'{name}' is global in one place and per device in another; expected one of the two");
            origin.refuse_if(earlier.global != resource.global, &path("global"), message)?;
        }
    }
    Ok(())
}

/// Lists the resources of all groups: the number of the group, the number within it, and the resource.
fn listed(config: &pb::ModelConfig) -> impl Iterator<Item = (usize, usize, &Resource)> {
    config.instance_group.iter().enumerate().flat_map(|(group, settings)| {
        let resources = settings.rate_limiter.iter().flat_map(|limiter| &limiter.resources);
        resources.enumerate().map(move |(number, resource)| (group, number, resource))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        ConfigErrorKind::{Unknown, Value},
        pbtxt,
        tests::refusals::{Refusals, part},
        yaml,
    };

    fn of_pbtxt(groups: &str) -> Result<RateLimiterKnobs, ConfigError> {
        let (settings, origin) = pbtxt::parse("f", groups.as_bytes())?;
        check(&settings.config, &origin)?;
        Ok(read(&settings.config))
    }

    fn of_yaml(text: &str) -> Result<RateLimiterKnobs, ConfigError> {
        let (settings, origin) = yaml::parse("f", text.as_bytes())?;
        check(&settings.config, &origin)?;
        Ok(read(&settings.config))
    }

    fn demand(name: &str, is_global: bool, count: u32) -> ResourceDemand {
        ResourceDemand { name: name.to_owned(), is_global, count }
    }

    const ONE: &str = "instance_group [{ count: 2 rate_limiter {
        resources [ { name: \"R1\" count: 4 }, { name: \"R2\" global: true count: 2 } ] priority: 2 } }]";

    #[test]
    fn both_forms_say_the_same() {
        let expected = RateLimiterKnobs { resources: vec![demand("R1", false, 4), demand("R2", true, 2)], priority: 2 };
        assert_eq!(of_pbtxt(ONE), Ok(expected.clone()));
        let text = "instance:
  count: 2
  devices: [cpu, cuda]
  rate_limiter:
    resources:
      - { name: R1, count: 4 }
      - { name: R2, global: true, count: 2 }
    priority: 2
";
        assert_eq!(of_yaml(text), Ok(expected));
        assert_eq!(of_pbtxt("instance_group { count: 2 }"), Ok(RateLimiterKnobs::default()));
        assert_eq!(of_yaml("instance: { count: 2 }"), Ok(RateLimiterKnobs::default()));
    }

    #[test]
    fn groups_are_served_together_with_the_most_units_and_the_best_priority() {
        let groups = "instance_group { rate_limiter { resources { name: \"R\" count: 1 } priority: 5 } }
            instance_group { rate_limiter { resources { name: \"R\" count: 3 } resources { name: \"S\" } priority: 4 } }";
        let expected = RateLimiterKnobs { resources: vec![demand("R", false, 3), demand("S", false, 0)], priority: 4 };
        assert_eq!(of_pbtxt(groups), Ok(expected));
        let unlimited = of_pbtxt(&format!("{groups} instance_group {{ count: 1 }}"));
        assert_eq!(unlimited.map(|knobs| knobs.priority), Ok(1), "a group without settings has priority 1");
        let highest = of_pbtxt("instance_group { rate_limiter { } } instance_group { rate_limiter { priority: 2 } }");
        assert_eq!(highest.map(|knobs| knobs.priority), Ok(1), "0 is the highest, as 1 is");
    }

    pub(crate) fn refusals(all: &mut Refusals) {
        let group = |limits: &str| of_pbtxt(&format!("instance_group {{ rate_limiter {{ {limits} }} }}"));
        part(all, "rate limiter of config.pbtxt", group).refuses(&[
            (Value, "1:33 instance_group[0].rate_limiter.resources[0].name", "resources { count: 1 }"),
            (
                Value,
                "1:78 instance_group[0].rate_limiter.resources[1].name",
                "resources { name: \"R\" count: 1 } resources { name: \"R\" count: 2 }",
            ),
            (
                Value,
                "2:55 instance_group[1].rate_limiter.resources[0].global",
                "resources { name: \"R\" count: 1 } } }\n\
                 instance_group { rate_limiter { resources { name: \"R\" global: true count: 1 }",
            ),
        ]);
        part(all, "rate limiter of model.yaml", |limits| of_yaml(&format!("instance: {{ rate_limiter: {limits} }}")))
            .refuses(&[
                (Value, "1:43 instance.rate_limiter.resources[0].name", "{ resources: [{ name: '', count: 1 }] }"),
                (Unknown, "1:29 instance.rate_limiter.units", "{ units: [] }"),
                (Value, "1:41 instance.rate_limiter.resources[0]", "{ resources: [{ name: R }] }"),
            ]);
    }
}
