//! The host memory of a buffer pair while a batch leases it, and a task's rows in it (DVABatch section 6.1).
//!
//! A task whose rows are contiguous reads and writes them in place. If rows between them have left the batch, the rest
//! is gathered into a temporary buffer and scattered back to its places.

use std::{ops::Range, sync::Arc};

use parking_lot::Mutex;
use paternoster_device::{Buffer, BufferPool, RowBuffer, RowsMut};
use paternoster_model::{BoundaryDim, BoundaryTensor, Dims, element_count};
use smallvec::SmallVec;

use crate::gather::Data;

/// The rows of a task by their places in the batch, in the task's order.
pub(crate) struct Places {
    /// Maximal runs of consecutive places.
    runs: SmallVec<[Range<u32>; 4]>,
}

impl Places {
    /// Creates the places of consecutive spans, each given by its first place and its number of rows.
    pub(crate) fn new(spans: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut runs: SmallVec<[Range<u32>; 4]> = SmallVec::new();
        for (at, count) in spans {
            match runs.last_mut() {
                Some(run) if run.end == at => run.end += count,
                _ => runs.push(at..at + count),
            }
        }
        Self { runs }
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> u32 {
        self.runs.iter().map(|run| run.end - run.start).sum()
    }
}

/// The rows that a batch keeps at one boundary: in each tensor, one row per place of the batch. Memory is allocated by
/// the first write, so a batch that exits early needs only what it fills.
pub(crate) struct BoundaryRows {
    /// Number of places of the batch.
    capacity: u32,
    tensors: Box<[Mutex<Option<Tensor>>]>,
}

#[derive(Clone)]
struct Tensor {
    row_dims: Dims,
    rows: Arc<RowBuffer>,
}

impl BoundaryRows {
    /// Creates the empty rows of a batch with up to `capacity` rows, at a boundary with this many tensors.
    pub(crate) fn new(capacity: u32, tensors: usize) -> Arc<Self> {
        Arc::new(Self { capacity, tensors: (0..tensors).map(|_| Mutex::default()).collect() })
    }

    /// Returns rows of a tensor, and the dimensions of each row.
    ///
    /// # Errors
    /// If a row has not been written, or is being written.
    pub(crate) fn read(
        &self,
        tensor: usize,
        places: &Places,
        buffers: &Arc<BufferPool>,
    ) -> Result<(Dims, Data), String> {
        let held = self.tensors.get(tensor).and_then(|held| held.lock().clone());
        let Tensor { row_dims, rows } = held.ok_or("nothing was written to the tensor")?;
        if let [run] = places.runs.as_slice() {
            let inside = rows.read(run.clone()).map_err(|error| error.to_string())?;
            return Ok((row_dims, Data::Boundary(inside)));
        }
        let gathered = BufferPool::take(buffers, places.rows() as usize * rows.row_bytes());
        let mut gathered = gathered.map_err(|error| error.to_string())?;
        let mut rest = gathered.as_mut_slice();
        for run in &places.runs {
            let from = rows.read(run.clone()).map_err(|error| error.to_string())?;
            let (into, after) = rest.split_at_mut(from.len());
            into.copy_from_slice(&from);
            rest = after;
        }
        Ok((row_dims, Data::Copied(gathered)))
    }

    /// Returns writable memory for rows of a tensor.
    ///
    /// # Errors
    /// If one of the rows is in use, if earlier rows have other dimensions, or if the memory would be too large.
    pub(crate) fn write(
        &self,
        tensor: usize,
        (row_dims, element_bytes): (&[i64], usize),
        places: &Places,
        buffers: &Arc<BufferPool>,
    ) -> Result<WriteRows, String> {
        let rows = self.rows_of(tensor, row_dims, element_bytes, buffers)?;
        let write = |run: &Range<u32>| rows.write(run.clone()).map_err(|error| error.to_string());
        if let [run] = places.runs.as_slice() {
            return Ok(WriteRows::Inside(write(run)?));
        }
        let into = places.runs.iter().map(write).collect::<Result<SmallVec<_>, String>>()?;
        let gathered = BufferPool::take(buffers, places.rows() as usize * rows.row_bytes());
        let gathered = gathered.map_err(|error| error.to_string())?;
        Ok(WriteRows::Apart { gathered, into })
    }

    /// Returns the tensor's memory; allocates it for the first rows.
    fn rows_of(
        &self,
        tensor: usize,
        row_dims: &[i64],
        element_bytes: usize,
        buffers: &Arc<BufferPool>,
    ) -> Result<Arc<RowBuffer>, String> {
        let mut held = self.tensors.get(tensor).ok_or("the boundary has no such tensor")?.lock();
        if let Some(Tensor { row_dims: earlier, rows }) = &*held {
            if earlier.as_slice() != row_dims {
                return Err(format!("its rows have the dims {row_dims:?}, those before them {earlier:?}"));
            }
            return Ok(Arc::clone(rows));
        }
        let row_bytes = element_count(row_dims).and_then(|count| count.checked_mul(element_bytes));
        let row_bytes = row_bytes.ok_or_else(|| format!("its rows have the dims {row_dims:?}"))?;
        let rows = RowBuffer::new(buffers, self.capacity, row_bytes).map_err(|error| error.to_string())?;
        *held = Some(Tensor { row_dims: Dims::from_slice(row_dims), rows: Arc::clone(&rows) });
        Ok(rows)
    }
}

/// Writable memory for rows. The rows become readable once they are committed.
pub(crate) enum WriteRows {
    /// In place.
    Inside(RowsMut),
    /// In a temporary buffer, to be scattered to separate places.
    Apart { gathered: Buffer, into: SmallVec<[RowsMut; 4]> },
}

impl WriteRows {
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Self::Inside(rows) => rows,
            Self::Apart { gathered, .. } => gathered.as_mut_slice(),
        }
    }

    /// Moves the rows to their places and makes them readable.
    pub(crate) fn commit(self) {
        match self {
            Self::Inside(rows) => rows.commit(),
            Self::Apart { gathered, into } => {
                let mut rest = gathered.as_slice();
                for mut rows in into {
                    let (own, after) = rest.split_at(rows.len());
                    rows.copy_from_slice(own);
                    rows.commit();
                    rest = after;
                }
            }
        }
    }
}

