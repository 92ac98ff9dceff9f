//! Flags of tracing: `--trace-config`, and the older flags that it replaces.

use std::{path::PathBuf, str::FromStr, time::Duration};

use clap::Args;
use http::Uri;
use paternoster_exporters::{OtlpOptions, collector_url};
use paternoster_observe::trace::{TraceLevel, TraceMode, TraceSettingError, TraceSettings, parse_count, parse_number};

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Traces")]
#[allow(missing_docs)]
pub struct TraceArgs {
    /// Setting of tracing; may be given several times. For all modes: level (OFF, TIMESTAMPS or TENSORS; may be given
    /// several times), rate (every n-th request is traced; 1000), count (number of requests to trace; -1 means no
    /// limit), mode (triton or opentelemetry). For mode triton: file, log-frequency (traces per numbered file; 0 puts
    /// all in one). For mode opentelemetry: url (of the collector), resource (KEY=VALUE for all spans; may be given
    /// several times), bsp_max_queue_size (2048), bsp_schedule_delay (ms; 5000), bsp_max_export_batch_size (512)
    #[arg(id = "trace-config", long, value_name = "[MODE,]SETTING=VALUE,...")]
    pub config: Vec<TraceConfig>,

    /// Older form of --trace-config=triton,file=FILE
    #[arg(id = "trace-file", long, value_name = "FILE", hide = true)]
    pub file: Option<PathBuf>,

    /// Older form of --trace-config=level=LEVEL
    #[arg(id = "trace-level", long, value_name = "LEVEL", value_parser = level, hide = true)]
    pub levels: Vec<String>,

    /// Older form of --trace-config=rate=N
    #[arg(id = "trace-rate", long, value_name = "N", value_parser = rate, hide = true)]
    pub rate: Option<u32>,

    /// Older form of --trace-config=count=N
    #[arg(id = "trace-count", long, value_name = "N", value_parser = count, allow_negative_numbers = true, hide = true)]
    pub count: Option<TraceCount>,

    /// Older form of --trace-config=triton,log-frequency=N
    #[arg(id = "trace-log-frequency", long, value_name = "N", value_parser = log_frequency, hide = true)]
    pub log_frequency: Option<u32>,
}

/// How the server traces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceChoice {
    /// Destination of traces.
    pub mode: TraceMode,
    /// The server's settings, to which others fall back.
    pub settings: TraceSettings,
    /// The file for mode `triton`.
    pub file: Option<PathBuf>,
    /// Export options for mode `opentelemetry`.
    pub otlp: OtlpOptions,
}

/// The settings of one `--trace-config`, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceConfig(Vec<TraceFlag>);

/// Number of requests to trace; `None` means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceCount(Option<u32>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum TraceFlag {
    Level(String),
    Rate(u32),
    Count(Option<u32>),
    Mode(TraceMode),
    File(PathBuf),
    LogFrequency(u32),
    Url(Uri),
    Resource(String, String),
    MaxQueueSize(usize),
    ScheduleDelay(Duration),
    MaxExportBatchSize(usize),
}

/// Limit on the spans that may wait for export, since memory is reserved for each.
const MOST_SPANS: usize = 1 << 20;

impl FromStr for TraceConfig {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let (first, rest) = given.split_once(',').unwrap_or((given, ""));
        let (scope, settings) = if first.contains('=') { (None, given) } else { (Some(mode(first)?), rest) };
        let settings = settings.split(',').map(|setting| setting_of(scope, setting));
        settings.collect::<Result<_, _>>().map(Self)
    }
}

