//! Traces of single requests: which requests are traced, what is recorded, and where it is written.
//!
//! A [`Tracer`] decides at the start of a request whether it is traced, by the settings of Triton's trace extension
//! (`settings`) or because its client traces it (`context`). A request that is not traced costs a counter and no
//! allocation. A traced request carries a [`RequestTrace`], to which the front end and the executor add events. When
//! its last reference is dropped, it is written as objects of Triton's JSON to a file (`triton`, `file`), or its record
//! goes to a [`TraceExport`], which makes spans of it. This module must not know the contents of tensors or messages,
//! or read the executor's clock (its times are passed in, in nanoseconds since an epoch of its own).

mod context;
mod export;
mod file;
mod record;
mod request;
mod settings;
mod sink;
mod stats;
mod tracer;
mod triton;

pub use context::{Parent, TRACE_RESPONSE, TraceHead};
pub use export::{ExportedTrace, TraceExport};
pub use record::{
    Interval, Milestone, Parts, TraceEnd, TraceProgress, TraceRecord, TracedRequest, TracedTensor, Transport, at,
};
pub use request::{RequestTrace, Sending};
pub use settings::{TraceLevel, TraceMode, TraceSettingError, TraceSettings, parse_count, parse_number};
pub use stats::TraceStats;
pub use tracer::{TraceOptions, TraceStartError, Tracer};