/// Returns the dimensions of a boundary tensor's rows in a batch with these padded lengths; `None` if they are only
/// known after the run.
pub(crate) fn row_dims(tensor: &BoundaryTensor, lengths: &[u32]) -> Option<Dims> {
    let dim = |dim: &BoundaryDim| match *dim {
        BoundaryDim::Fixed(length) => Some(length),
        BoundaryDim::Symbol(symbol) => lengths.get(usize::from(symbol.0)).map(|&length| i64::from(length)),
    };
    tensor.dims.as_ref()?.iter().map(dim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(rows: &BoundaryRows, spans: &[(u32, u32)], values: &[u8], pool: &Arc<BufferPool>) {
        let places = Places::new(spans.iter().copied());
        let mut room = rows.write(0, (&[2], 1), &places, pool).expect("the rows are unused");
        room.as_mut_slice().copy_from_slice(values);
        room.commit();
    }

    fn read(rows: &BoundaryRows, spans: &[(u32, u32)], pool: &Arc<BufferPool>) -> Result<Vec<u8>, String> {
        let places = Places::new(spans.iter().copied());
        rows.read(0, &places, pool).map(|(_, rows)| rows.as_slice().to_vec())
    }

    #[test]
    fn neighbouring_spans_are_one_run() {
        let places = Places::new([(2, 1), (3, 2), (7, 1)].into_iter());
        assert_eq!(places.runs.as_slice(), [2..5, 7..8]);
        assert_eq!(places.rows(), 4);
    }

    #[test]
    fn rows_side_by_side_are_read_and_written_where_they_lie() {
        let pool = BufferPool::new(0);
        let rows = BoundaryRows::new(4, 1);
        let places = Places::new([(1, 1), (2, 1)].into_iter());
        let room = rows.write(0, (&[2], 1), &places, &pool).expect("the rows are unused");
        assert!(matches!(room, WriteRows::Inside(_)));
        room.commit();
        let (row_dims, read) = rows.read(0, &places, &pool).expect("they were written");
        assert!(matches!(read, Data::Boundary(_)));
        assert_eq!(row_dims.as_slice(), [2]);
    }

    #[test]
    fn rows_between_others_keep_their_places() {
        let pool = BufferPool::new(0);
        let rows = BoundaryRows::new(5, 1);
        fill(&rows, &[(0, 5)], &[0, 0, 1, 1, 2, 2, 3, 3, 4, 4], &pool);
        assert_eq!(read(&rows, &[(0, 1), (2, 2)], &pool), Ok(vec![0, 0, 2, 2, 3, 3]));
        fill(&rows, &[(1, 1), (3, 2)], &[9, 9, 8, 8, 7, 7], &pool);
        assert_eq!(read(&rows, &[(0, 5)], &pool), Ok(vec![0, 0, 9, 9, 2, 2, 8, 8, 7, 7]));
    }

    #[test]
    fn rows_that_were_not_written_are_not_read() {
        let pool = BufferPool::new(0);
        let rows = BoundaryRows::new(4, 1);
        assert!(read(&rows, &[(0, 1)], &pool).is_err(), "there is no memory yet");
        fill(&rows, &[(0, 1)], &[1, 1], &pool);
        assert!(read(&rows, &[(0, 2)], &pool).is_err(), "the second row is not there");
        let places = Places::new([(1, 1)].into_iter());
        drop(rows.write(0, (&[2], 1), &places, &pool).expect("the row is unused"));
        assert!(read(&rows, &[(1, 1)], &pool).is_err(), "its writer gave up");
    }

    #[test]
    fn rows_of_one_batch_have_the_same_dimensions() {
        let pool = BufferPool::new(0);
        let rows = BoundaryRows::new(4, 1);
        fill(&rows, &[(0, 1)], &[1, 1], &pool);
        let places = Places::new([(1, 1)].into_iter());
        let error = rows.write(0, (&[3], 1), &places, &pool).err().expect("three are not two");
        assert_eq!(error, "its rows have the dims [3], those before them [2]");
    }

    #[test]
    fn the_memory_goes_back_with_the_last_user() {
        let pool = BufferPool::new(0);
        let rows = BoundaryRows::new(4, 1);
        assert_eq!(pool.in_use_bytes(), 0, "nothing was written yet");
        fill(&rows, &[(0, 1)], &[1, 1], &pool);
        let (_, guard) = rows.read(0, &Places::new([(0, 1)].into_iter()), &pool).expect("it was written");
        drop(rows);
        assert!(pool.in_use_bytes() > 0, "a reader is left");
        drop(guard);
        assert_eq!(pool.in_use_bytes(), 0);
    }
}
