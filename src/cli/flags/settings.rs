//! Flags of tritonserver whose values are settings: `--backend-config`, `--cache-config` and `--metrics-config`.

use std::str::FromStr;

use paternoster_config::{complete::DEFAULT_MAX_BATCH_SIZE, settings::ONNXRUNTIME};
use paternoster_observe::LatencyMetrics;

const DEFAULT_MAX_BATCH_SIZE_KEY: &str = "default-max-batch-size";

/// A value of `--backend-config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendSetting {
    /// Largest batch of models that can batch and do not configure it, for one backend or for all.
    DefaultMaxBatchSize {
        /// Whether a backend was named.
        named: bool,
        /// The size; with 0 such models do not batch.
        size: i32,
    },
    /// Any other setting, as given. It has no effect.
    Other(String),
}

impl FromStr for BackendSetting {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let (backend, setting) = given.split_once(',').unwrap_or(("", given));
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        if key.is_empty() || value.is_empty() {
            return Err("expected BACKEND,SETTING=VALUE, or SETTING=VALUE for all backends".to_owned());
        }
        if key != DEFAULT_MAX_BATCH_SIZE_KEY || !["", ONNXRUNTIME].contains(&backend) {
            return Ok(Self::Other(given.to_owned()));
        }
        let size = value.parse().ok().filter(|&size: &i32| size >= 0);
        let size = size.ok_or_else(|| format!("{key}: expected a number from 0 to {}, got '{value}'", i32::MAX))?;
        Ok(Self::DefaultMaxBatchSize { named: !backend.is_empty(), size })
    }
}

/// Returns the largest batch of models that can batch and do not configure it: the last size given for the backend,
/// else the last one for all backends, else Triton's default.
pub(super) fn default_max_batch_size(settings: &[BackendSetting]) -> i32 {
    let last = |wanted: bool| {
        settings.iter().rev().find_map(|setting| match setting {
            BackendSetting::DefaultMaxBatchSize { named, size } if *named == wanted => Some(*size),
            _ => None,
        })
    };
    last(true).or_else(|| last(false)).unwrap_or(DEFAULT_MAX_BATCH_SIZE)
}

/// A value of `--cache-config`: the size of the cache `local` in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSetting(pub u64);

/// The only cache.
const LOCAL_CACHE: &str = "local";

/// Largest cache in bytes.
const MAX_CACHE_BYTES: u64 = 1 << 62;

impl FromStr for CacheSetting {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let (cache, setting) = given.split_once(',').unwrap_or((given, ""));
        if cache != LOCAL_CACHE {
            return Err(format!("the cache '{cache}' is not supported; expected {LOCAL_CACHE},size=BYTES"));
        }
        let Some(("size", size)) = setting.split_once('=') else {
            return Err(format!("expected {LOCAL_CACHE},size=BYTES"));
        };
        let bytes = size.parse().ok().filter(|bytes| (1..=MAX_CACHE_BYTES).contains(bytes));
        bytes.map(Self).ok_or_else(|| format!("size: expected a number of bytes of at least 1, got '{size}'"))
    }
}

/// A value of `--metrics-config`.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricsSetting {
    /// Whether counters of durations are included.
    Counters(bool),
    /// Whether summaries of latencies are included.
    Summaries(bool),
    /// Quantiles of the summaries.
    Quantiles(Vec<f64>),
    /// Whether the histogram of first responses is included.
    Histograms(bool),
    /// Any other setting, as given. It has no effect.
    Other(String),
}

impl FromStr for MetricsSetting {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let (key, value) = given.split_once('=').unwrap_or((given, ""));
        if key.is_empty() || value.is_empty() {
            return Err("expected SETTING=VALUE".to_owned());
        }
        let on = || super::boolean(value).map_err(|expected| format!("{key}: {expected}"));
        match key {
            "counter_latencies" => on().map(Self::Counters),
            "summary_latencies" => on().map(Self::Summaries),
            "histogram_latencies" => on().map(Self::Histograms),
            "summary_quantiles" => value.split(',').map(quantile).collect::<Result<_, _>>().map(Self::Quantiles),
            _ => Ok(Self::Other(given.to_owned())),
        }
    }
}

/// Parses a quantile with its allowed error, which is checked but not used: quantiles are exact to within 1 %.
fn quantile(given: &str) -> Result<f64, String> {
    let share = |text: &str| text.trim().parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share));
    let pair = given.split_once(':').and_then(|(quantile, error)| share(quantile).zip(share(error)));
    let wrong = || format!("summary_quantiles: expected QUANTILE:ERROR, both from 0 to 1, got '{given}'");
    pair.map(|(quantile, _)| quantile).ok_or_else(wrong)
}

