//! Builds samples in the data model of the `prometheus` crate.

use paternoster_observe::{Histogram, SummaryReading};
use prometheus::proto::{Bucket, Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType, Quantile, Summary};

use super::families::Family;

pub(super) fn label(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

pub(super) fn labels(pairs: &[(&str, &str)]) -> Vec<LabelPair> {
    pairs.iter().map(|(name, value)| label(name, value)).collect()
}

pub(super) fn family_of(family: &Family, samples: Vec<Metric>) -> MetricFamily {
    let mut built = MetricFamily::default();
    built.set_name(family.name.to_owned());
    built.set_help(family.help.to_owned());
    built.set_field_type(family.kind);
    built.set_metric(samples);
    built
}

pub(super) fn single(family: &Family, value: f64) -> MetricFamily {
    family_of(family, vec![number(Vec::new(), family.kind, value)])
}

pub(super) fn number(labels: Vec<LabelPair>, kind: MetricType, value: f64) -> Metric {
    let mut metric = Metric::from_label(labels);
    if kind == MetricType::COUNTER {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    metric
}

/// Builds a histogram whose values `shown` converts to the exposed unit.
pub(super) fn distribution<V: Copy>(labels: &[LabelPair], recorded: &Histogram<V>, shown: impl Fn(V) -> f64) -> Metric {
    let buckets = recorded.cumulative().map(|(bound, count)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(shown(bound));
        bucket.set_cumulative_count(count);
        bucket
    });
    let mut histogram = prometheus::proto::Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(recorded.count());
    histogram.set_sample_sum(shown(recorded.sum()));
    let mut metric = Metric::from_label(labels.to_vec());
    metric.set_histogram(histogram);
    metric
}

/// Builds a summary of latencies, in the unit of the reading.
pub(super) fn quantiles(labels: &[LabelPair], read: &SummaryReading) -> Metric {
    let quantiles = read.quantiles.iter().map(|&(quantile, value)| {
        let mut sample = Quantile::default();
        sample.set_quantile(quantile);
        sample.set_value(value);
        sample
    });
    let mut summary = Summary::default();
    summary.set_quantile(quantiles.collect());
    summary.set_sample_count(read.count);
    summary.set_sample_sum(read.sum_us);
    let mut metric = Metric::from_label(labels.to_vec());
    metric.set_summary(summary);
    metric
}
