//! What passes between steps: a tensor of all rows together, or one for each row.
//!
//! Rows become separate where they differ in shape (texts of different lengths) or where some of them skip a step. They
//! are joined again for the response.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use paternoster_model::{DataType, Dims, InputTensor, ShapeText, TensorSpec, element_count};
use paternoster_observe::budget::{Exhausted, Reservation};

use super::workers::{Progress, WorkerGroup};

/// Bytes of the length in front of each BYTES element.
const LENGTH_BYTES: usize = size_of::<u32>();

/// The value of a tensor within one request.
#[derive(Clone, Debug)]
pub enum TensorRows {
    /// All rows, along the first axis.
    Joint(InputTensor),
    /// One tensor for each row, whose first axis has length 1; `None` for rows that have none.
    Rows(Vec<Option<InputTensor>>),
}

/// Why values cannot be split or joined.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ValueFault {
    /// The data is not what its shape says.
    #[error("it has {bytes} bytes, which do not make {rows} rows of shape {shape:?}")]
    Rows {
        /// Bytes of data.
        bytes: usize,
        /// Rows of the request.
        rows: usize,
        /// The shape.
        shape: Vec<i64>,
    },
    /// Rows of different ranks, or more elements than can be counted.
    #[error("rows of shapes {0:?} and {1:?} cannot be joined")]
    Shapes(Vec<i64>, Vec<i64>),
    /// It has neither the dimensions of the specification, nor is it one row of them.
    #[error("expected shape {expected}, but the step gave {got}")]
    Shape {
        /// What the specification says.
        expected: ShapeText,
        /// The shape.
        got: ShapeText,
    },
    /// There is no room for the joined rows.
    #[error("no memory for the rows of a response: {0}")]
    NoRoom(#[from] Exhausted),
    /// The thread that joined rows failed.
    #[error("the rows could not be joined: {0}")]
    Failed(String),
}

impl TensorRows {
    /// Returns the bytes of its elements.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Joint(tensor) => tensor.data.len(),
            Self::Rows(rows) => rows.iter().flatten().map(|row| row.data.len()).sum(),
        }
    }

    /// Returns one tensor for each of `rows` rows; they share its memory.
    ///
    /// # Errors
    /// If it does not have this number of rows.
    pub fn by_row(&self, datatype: DataType, rows: usize) -> Result<Vec<Option<InputTensor>>, ValueFault> {
        match self {
            Self::Rows(own) => Ok(own.clone()),
            Self::Joint(tensor) => Ok(split(tensor, datatype, &vec![1; rows])?.into_iter().map(Some).collect()),
        }
    }
}

/// Returns the only string of a row.
pub fn only_string(row: &InputTensor) -> Option<&[u8]> {
    let (length, text) = row.data.split_first_chunk::<LENGTH_BYTES>()?;
    (text.len() == u32::from_le_bytes(*length) as usize).then_some(text)
}

/// Cuts a tensor into parts of these numbers of rows. The parts share its memory.
pub(crate) fn split(tensor: &InputTensor, datatype: DataType, parts: &[usize]) -> Result<Vec<InputTensor>, ValueFault> {
    let rows: usize = parts.iter().sum();
    let fault = || ValueFault::Rows { bytes: tensor.data.len(), rows, shape: tensor.shape.to_vec() };
    let dims = tensor.shape.get(1..).unwrap_or_default();
    let elements = element_count(dims).ok_or_else(fault)?;
    if tensor.shape.first().and_then(|&given| usize::try_from(given).ok()) != Some(rows) {
        return Err(fault());
    }
    let mut cut = Vec::with_capacity(parts.len());
    let mut start = 0;
    for &part in parts {
        let end = match datatype.size_bytes() {
            Some(size) => start + part * elements * size,
            None => skip(&tensor.data, start, part * elements).ok_or_else(fault)?,
        };
        if end > tensor.data.len() {
            return Err(fault());
        }
        let mut shape = tensor.shape.clone();
        shape[0] = part as i64;
        cut.push(InputTensor { shape, data: tensor.data.slice(start..end) });
        start = end;
    }
    if start == tensor.data.len() { Ok(cut) } else { Err(fault()) }
}

/// Returns the position behind `count` BYTES elements.
fn skip(data: &[u8], mut position: usize, count: usize) -> Option<usize> {
    for _ in 0..count {
        let length = data.get(position..position + LENGTH_BYTES)?.first_chunk::<LENGTH_BYTES>()?;
        position = position.checked_add(LENGTH_BYTES)?.checked_add(u32::from_le_bytes(*length) as usize)?;
    }
    (position <= data.len()).then_some(position)
}

/// Joins that build more than this many bytes run on a worker thread: copying so many takes well below a millisecond.
const MOST_JOINED_HERE_BYTES: usize = 256 << 10;

