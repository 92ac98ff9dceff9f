//! Traces of single requests: which are recorded, what is recorded of them, and where it goes.
//!
//! A [`Tracer`] decides at the head of a request whether it is traced, by the settings of Triton's trace extension
//! (`settings`) or because its client traces it (`context`). One that is not costs a counter and no allocation. One
//! that is carries a [`RequestTrace`], to which the front end and the executor add what happens to it; when the last of
//! them lets go, it becomes objects of Triton's JSON in a file (`triton`, `file`) or spans (`otlp`). Here must not
//! live: what is in a tensor or a message, and who is asked for a time (the executor's come in nanoseconds since an
//! epoch of its own).

mod context;
mod file;
mod otlp;
mod request;
mod settings;
mod stats;
mod tracer;
mod triton;

pub use context::{Parent, TRACE_RESPONSE, TraceHead};
pub use otlp::{OtlpOptions, collector_url};
pub use request::{Parts, RequestTrace, Sending, TaskRan, TracedRequest, TracedTensor, Transport};
pub use settings::{TraceLevel, TraceMode, TraceSettingError, TraceSettings, parse_count, parse_number};
pub use stats::TraceStats;
pub use tracer::{TraceOptions, TraceStartError, Tracer};
