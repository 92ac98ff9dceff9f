//! Facts about tensors during inference.

use paternoster_model::DataType;

use super::size::{Dim, Size};
use crate::{
    links::{NodeId, TensorId},
    pb::{self, tensor_proto::DataType as Elem},
    port::datatype_of,
};

/// Maximum rank; tensors with more axes have an unknown rank.
pub(super) const RANK_MAX: usize = 32;
/// Maximum elements of a tensor whose values are tracked.
pub(crate) const VALUES_MAX: usize = 64;

/// What is known about a tensor.
#[derive(Clone, Debug)]
pub(crate) struct Fact {
    pub datatype: Option<DataType>,
    /// `None` if not even the rank is known.
    pub dims: Option<Vec<Dim>>,
    /// Elements of a small integer tensor of rank 0 or 1.
    pub value: Option<Vec<Dim>>,
    /// Elements of a small constant FP32 tensor.
    pub reals: Option<Vec<f32>>,
    pub flow: Flow,
}

/// How a tensor depends on the rows of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Independent of the contents and the number of rows.
    Constant,
    /// Depends on the number of rows, but not on their contents.
    Count,
    /// Contains the rows in order along this axis, each with the same number of entries, which depend only on their own
    /// row.
    Rows(usize),
    /// Anything else.
    Mixed(Mixing),
}

/// Where and why the rows were mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mixing {
    pub origin: Origin,
    pub cause: &'static str,
}

/// The origin of a mixed tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// An operator that mixes the rows.
    Node(NodeId),
    /// A tensor from outside that is not by rows.
    Tensor(TensorId),
}

impl Fact {
    /// Creates a fact with nothing known except the dependence on rows.
    pub(crate) fn opaque(flow: Flow) -> Self {
        Self { datatype: None, dims: None, value: None, reals: None, flow }
    }

    /// Creates the fact of a tensor in the file.
    pub(crate) fn of_tensor(tensor: &pb::TensorProto) -> Self {
        let elem = Elem::try_from(tensor.data_type()).ok();
        let fits = tensor.dims.len() <= RANK_MAX && tensor.dims.iter().all(|&length| length >= 0);
        let dims = fits.then(|| tensor.dims.iter().map(|&length| Some(Size::from(length))).collect());
        let mut fact =
            Self { datatype: elem.and_then(datatype_of), dims, value: None, reals: None, flow: Flow::Constant };
        let count = tensor.dims.iter().try_fold(1_i64, |count, &length| count.checked_mul(length));
        let count = count.and_then(|count| usize::try_from(count).ok()).filter(|count| *count <= VALUES_MAX);
        if let (true, Some(count), Some(elem)) = (tensor.dims.len() <= 1 && fits, count, elem) {
            let whole = whole_numbers(tensor, elem).filter(|values| values.len() == count);
            fact.value = whole.map(|values| values.into_iter().map(|value| Some(Size::from(value))).collect());
            fact.reals = reals(tensor, elem).filter(|values| values.len() == count);
        }
        fact
    }

    /// Returns the axis of the rows.
    pub(crate) fn rows(&self) -> Option<usize> {
        match self.flow {
            Flow::Rows(axis) => Some(axis),
            Flow::Constant | Flow::Count | Flow::Mixed(_) => None,
        }
    }

    /// Returns the elements, if all are known numbers.
    pub(crate) fn numbers(&self) -> Option<Vec<i64>> {
        self.value.as_ref()?.iter().map(|element| element.as_ref()?.known()).collect()
    }
}

fn whole_numbers(tensor: &pb::TensorProto, elem: Elem) -> Option<Vec<i64>> {
    let Some(raw) = &tensor.raw_data else {
        return match elem {
            Elem::Int64 => Some(tensor.int64_data.clone()),
            Elem::Int32 | Elem::Bool => Some(tensor.int32_data.iter().map(|&value| value.into()).collect()),
            _ => None,
        };
    };
    if raw.len() > 8 * VALUES_MAX {
        return None;
    }
    match elem {
        Elem::Int64 => Some(raw.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect()),
        Elem::Int32 => Some(raw.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes).into()).collect()),
        Elem::Bool => Some(raw.iter().map(|&byte| byte.into()).collect()),
        _ => None,
    }
}

fn reals(tensor: &pb::TensorProto, elem: Elem) -> Option<Vec<f32>> {
    match &tensor.raw_data {
        _ if elem != Elem::Float => None,
        None => Some(tensor.float_data.clone()),
        Some(raw) if raw.len() > 4 * VALUES_MAX => None,
        Some(raw) => Some(raw.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()),
    }
}
