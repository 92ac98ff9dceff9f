//! Devices for the instances of a model, from Triton's instance groups.

use super::pb::{self, model_instance_group::Kind};
use crate::executor::{Placement, Site};

/// Returns the devices that the instance groups name together. If one group leaves the choice to the server (KIND_AUTO,
/// or KIND_MODEL, which leaves it to the backend), the server chooses for all.
pub fn placement(config: &pb::ModelConfig) -> Placement {
    let mut sites = Vec::new();
    for group in &config.instance_group {
        match group.kind() {
            Kind::Auto | Kind::Model => return Placement::Auto,
            Kind::Cpu => sites.push(Site::Cpu),
            Kind::Gpu if group.gpus.is_empty() => sites.push(Site::Cards),
            Kind::Gpu => {
                // A number that does not fit becomes one that no card has.
                let number = |gpu: &i32| u16::try_from(*gpu).unwrap_or(u16::MAX);
                sites.extend(group.gpus.iter().map(|gpu| Site::Card(number(gpu))));
            }
        }
    }
    if sites.is_empty() { Placement::Auto } else { Placement::On(sites) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(kind: Kind, gpus: &[i32]) -> pb::ModelInstanceGroup {
        pb::ModelInstanceGroup { kind: kind.into(), gpus: gpus.to_vec(), ..Default::default() }
    }

    #[test]
    fn instance_groups_name_devices() {
        let of = |groups: &[pb::ModelInstanceGroup]| {
            placement(&pb::ModelConfig { instance_group: groups.to_vec(), ..Default::default() })
        };
        assert_eq!(of(&[]), Placement::Auto);
        assert_eq!(of(&[group(Kind::Cpu, &[])]), Placement::On(vec![Site::Cpu]));
        assert_eq!(of(&[group(Kind::Gpu, &[])]), Placement::On(vec![Site::Cards]));
        let named = of(&[group(Kind::Gpu, &[1, 2]), group(Kind::Cpu, &[])]);
        assert_eq!(named, Placement::On(vec![Site::Card(1), Site::Card(2), Site::Cpu]));
        assert_eq!(of(&[group(Kind::Cpu, &[]), group(Kind::Auto, &[])]), Placement::Auto);
        assert_eq!(of(&[group(Kind::Model, &[])]), Placement::Auto);
    }
}
