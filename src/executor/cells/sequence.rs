//! What a sequence keeps from one of its requests to the next.

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::Mutex;

use super::{CellPrograms, row::Row};
use crate::model::{CorrelationId, DataType, InSequence};

/// The state of one sequence: by segment and output, what its latest completed request left. Requests of one sequence
/// follow one another, so that the lock is never contended.
#[derive(Debug, Default)]
pub(in crate::executor) struct SequenceState {
    rows: Mutex<BTreeMap<(usize, usize), Row>>,
}

impl SequenceState {
    /// What the request before left; `None` where this is the first.
    pub(super) fn read(&self, segment: usize, output: usize) -> Option<Row> {
        self.rows.lock().get(&(segment, output)).cloned()
    }

    pub(super) fn write(&self, segment: usize, output: usize, row: Row) {
        self.rows.lock().insert((segment, output), row);
    }
}

/// Why a version cannot serve a request of a sequence: its cells read the correlation id as a type that this one does
/// not fit.
pub(super) fn unreadable(programs: &CellPrograms, sequence: &InSequence) -> Option<DataType> {
    programs.correlation_types().find(|datatype| correlation_id(*datatype, &sequence.id).is_none())
}

/// A correlation id in wire form; `None` where it does not fit the type.
pub(super) fn correlation_id(datatype: DataType, id: &CorrelationId) -> Option<Bytes> {
    let CorrelationId::Number(number) = *id else { return None };
    Some(match datatype {
        DataType::Int64 | DataType::Uint64 => Bytes::copy_from_slice(&number.to_le_bytes()),
        DataType::Int32 => Bytes::copy_from_slice(&i32::try_from(number).ok()?.to_le_bytes()),
        DataType::Uint32 => Bytes::copy_from_slice(&u32::try_from(number).ok()?.to_le_bytes()),
        _ => return None,
    })
}
