//! What is known of a tensor while a graph is followed.

use super::size::{Dim, Size};
use crate::{
    model::DataType,
    onnx::{
        links::{NodeId, TensorId},
        pb::{self, tensor_proto::DataType as Elem},
        port::datatype_of,
    },
};

/// Tensors of more axes have an unknown rank.
pub(super) const RANK_MAX: usize = 32;
/// Values are followed in tensors of at most this many elements.
pub(in crate::onnx) const VALUES_MAX: usize = 64;

/// What is known of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct Fact {
    pub datatype: Option<DataType>,
    /// `None` where not even the rank is known.
    pub dims: Option<Vec<Dim>>,
    /// Elements of a small whole-number tensor of rank 0 or 1.
    pub value: Option<Vec<Dim>>,
    /// Elements of a small constant FP32 tensor.
    pub reals: Option<Vec<f32>>,
    pub flow: Flow,
}

/// How a tensor depends on the rows of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// The same whatever the rows hold and however many they are.
    Constant,
    /// Shapes that count the rows, whatever they hold.
    Count,
    /// Along this axis row comes after row, each with as many entries as the next, and an entry depends on its own row
    /// alone.
    Rows(usize),
    /// Anything else.
    Mixed(Mixing),
}

/// Where the rows were mixed, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mixing {
    pub origin: Origin,
    pub cause: &'static str,
}

/// Where a mixed tensor comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// An operator mixes the rows.
    Node(NodeId),
    /// The tensor comes from outside, and not by rows.
    Tensor(TensorId),
}

impl Fact {
    /// Nothing is known but how it depends on rows.
    pub(crate) fn opaque(flow: Flow) -> Self {
        Self { datatype: None, dims: None, value: None, reals: None, flow }
    }

    /// A tensor of the file.
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

    /// The axis of the rows.
    pub(crate) fn rows(&self) -> Option<usize> {
        match self.flow {
            Flow::Rows(axis) => Some(axis),
            Flow::Constant | Flow::Count | Flow::Mixed(_) => None,
        }
    }

    /// The elements, where all are plain numbers.
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