/// Returns which latencies the metrics include.
pub(super) fn latency_metrics(settings: &[MetricsSetting]) -> LatencyMetrics {
    let mut shown = LatencyMetrics::default();
    for setting in settings {
        match setting {
            MetricsSetting::Counters(on) => shown.counters = *on,
            MetricsSetting::Summaries(on) => shown.summaries = *on,
            MetricsSetting::Quantiles(quantiles) => shown.quantiles.clone_from(quantiles),
            MetricsSetting::Histograms(on) => shown.histograms = *on,
            MetricsSetting::Other(_) => {}
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(given: &[&str]) -> Result<i32, String> {
        let settings: Result<Vec<BackendSetting>, String> = given.iter().map(|setting| setting.parse()).collect();
        settings.map(|settings| default_max_batch_size(&settings))
    }

    #[test]
    fn a_size_for_the_backend_goes_before_one_for_all_and_the_last_one_counts() {
        assert_eq!(size(&[]), Ok(4));
        assert_eq!(size(&["default-max-batch-size=6"]), Ok(6));
        assert_eq!(size(&[",default-max-batch-size=7"]), Ok(7), "no backend is all of them");
        assert_eq!(size(&["onnxruntime,default-max-batch-size=5", "default-max-batch-size=6"]), Ok(5));
        assert_eq!(size(&["default-max-batch-size=6", "default-max-batch-size=0"]), Ok(0));
        assert_eq!(size(&["tensorflow,default-max-batch-size=5", "python,shm-region-prefix-name=x"]), Ok(4));
    }

    #[test]
    fn a_setting_that_is_not_well_formed_is_refused() {
        let broken =
            ["default-max-batch-size=", "default-max-batch-size", "tensorflow,default-max-batch-size=", "", "=4"];
        for given in broken {
            assert!(size(&[given]).is_err_and(|reason| reason.contains("SETTING=VALUE")), "{given}");
        }
        for given in ["default-max-batch-size=-1", "default-max-batch-size=many", "default-max-batch-size=2147483648"] {
            assert!(size(&[given]).is_err_and(|reason| reason.contains("from 0 to")), "{given}");
        }
    }

    #[test]
    fn the_local_cache_has_a_size_and_others_are_refused_by_name() {
        let size = |given: &str| given.parse::<CacheSetting>();
        assert_eq!(size("local,size=1048576"), Ok(CacheSetting(1 << 20)));
        for given in ["redis,host=redis,port=6379", "redis", "", "size=1"] {
            let name = given.split(',').next().expect("a first part");
            let reason = size(given).expect_err("there is only one cache");
            assert!(reason.contains(&format!("'{name}'")) && reason.contains("local,size=BYTES"), "{given}: {reason}");
        }
        for given in ["local", "local,", "local,size", "local,bytes=1", "local,size=1,entries=2"] {
            assert!(size(given).is_err_and(|reason| reason.contains("expected")), "{given}");
        }
        for given in ["local,size=0", "local,size=-1", "local,size=1MB", "local,size=9223372036854775808"] {
            assert!(size(given).is_err_and(|reason| reason.starts_with("size: ")), "{given}");
        }
    }

    fn shown(given: &[&str]) -> Result<LatencyMetrics, String> {
        let settings: Result<Vec<MetricsSetting>, String> = given.iter().map(|setting| setting.parse()).collect();
        settings.map(|settings| latency_metrics(&settings))
    }

    #[test]
    fn latencies_are_shown_as_the_settings_say() {
        assert_eq!(shown(&["someone=else"]), Ok(LatencyMetrics::default()));
        let all = ["summary_latencies=true", "summary_quantiles=0.5:0.05,0.9:0.01", "histogram_latencies=true"];
        let expected = LatencyMetrics { counters: true, summaries: true, quantiles: vec![0.5, 0.9], histograms: true };
        assert_eq!(shown(&all), Ok(expected));
        assert_eq!(shown(&["counter_latencies=false"]).map(|shown| shown.counters), Ok(false));
    }

    #[test]
    fn broken_settings_of_latencies_are_refused_by_name() {
        for given in ["summary_quantiles=0.5", "summary_quantiles=0.5:0.1,1.5:0.1", "summary_quantiles=x:y"] {
            assert!(shown(&[given]).is_err_and(|reason| reason.contains("QUANTILE:ERROR")), "{given}");
        }
        assert!(shown(&["summary_latencies=maybe"]).is_err_and(|reason| reason.starts_with("summary_latencies: ")));
        for given in ["summary_latencies", "=true", "summary_latencies="] {
            assert!(shown(&[given]).is_err_and(|reason| reason == "expected SETTING=VALUE"), "{given}");
        }
    }
}