/// About how long it takes to copy a byte.
const NS_OF_A_BYTE: u64 = 1;

/// Joins rows along the first axis. Rows that are shorter along another axis are padded to the longest with zeros, or
/// with empty strings; a row that has no tensor is all zeros. `room` grows by what is built.
///
/// # Errors
/// If the rows differ in rank, or there is no room.
pub(crate) async fn join(
    rows: Vec<Option<InputTensor>>,
    spec: &TensorSpec,
    room: &mut Reservation,
    workers: &WorkerGroup,
) -> Result<InputTensor, ValueFault> {
    let joining = Joining::new(rows, spec)?;
    if let [Some(only)] = &joining.rows[..] {
        return Ok(only.clone());
    }
    if joining.bytes <= MOST_JOINED_HERE_BYTES {
        room.grow_now(joining.bytes)?;
        return joining.run();
    }
    // Held until the thread has ended, which may be after the request.
    let mut held = room.split_off(0);
    held.grow_now(joining.bytes)?;
    let effort = Duration::from_nanos((joining.bytes as u64).saturating_mul(NS_OF_A_BYTE));
    let work = workers.run(effort, None, move || Progress::Done((joining.run(), held.take())));
    let (joined, held) = work.await.map_err(|error| ValueFault::Failed(error.to_string()))?;
    room.absorb(held);
    joined
}

/// Rows that are being joined.
struct Joining {
    rows: Vec<Option<InputTensor>>,
    /// Of the joined tensor.
    shape: Dims,
    row_elements: usize,
    /// Bytes of an element; `None` for BYTES.
    size: Option<usize>,
    /// Bytes that are built.
    bytes: usize,
}

impl Joining {
    fn new(rows: Vec<Option<InputTensor>>, spec: &TensorSpec) -> Result<Self, ValueFault> {
        let dims = longest(&rows, spec)?;
        let count: i64 = rows.iter().map(|row| row.as_ref().map_or(1, |row| row.shape[0])).sum();
        let shape: Dims = std::iter::once(count).chain(dims.iter().copied()).collect();
        let uncountable = || ValueFault::Shapes(shape.to_vec(), dims.to_vec());
        let row_elements = element_count(&dims).ok_or_else(uncountable)?;
        let size = spec.datatype.size_bytes();
        let elements = element_count(&shape).and_then(|all| all.checked_mul(size.unwrap_or(LENGTH_BYTES)));
        let strings = || rows.iter().flatten().map(|row| row.data.len()).sum::<usize>();
        let bytes = elements.and_then(|bytes| bytes.checked_add(if size.is_none() { strings() } else { 0 }));
        let bytes = bytes.ok_or_else(uncountable)?;
        Ok(Self { rows, shape, row_elements, size, bytes })
    }

    fn run(&self) -> Result<InputTensor, ValueFault> {
        let Self { rows, shape, row_elements, size, bytes } = self;
        let (dims, size) = (&shape[1..], *size);
        let mut joined = BytesMut::with_capacity(*bytes);
        for row in rows {
            match row {
                None => joined.resize(joined.len() + row_elements * size.unwrap_or(LENGTH_BYTES), 0),
                Some(row) if row.shape[1..] == *dims => joined.extend_from_slice(&row.data),
                Some(row) => pad(row, dims, size, &mut joined).ok_or_else(|| ValueFault::Rows {
                    bytes: row.data.len(),
                    rows: row.shape[0] as usize,
                    shape: row.shape.to_vec(),
                })?,
            }
        }
        Ok(InputTensor { shape: shape.clone(), data: joined.freeze() })
    }
}

/// Returns the longest dimensions of the rows, without the first. Dimensions that the specification fixes are as it
/// says, so that a request of which no row has a tensor has a shape, too.
fn longest(rows: &[Option<InputTensor>], spec: &TensorSpec) -> Result<Dims, ValueFault> {
    let mut dims: Dims = spec.dims.iter().map(|&dim| dim.max(0)).collect();
    for row in rows.iter().flatten() {
        let Some(own) = row.shape.get(1..).filter(|own| own.len() == dims.len()) else {
            return Err(ValueFault::Shapes(row.shape.to_vec(), dims.to_vec()));
        };
        dims.iter_mut().zip(own).for_each(|(longest, &dim)| *longest = dim.max(*longest));
    }
    Ok(dims)
}

/// Appends the elements of a tensor with `dims` as the dimensions behind the first, which are at least its own.
fn pad(row: &InputTensor, dims: &[i64], size: Option<usize>, joined: &mut BytesMut) -> Option<()> {
    let mut position = 0;
    for _ in 0..row.shape[0] {
        let mut copy = Copy { data: &row.data, position, size };
        copy.axis(&row.shape[1..], dims, joined)?;
        position = copy.position;
    }
    Some(())
}

