//! The state that a sequence keeps between its requests.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use paternoster_batching::SequenceNo;
use paternoster_model::{CorrelationId, DataType, InSequence};
use paternoster_observe::budget::{Budget, Exhausted, Reservation};

use super::{CellPrograms, row::Row};

/// The state of one sequence: by segment and output, the value written by its latest completed request. Requests of one
/// sequence run one after the other, so the lock is never contended.
#[derive(Debug)]
pub(crate) struct SequenceState {
    pub(crate) number: SequenceNo,
    kept: Mutex<KeptRows>,
    /// Requests that have begun on a card and not left: one, where the host has yet to take outputs of a request
    /// that has run.
    begun: AtomicU32,
}

/// The values of a sequence, and the memory of those in host memory.
#[derive(Debug)]
struct KeptRows {
    rows: BTreeMap<(usize, usize), KeptValue>,
    memory: Reservation,
    /// Why a value could not be kept. From then on, no request of the sequence can be answered.
    lost: Option<Exhausted>,
}

/// Where a value is kept between two requests.
#[derive(Debug)]
enum KeptValue {
    /// In host memory.
    Row(Row),
    /// On the card, in this one of the sequence's two rows; the other is for the next value.
    OnCard(u32),
}

impl SequenceState {
    /// Creates the state of a sequence before its first request. What it keeps in host memory is taken from `budget`.
    pub(crate) fn new(number: SequenceNo, budget: &Arc<Budget>) -> Self {
        let kept = KeptRows { rows: BTreeMap::new(), memory: Reservation::none(budget), lost: None };
        Self { number, kept: Mutex::new(kept), begun: AtomicU32::new(0) }
    }

    /// Marks that a request reads the state, and will leave its own at its end.
    pub(super) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::AcqRel);
    }

    /// Marks that a request that had begun has left, whether its state counts or not.
    pub(super) fn leave(&self) {
        self.begun.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether the state of a request that has begun is not known yet.
    pub(super) fn is_awaited(&self) -> bool {
        self.begun.load(Ordering::Acquire) > 0
    }

    /// Returns the value that the previous request wrote, if it is in host memory.
    pub(super) fn read(&self, segment: usize, output: usize) -> Option<Row> {
        match self.kept.lock().rows.get(&(segment, output)) {
            Some(KeptValue::Row(row)) => Some(row.clone()),
            _ => None,
        }
    }

    /// Keeps the values that a request wrote, as (segment, output, row). They are copied, because a sequence lives long
    /// and a shared row would keep the whole task's memory.
    ///
    /// # Errors
    /// Fails if the budget has no room for them. The sequence is lost then: this fails from then on.
    pub(super) fn write(&self, rows: Vec<(usize, usize, Row)>) -> Result<(), Exhausted> {
        let kept = &mut *self.kept.lock();
        if let Some(lost) = kept.lost {
            return Err(lost);
        }
        let is_replaced =
            |place: &(usize, usize)| rows.iter().any(|(segment, output, _)| *place == (*segment, *output));
        let others = kept.rows.iter().filter(|(place, _)| !is_replaced(place)).map(|(_, value)| match value {
            KeptValue::Row(row) => row.len,
            KeptValue::OnCard(_) => 0,
        });
        let bytes = others.sum::<usize>() + rows.iter().map(|(_, _, row)| row.len).sum::<usize>();
        if let Some(more) = bytes.checked_sub(kept.memory.amount())
            && let Err(full) = kept.memory.grow_now(more)
        {
            kept.rows.clear();
            kept.memory.shrink_to(0);
            kept.lost = Some(full);
            return Err(full);
        }
        for (segment, output, row) in rows {
            kept.rows.insert((segment, output), KeptValue::Row(row.copied()));
        }
        kept.memory.shrink_to(bytes);
        Ok(())
    }

    /// Returns which of its two rows on the card holds the value that the previous request wrote, if that is there.
    pub(super) fn row_on_card(&self, segment: usize, output: usize) -> Option<u32> {
        match self.kept.lock().rows.get(&(segment, output)) {
            Some(KeptValue::OnCard(row)) => Some(*row),
            _ => None,
        }
    }

    /// Returns which of its two rows on the card the next value is written to.
    pub(super) fn next_row_on_card(&self, segment: usize, output: usize) -> u32 {
        self.row_on_card(segment, output).map_or(0, |row| 1 - row)
    }

    /// Makes the row that was written last the one that is read.
    pub(super) fn turn(&self, segment: usize, output: usize) {
        let next = self.next_row_on_card(segment, output);
        self.kept.lock().rows.insert((segment, output), KeptValue::OnCard(next));
    }
}

/// Returns the datatype as which a cell reads the correlation id and which this id does not fit, if there is one. The
/// version cannot serve such a request.
pub(super) fn unreadable(programs: &CellPrograms, sequence: &InSequence) -> Option<DataType> {
    programs.correlation_types().find(|datatype| correlation_id(*datatype, &sequence.id).is_none())
}

/// Encodes one BYTES element.
fn text(element: &str) -> Bytes {
    let mut bytes = BytesMut::with_capacity(4 + element.len());
    bytes.put_u32_le(element.len() as u32);
    bytes.put_slice(element.as_bytes());
    bytes.freeze()
}

/// Encodes a correlation id; `None` if it does not fit the type.
pub(super) fn correlation_id(datatype: DataType, id: &CorrelationId) -> Option<Bytes> {
    if datatype == DataType::Bytes {
        return Some(text(&id.to_string()));
    }
    let CorrelationId::Number(number) = *id else { return None };
    Some(match datatype {
        DataType::Int64 | DataType::Uint64 => Bytes::copy_from_slice(&number.to_le_bytes()),
        DataType::Int32 => Bytes::copy_from_slice(&i32::try_from(number).ok()?.to_le_bytes()),
        DataType::Uint32 => Bytes::copy_from_slice(&u32::try_from(number).ok()?.to_le_bytes()),
        _ => return None,
    })
}