fn setting_of(scope: Option<TraceMode>, setting: &str) -> Result<TraceFlag, String> {
    let expected = || "expected MODE,SETTING=VALUE, or SETTING=VALUE".to_owned();
    let (key, value) = setting.split_once('=').ok_or_else(expected)?;
    if value.is_empty() {
        return Err(format!("{key}: expected a value"));
    }
    let (flag, of_mode) = match key {
        "level" => (TraceFlag::Level(level(value)?), None),
        "rate" => (TraceFlag::Rate(rate(value)?), None),
        "count" => (TraceFlag::Count(count(value)?.0), None),
        "mode" => (TraceFlag::Mode(mode(value)?), None),
        "file" => (TraceFlag::File(value.into()), Some(TraceMode::Triton)),
        "log-frequency" => (TraceFlag::LogFrequency(log_frequency(value)?), Some(TraceMode::Triton)),
        "url" => (TraceFlag::Url(collector_url(value)?), Some(TraceMode::OpenTelemetry)),
        "resource" => (resource(value)?, Some(TraceMode::OpenTelemetry)),
        "bsp_max_queue_size" => (TraceFlag::MaxQueueSize(spans(key, value)?), Some(TraceMode::OpenTelemetry)),
        "bsp_schedule_delay" => (TraceFlag::ScheduleDelay(delay(value)?), Some(TraceMode::OpenTelemetry)),
        "bsp_max_export_batch_size" => {
            (TraceFlag::MaxExportBatchSize(spans(key, value)?), Some(TraceMode::OpenTelemetry))
        }
        _ => return Err(format!("unknown setting '{key}', expected one of {SETTINGS}")),
    };
    match (scope, of_mode) {
        (Some(scope), Some(mode)) if scope != mode => {
            Err(format!("'{key}' is a setting of mode {}, not of {}", mode.name(), scope.name()))
        }
        _ => Ok(flag),
    }
}

const SETTINGS: &str = "level, rate, count, mode, file, log-frequency, url, resource, bsp_max_queue_size, \
                        bsp_schedule_delay, bsp_max_export_batch_size";

fn mode(given: &str) -> Result<TraceMode, String> {
    let modes = [TraceMode::Triton, TraceMode::OpenTelemetry];
    let expected = || format!("mode: expected triton or opentelemetry, got '{given}'");
    modes.into_iter().find(|mode| mode.name() == given).ok_or_else(expected)
}

fn resource(given: &str) -> Result<TraceFlag, String> {
    let (key, value) =
        given.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or("resource: expected KEY=VALUE")?;
    Ok(TraceFlag::Resource(key.to_owned(), value.to_owned()))
}

fn spans(key: &str, given: &str) -> Result<usize, String> {
    let number = given.parse().ok().filter(|number| (1..=MOST_SPANS).contains(number));
    number.ok_or_else(|| format!("{key}: expected a number from 1 to {MOST_SPANS}, got '{given}'"))
}

fn delay(given: &str) -> Result<Duration, String> {
    let ms = given.parse().ok().filter(|&ms: &u32| ms > 0);
    let ms = ms.ok_or_else(|| format!("bsp_schedule_delay: expected milliseconds from 1, got '{given}'"))?;
    Ok(Duration::from_millis(u64::from(ms)))
}

fn level(given: &str) -> Result<String, String> {
    TraceLevel::default().add(given).map_err(message).map(|()| given.to_owned())
}

fn rate(given: &str) -> Result<u32, String> {
    parse_number("trace_rate", given).map_err(message)
}

fn log_frequency(given: &str) -> Result<u32, String> {
    parse_number("log_frequency", given).map_err(message)
}

fn count(given: &str) -> Result<TraceCount, String> {
    parse_count(given).map_err(message).map(TraceCount)
}

#[allow(clippy::needless_pass_by_value, reason = "it maps errors")]
fn message(error: TraceSettingError) -> String {
    error.to_string()
}