struct Copy<'a> {
    data: &'a Bytes,
    position: usize,
    size: Option<usize>,
}

impl Copy<'_> {
    fn axis(&mut self, own: &[i64], dims: &[i64], joined: &mut BytesMut) -> Option<()> {
        let (Some((&own_dim, own)), Some((&dim, dims))) = (own.split_first(), dims.split_first()) else {
            return self.elements(1, joined);
        };
        if own.is_empty() {
            self.elements(usize::try_from(own_dim).ok()?, joined)?;
        } else {
            for _ in 0..own_dim {
                self.axis(own, dims, joined)?;
            }
        }
        let missing = element_count(dims)? * usize::try_from(dim - own_dim).ok()?;
        joined.resize(joined.len() + missing * self.size.unwrap_or(LENGTH_BYTES), 0);
        Some(())
    }

    fn elements(&mut self, count: usize, joined: &mut BytesMut) -> Option<()> {
        let end = match self.size {
            Some(size) => self.position + count * size,
            None => skip(self.data, self.position, count)?,
        };
        joined.extend_from_slice(self.data.get(self.position..end)?);
        self.position = end;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use paternoster_observe::budget::Budget;

    use super::*;
    use crate::Workers;

    fn tensor(shape: &[i64], data: &[u8]) -> InputTensor {
        InputTensor { shape: Dims::from_slice(shape), data: Bytes::copy_from_slice(data) }
    }

    fn strings(elements: &[&str]) -> Vec<u8> {
        let parts = elements.iter().map(|text| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat());
        parts.collect::<Vec<_>>().concat()
    }

    fn room() -> Reservation {
        Reservation::none(&Budget::of_bytes(1 << 20))
    }

    fn joins() -> WorkerGroup {
        Workers::new(1).joins
    }

    #[test]
    fn rows_of_strings_are_cut_where_their_lengths_say() {
        let both = tensor(&[2, 2], &strings(&["a", "", "bcd", "e"]));
        let rows = split(&both, DataType::Bytes, &[1, 1]).expect("two rows");
        assert_eq!(rows[0].data, strings(&["a", ""]));
        assert_eq!((&rows[1].shape[..], &rows[1].data[..]), (&[1, 2][..], &strings(&["bcd", "e"])[..]));
        assert!(split(&both, DataType::Bytes, &[1, 1, 1]).is_err(), "three rows");
        let cut_off = tensor(&[1, 1], &[9, 0, 0, 0, b'a']);
        assert!(split(&cut_off, DataType::Bytes, &[1]).is_err());
    }

    #[tokio::test]
    async fn shorter_rows_are_padded_and_absent_rows_are_zeros() {
        let spec = TensorSpec::new("t", DataType::Uint8, &[-1, 2]);
        let rows = [Some(tensor(&[1, 1, 2], &[1, 2])), None, Some(tensor(&[1, 2, 2], &[3, 4, 5, 6]))];
        let joined = join(rows.to_vec(), &spec, &mut room(), &joins()).await.expect("it fits");
        assert_eq!(&joined.shape[..], [3, 2, 2]);
        assert_eq!(&joined.data[..], [1, 2, 0, 0, 0, 0, 0, 0, 3, 4, 5, 6]);
    }

    #[tokio::test]
    async fn strings_are_padded_with_empty_ones() {
        let spec = TensorSpec::new("t", DataType::Bytes, &[-1]);
        let rows = [Some(tensor(&[1, 1], &strings(&["a"]))), Some(tensor(&[1, 2], &strings(&["b", "c"]))), None];
        let joined = join(rows.to_vec(), &spec, &mut room(), &joins()).await.expect("it fits");
        assert_eq!(&joined.shape[..], [3, 2]);
        assert_eq!(joined.data, strings(&["a", "", "b", "c", "", ""]));
    }

    #[tokio::test]
    async fn a_request_of_which_no_row_has_a_tensor_has_the_shape_of_the_specification() {
        let spec = TensorSpec::new("t", DataType::Fp32, &[3, -1]);
        let joined = join(vec![None, None], &spec, &mut room(), &joins()).await.expect("it fits");
        assert_eq!((&joined.shape[..], joined.data.len()), (&[2, 3, 0][..], 0));
    }

    #[tokio::test]
    async fn room_is_taken_before_rows_are_built() {
        let spec = TensorSpec::new("t", DataType::Uint8, &[-1]);
        let mut room = Reservation::none(&Budget::of(5));
        let rows = [Some(tensor(&[1, 3], &[1, 2, 3])), Some(tensor(&[1, 1], &[1]))];
        assert!(
            matches!(join(rows.to_vec(), &spec, &mut room, &joins()).await, Err(ValueFault::NoRoom(_))),
            "six bytes"
        );
        assert_eq!(room.amount(), 0);
    }
}
