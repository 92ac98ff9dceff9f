//! Where the tensors of a stateful program have the batch.

use std::collections::BTreeMap;

use super::batching;
use crate::{
    engine::TensorBatch,
    model::Dims,
    onnx::{Port, PortDim, Signature},
    repository::config::{convert::is_scalar, pb, unfold::CellTensor},
};

/// Returns the tensors of the program whose rows or dims are not as usual, by name. Without a batch axis these are all.
pub fn tensors(config: &pb::ModelConfig, signature: &Signature) -> BTreeMap<String, CellTensor> {
    let batched = config.max_batch_size > 0;
    let ports = signature.all_inputs().chain(&signature.outputs);
    let without_batch = ports.filter(|port| !batched || is_scalar(config, port));
    let tensor = |port: &Port| (port.name.clone(), CellTensor { batch: TensorBatch::None, dims: None });
    let mut tensors: BTreeMap<String, CellTensor> = without_batch.map(tensor).collect();
    for state in batching(config).iter().flat_map(|batching| &batching.state) {
        let input = signature.all_inputs().find(|port| port.name == state.input_name);
        let axis = input.and_then(|port| state_axis(port, &state.dims)).unwrap_or(0);
        let batch = if batched { TensorBatch::Axis(axis) } else { TensorBatch::None };
        for name in [&state.input_name, &state.output_name] {
            let batch = tensors.get(name).map_or(batch, |tensor| tensor.batch);
            let dims = Some(Dims::from_slice(&state.dims));
            tensors.insert(name.clone(), CellTensor { batch, dims });
        }
    }
    tensors
}

/// Returns the axis along which a state has the batch: one that varies, and without which the graph has the dims of the
/// configuration. Axis 0 comes before others. `None` if there is no such axis.
pub fn state_axis(port: &Port, dims: &[i64]) -> Option<usize> {
    let graph = port.dims.as_ref()?;
    let fits = |axis: &usize| {
        let row = graph.iter().enumerate().filter(|(own, _)| own != axis).map(|(_, dim)| dim.size());
        graph[*axis].size() == -1
            && graph.len() == dims.len() + 1
            && row.zip(dims).all(|(graph, given)| graph == -1 || graph == *given)
    };
    (0..graph.len()).find(fits)
}

/// Returns a port with an axis before all others.
pub fn with_first(port: &Port, axis: usize) -> Port {
    let mut port = port.clone();
    if let Some(axes) = port.dims.as_mut().and_then(|dims: &mut Vec<PortDim>| dims.get_mut(..=axis)) {
        axes.rotate_right(1);
    }
    port
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DataType;

    fn port(name: &str, dims: &[i64]) -> Port {
        let dims = dims.iter().map(|&dim| if dim < 0 { PortDim::Unknown } else { PortDim::Fixed(dim) });
        Port::tensor(name, DataType::Fp32, &dims.collect::<Vec<_>>())
    }

    #[test]
    fn the_batch_is_the_axis_beside_which_the_dims_agree() {
        let axis = |graph: &[i64], dims: &[i64]| state_axis(&port("s", graph), dims);
        assert_eq!(axis(&[-1, 2, 128], &[2, 128]), Some(0));
        assert_eq!(axis(&[2, -1, 128], &[2, 128]), Some(1));
        assert_eq!(axis(&[2, 128, -1], &[2, 128]), Some(2));
        assert_eq!(axis(&[-1, -1, -1], &[2, 128]), Some(0), "axis 0 where several could be");
        assert_eq!(axis(&[2, -1, 128], &[3, 128]), None);
        assert_eq!(axis(&[2, 1, 128], &[2, 128]), None, "no axis varies");
        assert_eq!(axis(&[2, -1], &[2, 128]), None);
        assert_eq!(with_first(&port("s", &[2, -1, 128]), 1), port("s", &[-1, 2, 128]));
        assert_eq!(state_axis(&Port { dims: None, ..port("s", &[]) }, &[2]), None);
    }
}
