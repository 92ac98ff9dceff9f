//! Compares the configuration with the graph: names, datatypes, shapes.

use super::tensors::tensors;
use crate::{
    onnx::{Port, PortDim, Signature},
    repository::config::{
        ConfigError, Origin, complete::leads_with_batch, convert, nearest::suggestion, pb, sequences,
    },
};

pub(super) fn check(config: &pb::ModelConfig, signature: &Signature, origin: &Origin) -> Result<(), ConfigError> {
    for tensor in tensors(config) {
        let port = find(&tensor.ports(signature), tensor.name, tensor.what, &tensor.path, origin)?;
        fits(config, port, tensor.data_type, tensor.shape(), &tensor.path, origin)?;
        // To ONNX Runtime, and so to Triton, an input without a shape is a scalar, unless it has a batch axis.
        let is_scalar = tensor.what == "input" && port.dims.is_none() && config.max_batch_size == 0;
        if is_scalar && tensor.shape().iter().any(|dim| *dim != 1) {
            let message = format!(
                "the graph gives '{}' no shape, so that it is a scalar tensor: expected dims of 1, but the \
                 configuration has {:?}",
                tensor.name,
                tensor.shape()
            );
            return Err(origin.error(&format!("{}.dims", tensor.path), message));
        }
        let is_needed = tensor.optional && signature.inputs.contains(port);
        let message =
            format!("the graph needs '{}': it has no initializer of this name to use in its place", tensor.name);
        origin.refuse_if(is_needed, &format!("{}.optional", tensor.path), message)?;
    }
    let known = |name: &str| {
        config.input.iter().any(|input| input.name == name) || sequences::inputs(config).any(|own| own == name)
    };
    match signature.inputs.iter().find(|port| !known(&port.name)) {
        Some(missing) => {
            Err(origin.error("input", format!("the graph has an input '{}' that is not listed", missing.name)))
        }
        None => Ok(()),
    }
}

pub(super) fn find<'s>(
    ports: &[&'s Port],
    name: &str,
    what: &str,
    path: &str,
    origin: &Origin,
) -> Result<&'s Port, ConfigError> {
    ports.iter().copied().find(|port| port.name == name).ok_or_else(|| {
        let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
        let hint = suggestion(name, names.iter().copied());
        let message = format!("the graph has no {what} '{name}', only {}{hint}", names.join(", "));
        origin.error(&format!("{path}.name"), message)
    })
}

pub(super) fn fits(
    config: &pb::ModelConfig,
    port: &Port,
    data_type: i32,
    shape: &[i64],
    path: &str,
    origin: &Origin,
) -> Result<(), ConfigError> {
    let name = &port.name;
    let given = convert::datatype(data_type);
    let Some(expected) = port.datatype else {
        return Err(origin.error(&format!("{path}.data_type"), port.refusal()));
    };
    if given != Some(expected) {
        let found = given.map_or("none", |datatype| datatype.as_str());
        let message = format!("the graph has the datatype {expected} for '{name}', but the configuration {found}");
        return Err(origin.error(&format!("{path}.data_type"), message));
    }
    let Some(dims) = &port.dims else { return Ok(()) };
    let batched = config.max_batch_size > 0;
    let sizes: Vec<i64> = dims.iter().map(PortDim::size).collect();
    // As in Triton, a scalar is one dimension of size 1 on the wire.
    let is_scalar = convert::is_scalar(config, port);
    if batched && !leads_with_batch(dims) && !is_scalar {
        let message = format!(
            "the first dimension of '{name}' is no batch: the graph has the shape {sizes:?}, but max_batch_size is {}",
            config.max_batch_size
        );
        return Err(origin.error("max_batch_size", message));
    }
    let graph = sizes.get(usize::from(batched)..).unwrap_or_default();
    let expected = if is_scalar { &[1] } else { graph };
    let same = expected.len() == shape.len()
        && expected.iter().zip(shape).all(|(expected, given)| *expected == -1 || expected == given);
    if !same {
        let batch = if batched { " behind the batch dimension" } else { "" };
        let scalar = if is_scalar { ": expected [1] for a scalar" } else { "" };
        let message =
            format!("the graph has the shape {graph:?}{batch} for '{name}', but the configuration {shape:?}{scalar}");
        return Err(origin.error(&format!("{path}.dims"), message));
    }
    Ok(())
}
