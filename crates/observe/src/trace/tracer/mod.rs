//! Decides which requests are traced, and passes their traces on.

use std::{
    collections::HashMap,
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Instant,
};

use arc_swap::ArcSwap;
use http::HeaderMap;
use parking_lot::Mutex;

use super::{
    context::{self, Parent, TraceHead},
    export::TraceExport,
    record::{TraceRecord, TracedRequest},
    request::RequestTrace,
    settings::{Specified, TraceMode, TraceSettingError, TraceSettings},
    sink::Sink,
    stats::TraceStats,
};

/// Maximum number of models with their own settings.
const MOST_MODELS: usize = 1024;

/// Options of tracing.
#[derive(Clone, Debug, Default)]
pub struct TraceOptions {
    /// The server's settings, to which others fall back.
    pub settings: TraceSettings,
    /// The file for mode `triton`; without it, no trace is recorded.
    pub file: Option<PathBuf>,
    /// The destination of spans: with it, the mode is `opentelemetry`.
    pub export: Option<Arc<dyn TraceExport>>,
}

/// Why tracing cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TraceStartError {
    /// The thread cannot be started.
    #[error("cannot start the thread that writes traces: {0}")]
    Thread(#[from] io::Error),
}

/// Decides which requests are traced.
#[derive(Debug)]
pub struct Tracer {
    mode: TraceMode,
    file: String,
    /// The settings at startup.
    default: TraceSettings,
    current: ArcSwap<Samplers>,
    /// Locked while settings are changed.
    changing: Mutex<()>,
    /// `None` if traces have no destination.
    sink: Option<Arc<Sink>>,
    stats: Arc<TraceStats>,
    ids: Arc<AtomicU64>,
}

/// All settings in force.
#[derive(Debug)]
struct Samplers {
    global: Scope,
    models: HashMap<String, Scope>,
    /// Whether any request may be traced.
    is_on: bool,
}

/// The settings of the server or of a model.
#[derive(Clone, Debug)]
struct Scope {
    specified: Specified,
    sampler: Arc<Sampler>,
}

/// Counts requests under one set of settings.
#[derive(Debug)]
struct Sampler {
    settings: TraceSettings,
    seen: AtomicU64,
    /// Remaining number of traces, if limited.
    left: AtomicU32,
}

impl Sampler {
    fn new(settings: TraceSettings) -> Self {
        let left = AtomicU32::new(settings.count.unwrap_or(0));
        Self { settings, seen: AtomicU64::new(0), left }
    }

    /// Returns the settings with the remaining number of traces.
    fn now(&self) -> TraceSettings {
        let count = self.settings.count.map(|_| self.left.load(Ordering::Relaxed));
        TraceSettings { count, ..self.settings.clone() }
    }

    /// Whether the next request is traced. If the client sends a span, its sampling flag decides, and rate and count
    /// are ignored.
    fn samples(&self, parent: Option<Parent>) -> bool {
        if self.settings.level.is_off() {
            return false;
        }
        if let Some(parent) = parent {
            return parent.is_sampled;
        }
        let rate = u64::from(self.settings.rate);
        if rate == 0 || !(self.seen.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(rate) {
            return false;
        }
        let one_less = |left: u32| left.checked_sub(1);
        self.settings.count.is_none() || self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }
}

impl Tracer {
    /// Starts a tracer. In mode `triton` it traces nothing unless there is a file.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(options: TraceOptions) -> Result<Self, TraceStartError> {
        let TraceOptions { settings, file, export } = options;
        let mode = if export.is_some() { TraceMode::OpenTelemetry } else { TraceMode::Triton };
        let stats = export.as_ref().map_or_else(Arc::default, |export| Arc::clone(export.stats()));
        let sink = match (export, &file) {
            (Some(export), _) => Some(Arc::new(Sink::Export(export))),
            (None, Some(file)) => Some(Arc::new(Sink::files(file.clone(), &stats)?)),
            (None, None) => None,
        };
        let global = Scope { specified: Specified::default(), sampler: Arc::new(Sampler::new(settings.clone())) };
        let samplers = Samplers::new(global, HashMap::new(), sink.as_deref());
        Ok(Self {
            mode,
            file: file.map_or_else(String::new, |file| file.display().to_string()),
            default: settings,
            current: ArcSwap::from_pointee(samplers),
            changing: Mutex::new(()),
            sink,
            stats,
            ids: Arc::new(AtomicU64::new(1)),
        })
    }

    /// Returns the counters of traces.
    pub fn stats(&self) -> &Arc<TraceStats> {
        &self.stats
    }

    /// Returns the settings of a model or of the server, as the protocol represents them.
    pub fn settings(&self, model: Option<&str>) -> Vec<(&'static str, Vec<String>)> {
        self.current.load().of(model).sampler.now().shown(self.mode, &self.file)
    }