impl TraceArgs {
    /// Returns how the server traces. Older flags apply first, then each `--trace-config`; the last single value wins.
    pub fn choice(&self) -> TraceChoice {
        let Self { config, file, levels, rate, count, log_frequency } = self;
        let older = levels.iter().map(|name| TraceFlag::Level(name.clone()));
        let older = older.chain(rate.map(TraceFlag::Rate)).chain(count.map(|count| TraceFlag::Count(count.0)));
        let older = older.chain(log_frequency.map(TraceFlag::LogFrequency)).chain(file.clone().map(TraceFlag::File));
        let flags = older.chain(config.iter().flat_map(|config| config.0.iter().cloned()));

        let mut choice = TraceChoice::default();
        let mut is_off = false;
        for flag in flags {
            let TraceSettings { level, rate, count, log_frequency } = &mut choice.settings;
            match flag {
                TraceFlag::Level(name) => {
                    is_off |= name == "OFF";
                    // Cannot fail: the name was checked when it was parsed.
                    let _ = level.add(&name);
                }
                TraceFlag::Rate(given) => *rate = given,
                TraceFlag::Count(given) => *count = given,
                TraceFlag::LogFrequency(given) => *log_frequency = given,
                TraceFlag::Mode(given) => choice.mode = given,
                TraceFlag::File(given) => choice.file = Some(given),
                TraceFlag::Url(given) => choice.otlp.url = Some(given),
                TraceFlag::Resource(key, value) => choice.otlp.resource.push((key, value)),
                TraceFlag::MaxQueueSize(given) => choice.otlp.max_queue_size = Some(given),
                TraceFlag::ScheduleDelay(given) => choice.otlp.schedule_delay = Some(given),
                TraceFlag::MaxExportBatchSize(given) => choice.otlp.max_export_batch_size = Some(given),
            }
        }
        if is_off {
            choice.settings.level = TraceLevel::OFF;
        }
        choice
    }

    /// Returns the settings that have no effect, each as its flag with the reason.
    pub(super) fn idle(&self) -> Vec<(String, &'static str)> {
        let TraceChoice { mode, settings, file, otlp } = self.choice();
        let mut idle = Vec::new();
        if mode == TraceMode::Triton && !settings.level.is_off() && file.is_none() {
            idle.push(("--trace-config=level".to_owned(), "there is no triton,file=FILE to write traces to"));
        }
        if mode == TraceMode::Triton && !settings.level.is_off() && settings.rate == 0 {
            idle.push(("--trace-config=rate=0".to_owned(), "no request is traced"));
        }
        let of_other = match mode {
            TraceMode::Triton => (otlp != OtlpOptions::default()).then_some("mode is not opentelemetry"),
            TraceMode::OpenTelemetry => (file.is_some() || settings.log_frequency != 0 || settings.level.tensors)
                .then_some("mode is not triton"),
        };
        idle.extend(of_other.map(|why| ("--trace-config: a setting of the other mode".to_owned(), why)));
        idle
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        args: TraceArgs,
    }

    fn choice(given: &[&str]) -> TraceChoice {
        let flags = Flags::try_parse_from([&["test"], given].concat()).unwrap_or_else(|error| panic!("{error}"));
        flags.args.choice()
    }

