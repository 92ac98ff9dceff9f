//! Metrics of the rate limiter's resources.

use std::fmt;

use paternoster_observe::ResourceReading;
use prometheus::{
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::{
    families::{Family, counter, gauge, seconds},
    samples::{family_of, labels, number},
};

/// A family of one number per resource (labels device, name).
struct PerResource {
    family: Family,
    value: fn(&ResourceReading) -> f64,
}

const PER_RESOURCE: [PerResource; 3] = [
    PerResource {
        family: gauge("paternoster_rate_limit_resource", "Units of a resource of the rate limiter"),
        value: |read| f64::from(read.units),
    },
    PerResource {
        family: gauge("paternoster_rate_limit_resource_in_use", "Units that running batches hold"),
        value: |read| f64::from(read.in_use),
    },
    PerResource {
        family: counter(
            "paternoster_rate_limit_wait_seconds_total",
            "Time that models waited for units with a lane at hand, summed over models",
        ),
        value: |read| seconds(read.waited_ns),
    },
];

type Read = Box<dyn Fn() -> Vec<ResourceReading> + Send + Sync>;

/// Reads the resources when metrics are collected.
pub(super) struct ResourceCollector {
    read: Read,
    descs: Vec<Desc>,
}

impl ResourceCollector {
    pub(super) fn new(read: Read) -> Result<Self, prometheus::Error> {
        let descs = PER_RESOURCE.iter().map(|PerResource { family: Family { name, help, .. }, .. }| {
            let labels = vec!["device".to_owned(), "name".to_owned()];
            Desc::new((*name).to_owned(), (*help).to_owned(), labels, Default::default())
        });
        Ok(Self { descs: descs.collect::<Result<_, _>>()?, read })
    }
}

impl fmt::Debug for ResourceCollector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ResourceCollector").finish_non_exhaustive()
    }
}

impl Collector for ResourceCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let read = (self.read)();
        let families = PER_RESOURCE.iter().map(|one| {
            let samples = read.iter().map(|resource| {
                let labels = labels(&[("device", &resource.device), ("name", &resource.name)]);
                number(labels, one.family.kind, (one.value)(resource))
            });
            family_of(&one.family, samples.collect())
        });
        families.collect()
    }
}