    /// Changes settings of a model or of the server, all or none. A setting without a value falls back: a model's to
    /// the server's, the server's to its value at startup.
    ///
    /// # Errors
    /// If there is no such setting, if a value is invalid, or if the settings would be on but trace nothing.
    pub fn change<'a>(
        &self,
        model: Option<&str>,
        changes: impl IntoIterator<Item = (&'a str, &'a [String])>,
    ) -> Result<(), TraceSettingError> {
        // Serializes changes; readers only load the current settings.
        let _changing = self.changing.lock();
        let current = self.current.load();
        let scope = match model {
            None => Some(&current.global),
            Some(model) => current.models.get(model),
        };
        let mut specified = scope.map(Scope::remaining).unwrap_or_default();
        for (name, values) in changes {
            specified.change(name, values, (self.mode, &self.default))?;
        }
        let (mut global, mut models) = (current.global.clone(), current.models.clone());
        match model {
            None => {
                global = self.scope(specified, &self.default, Some(&current.global))?;
                let fallback = global.sampler.now();
                // Models inherit every setting that they do not specify, so a change of the global ones affects them
                // too.
                for scope in models.values_mut() {
                    *scope = self.scope(scope.remaining(), &fallback, Some(scope))?;
                }
            }
            Some(model) if specified.is_empty() => drop(models.remove(model)),
            Some(model) => {
                if models.len() >= MOST_MODELS && !models.contains_key(model) {
                    return Err(TraceSettingError::TooMany(MOST_MODELS));
                }
                let scope = self.scope(specified, &current.global.sampler.now(), models.get(model))?;
                models.insert(model.to_owned(), scope);
            }
        }
        self.current.store(Arc::new(Samplers::new(global, models, self.sink.as_deref())));
        Ok(())
    }

    /// Combines settings with those that they fall back to. If the result is unchanged, counting continues.
    fn scope(
        &self,
        specified: Specified,
        fallback: &TraceSettings,
        before: Option<&Scope>,
    ) -> Result<Scope, TraceSettingError> {
        let settings = specified.over(fallback);
        if !settings.level.is_off() {
            self.check(&settings)?;
        }
        let sampler = match before {
            Some(before) if before.sampler.now() == settings => Arc::clone(&before.sampler),
            _ => Arc::new(Sampler::new(settings)),
        };
        Ok(Scope { specified, sampler })
    }

    fn check(&self, settings: &TraceSettings) -> Result<(), TraceSettingError> {
        match self.mode {
            TraceMode::Triton if settings.rate == 0 => {
                Err(TraceSettingError::Inconsistent("sample rate must be non-zero"))
            }
            TraceMode::Triton if self.file.is_empty() => {
                Err(TraceSettingError::Inconsistent("trace file name is not given"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the trace data of a request before its message is read; `None` if no request is traced.
    pub fn head(&self, headers: &HeaderMap) -> Option<TraceHead> {
        let is_on = self.current.load().is_on;
        is_on.then(|| TraceHead { came: Instant::now(), parent: self.parent(headers) })
    }

    /// Like [`Self::head`], for one of several requests that arrived with the same headers.
    pub fn head_of(&self, parent: Option<Parent>) -> Option<TraceHead> {
        let is_on = self.current.load().is_on;
        is_on.then(|| TraceHead { came: Instant::now(), parent })
    }

    /// Returns the client's span in the headers.
    pub fn parent(&self, headers: &HeaderMap) -> Option<Parent> {
        match self.mode {
            TraceMode::Triton => None,
            TraceMode::OpenTelemetry => context::parent(headers),
        }
    }

    /// Decides whether a request is traced, and starts its trace.
    pub fn begin(&self, request: &TracedRequest<'_>) -> Option<Arc<RequestTrace>> {
        let sink = self.sink.as_ref()?;
        let current = self.current.load();
        let sampler = &current.of(Some(request.model)).sampler;
        // Spans contain no tensors.
        let is_empty = self.mode == TraceMode::OpenTelemetry && !sampler.settings.level.timestamps;
        if is_empty || !sampler.samples(request.head.parent) {
            return None;
        }
        self.stats.sampled();
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let TraceSettings { level, log_frequency, .. } = sampler.settings;
        let record = TraceRecord::new(id, (level, log_frequency), request);
        Some(Arc::new(RequestTrace::new(Arc::clone(sink), Arc::clone(&self.ids), record)))
    }

    /// Returns once all previous traces are delivered or lost.
    pub fn flush(&self) {
        if let Some(sink) = &self.sink {
            sink.flush();
        }
    }
}

impl Samplers {
    fn new(global: Scope, models: HashMap<String, Scope>, sink: Option<&Sink>) -> Self {
        let any = |scope: &Scope| !scope.sampler.settings.level.is_off();
        let is_on = sink.is_some() && (any(&global) || models.values().any(any));
        Self { global, models, is_on }
    }

    fn of(&self, model: Option<&str>) -> &Scope {
        model.filter(|_| !self.models.is_empty()).and_then(|model| self.models.get(model)).unwrap_or(&self.global)
    }
}

impl Scope {
    /// Returns the explicit settings with the remaining number of traces.
    fn remaining(&self) -> Specified {
        let mut specified = self.specified.clone();
        if specified.count.is_some() {
            specified.count = Some(self.sampler.now().count);
        }
        specified
    }
}

#[cfg(test)]
mod tests;