    fn refusal(given: &str) -> String {
        Flags::try_parse_from(["test", given]).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn one_flag_may_hold_all_settings_and_each_may_have_its_own() {
        let expected = TraceChoice {
            mode: TraceMode::Triton,
            settings: TraceSettings {
                level: TraceLevel { timestamps: true, tensors: true },
                rate: 100,
                count: Some(7),
                log_frequency: 50,
            },
            file: Some("/tmp/trace.json".into()),
            otlp: OtlpOptions::default(),
        };
        let together = "--trace-config=level=TIMESTAMPS,level=TENSORS,rate=100,count=7,file=/tmp/trace.json,\
                        log-frequency=50,mode=triton";
        assert_eq!(choice(&[together]), expected);
        let apart = [
            "--trace-config",
            "triton,file=/tmp/trace.json",
            "--trace-config=triton,log-frequency=50",
            "--trace-config=level=TIMESTAMPS",
            "--trace-config=level=TENSORS",
            "--trace-config=rate=100",
            "--trace-config=count=7",
        ];
        assert_eq!(choice(&apart), expected);
        let older = [
            "--trace-file=/tmp/trace.json",
            "--trace-level=TIMESTAMPS",
            "--trace-level=TENSORS",
            "--trace-rate=100",
            "--trace-count=7",
            "--trace-log-frequency=50",
        ];
        assert_eq!(choice(&older), expected);
        assert_eq!(choice(&["--trace-count", "-1"]).settings.count, None);
        assert_eq!(
            choice(&["--trace-config=level=OFF", "--trace-config=level=TENSORS"]).settings.level,
            TraceLevel::OFF
        );
        assert_eq!(choice(&[]), TraceChoice::default());
    }

    #[test]
    fn where_spans_go_is_said_as_on_triton() {
        let given = [
            "--trace-config=mode=opentelemetry",
            "--trace-config",
            "opentelemetry,url=http://host:4318/v1/traces",
            "--trace-config=opentelemetry,resource=service.name=x",
            "--trace-config=opentelemetry,resource=service.version=1=2",
            "--trace-config=opentelemetry,bsp_max_queue_size=9,bsp_schedule_delay=100,bsp_max_export_batch_size=3",
        ];
        let choice = choice(&given);
        assert_eq!(choice.mode, TraceMode::OpenTelemetry);
        let expected = OtlpOptions {
            url: Some(Uri::from_static("http://host:4318/v1/traces")),
            resource: vec![("service.name".into(), "x".into()), ("service.version".into(), "1=2".into())],
            max_queue_size: Some(9),
            schedule_delay: Some(Duration::from_millis(100)),
            max_export_batch_size: Some(3),
        };
        assert_eq!(choice.otlp, expected);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (given, expected) in [
            ("--trace-config=level=LOUD", "expected OFF, TIMESTAMPS or TENSORS"),
            ("--trace-config=rate=often", "expected a number"),
            ("--trace-config=count=-2", "expected a number from -1"),
            ("--trace-config=colour=red", "unknown setting 'colour'"),
            ("--trace-config=zipkin,url=x", "mode: expected triton or opentelemetry"),
            ("--trace-config=triton,url=http://host/", "'url' is a setting of mode opentelemetry"),
            ("--trace-config=opentelemetry,file=t.json", "'file' is a setting of mode triton"),
            ("--trace-config=opentelemetry,url=ftp://host/v1/traces", "expected a URL such as http://"),
            ("--trace-config=opentelemetry,url=host", "expected a URL such as http://"),
            ("--trace-config=opentelemetry,resource=x", "KEY=VALUE"),
            ("--trace-config=opentelemetry,bsp_max_queue_size=0", "from 1"),
            ("--trace-config=opentelemetry,bsp_schedule_delay=soon", "milliseconds"),
            ("--trace-config=triton", "SETTING=VALUE"),
            ("--trace-config=file=", "file: expected a value"),
        ] {
            let refusal = refusal(given);
            assert!(refusal.contains(expected), "{given}: {refusal}");
        }
    }

    #[test]
    fn settings_that_trace_nothing_are_named() {
        let idle = |given: &[&str]| {
            let flags = Flags::try_parse_from([&["test"], given].concat()).unwrap_or_else(|error| panic!("{error}"));
            flags.args.idle().len()
        };
        assert_eq!(idle(&["--trace-config=level=TIMESTAMPS"]), 1);
        assert_eq!(idle(&["--trace-config=level=TIMESTAMPS,file=t.json,rate=0"]), 1);
        assert_eq!(idle(&["--trace-config=level=TIMESTAMPS,file=t.json"]), 0);
        assert_eq!(idle(&["--trace-config=file=t.json"]), 0, "clients may turn it on");
        assert_eq!(idle(&["--trace-config=url=http://host/"]), 1);
        assert_eq!(idle(&["--trace-config=mode=opentelemetry,file=t.json"]), 1);
        assert_eq!(idle(&["--trace-config=mode=opentelemetry,level=TIMESTAMPS,rate=0"]), 0, "clients decide");
    }
}
