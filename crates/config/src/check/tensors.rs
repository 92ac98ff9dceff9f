//! Checks inputs and outputs by themselves and against the graph: names, datatypes, dims, reshapes, padding.

use std::collections::BTreeSet;

use paternoster_model::DataType;
use paternoster_onnx::{Port, PortDim, Signature};

use crate::{
    ConfigError, Origin,
    complete::leads_with_batch,
    model_config::{self, Tensor, tensors},
    nearest::suggestion,
    pb, sequences,
    settings::{Pad, Settings},
};

pub(super) fn check(
    config: &pb::ModelConfig,
    signature: Option<&Signature>,
    origin: &Origin,
) -> Result<(), ConfigError> {
    if config.input.is_empty() {
        return Err(origin.error("input", "the model has no inputs, and none could be completed"));
    }
    if config.output.is_empty() {
        return Err(origin.error("output", "the model has no outputs, and none could be completed"));
    }
    let mut names = BTreeSet::new();
    for tensor in tensors(config) {
        let Tensor { path, what, name, .. } = &tensor;
        if name.is_empty() {
            return Err(origin.error(&format!("{path}.name"), format!("expected a name for this {what}")));
        }
        if !names.insert((*what, *name)) {
            return Err(origin.error(&format!("{path}.name"), format!("the {what} '{name}' is given twice")));
        }
        if model_config::datatype(tensor.data_type).is_none() {
            return Err(origin.error(&format!("{path}.data_type"), format!("expected a data_type for '{name}'")));
        }
        if tensor.dims.is_empty() {
            return Err(origin.error(&format!("{path}.dims"), format!("expected dims for '{name}'")));
        }
        // A tensor that has no element in the graph either is served with none.
        let port = signature.and_then(|signature| tensor.ports(signature).into_iter().find(|port| port.name == *name));
        let is_empty = port.and_then(|port| port.dims.as_ref()).is_some_and(|dims| dims.contains(&PortDim::Fixed(0)));
        let dims: Vec<i64> = tensor.dims.iter().copied().filter(|dim| *dim != 0 || !is_empty).collect();
        sizes(origin, &format!("{path}.dims"), name, &dims)?;
        if let Some(reshape) = tensor.reshape {
            reshaped(config, origin, &tensor, reshape)?;
        }
    }
    Ok(())
}

fn sizes(origin: &Origin, path: &str, name: &str, dims: &[i64]) -> Result<(), ConfigError> {
    match dims.iter().find(|dim| **dim == 0 || **dim < -1) {
        Some(bad) => Err(origin.error(path, format!("expected sizes above 0, or -1, for '{name}', but found {bad}"))),
        None => Ok(()),
    }
}

fn reshaped(
    config: &pb::ModelConfig,
    origin: &Origin,
    tensor: &Tensor<'_>,
    reshape: &[i64],
) -> Result<(), ConfigError> {
    let path = format!("{}.reshape", tensor.path);
    sizes(origin, &path, tensor.name, reshape)?;
    if reshape.is_empty() && config.max_batch_size == 0 {
        let message = format!(
            "'{}' cannot lose all its dims without a batch dimension: a scalar has dims [1] and no reshape",
            tensor.name
        );
        return Err(origin.error(&path, message));
    }
    if segments(tensor.dims) != segments(reshape) {
        let message =
            format!("expected as many elements as dims {:?} of '{}', but found {reshape:?}", tensor.dims, tensor.name);
        return Err(origin.error(&path, message));
    }
    Ok(())
}

/// Returns the element counts between the variable dims. They are equal for two shapes that always have the same number
/// of elements. A product that overflows is `None`.
fn segments(dims: &[i64]) -> Vec<Option<i64>> {
    let products = dims.split(|dim| *dim == -1);
    products.map(|fixed| fixed.iter().try_fold(1_i64, |product, dim| product.checked_mul(*dim))).collect()
}

/// Checks the padding. Axes must have their names, from the configuration or from the graph.
pub(super) fn padding(settings: &Settings, origin: &Origin) -> Result<(), ConfigError> {
    let config = &settings.config;
    let mut padded = BTreeSet::new();
    for tensor in tensors(config) {
        axes_fit(settings, origin, &tensor)?;
        if let Some(pad) = pad_of(settings, &tensor) {
            pad_fits(settings, origin, &tensor, pad)?;
            padded.extend(&pad.symbols);
        }
    }
    if padded.is_empty() {
        return Ok(());
    }
    for tensor in tensors(config) {
        let Tensor { path, what, name, .. } = &tensor;
        let axes = axes_of(settings, &tensor);
        let own = pad_of(settings, &tensor).map(|pad| pad.symbols.as_slice()).unwrap_or_default();
        let shared = axes.iter().flatten().find(|axis| padded.contains(*axis) && !own.contains(axis));
        let mut is_cut = shared.is_some();
        for axis in axes.iter().flatten().filter(|axis| !padded.contains(*axis)) {
            let length = settings.own.axis_length(axis).map_err(|fault| {
                let message =
                    format!("the axis '{axis}' of '{name}' is no length that follows from padded axes: {fault}");
                origin.error(path, message)
            })?;
            if length.is_some() && *what == "input" {
                let message =
                    format!("the axis '{axis}' of the input '{name}' follows from padded axes: expected a pad");
                return Err(origin.error(path, message));
            }
            is_cut |= length.is_some();
        }
        if let (Some(axis), "input") = (shared, *what) {
            let message = format!("the axis '{axis}' is padded in other inputs: '{name}' needs a pad for it too");
            return Err(origin.error(path, message));
        }
        if is_cut && tensor.reshape.is_some() {
            return Err(origin.error(path, format!("'{name}' is cut back on a padded axis and cannot be reshaped")));
        }
        let unnamed = tensor
            .dims
            .iter()
            .enumerate()
            .find(|(axis, dim)| **dim == -1 && axes.get(*axis).is_none_or(Option::is_none));
        if let (Some((axis, _)), "output", Some(symbol)) = (unnamed, *what, padded.first()) {
            let message = format!(
                "dimension {axis} of '{name}' varies and does not follow from the inputs, as far as is known, so it is \
                 not known whether padding must be cut off: name it in dims of model.yaml or in the parameter \
                 'axes.{name}', as its length follows from padded axes, such as '({symbol} + 1)//2', or in another way \
                 if it must not be cut"
            );
            return Err(origin.error(path, message));
        }
    }
    Ok(())
}

fn axes_of<'s>(settings: &'s Settings, tensor: &Tensor<'_>) -> &'s [Option<String>] {
    settings.own.axes.get(tensor.name).map(|axes| axes.0.0.as_slice()).unwrap_or_default()
}

fn pad_of<'s>(settings: &'s Settings, tensor: &Tensor<'_>) -> Option<&'s Pad> {
    settings.own.pad.get(tensor.name).map(|pad| &pad.0).filter(|_| tensor.what == "input")
}

fn axes_fit(settings: &Settings, origin: &Origin, tensor: &Tensor<'_>) -> Result<(), ConfigError> {
    let axes = axes_of(settings, tensor);
    if axes.is_empty() {
        return Ok(());
    }
    let path = format!("axes.{}", tensor.name);
    let dims = tensor.dims;
    if axes.len() != dims.len() {
        let message =
            format!("expected {} names for dims {dims:?} of '{}', but found {}", dims.len(), tensor.name, axes.len());
        return Err(origin.error(&path, message));
    }
    let fixed = axes.iter().zip(dims).find(|(axis, dim)| axis.is_some() && **dim != -1);
    if let Some((Some(axis), dim)) = fixed {
        return Err(origin.error(&path, format!("the axis '{axis}' of '{}' has the fixed size {dim}", tensor.name)));
    }
    // An output is cut back on each of its axes by itself.
    let mut seen = BTreeSet::new();
    match axes.iter().flatten().find(|axis| tensor.what == "input" && !seen.insert(axis.as_str())) {
        Some(axis) => Err(origin.error(&path, format!("'{}' has two axes named '{axis}'", tensor.name))),
        None => Ok(()),
    }
}

fn pad_fits(settings: &Settings, origin: &Origin, tensor: &Tensor<'_>, pad: &Pad) -> Result<(), ConfigError> {
    let refuse = |message: String| Err(origin.error(&format!("pad.{}", tensor.name), message));
    let axes = axes_of(settings, tensor);
    if let Some(missing) = pad.symbols.iter().find(|symbol| !axes.iter().flatten().any(|axis| axis == *symbol)) {
        let names: Vec<&str> = axes.iter().flatten().map(String::as_str).collect();
        let known =
            if names.is_empty() { "no axis with a name".to_owned() } else { format!("only {}", names.join(", ")) };
        return refuse(format!("'{}' has no axis '{missing}'; it has {known}", tensor.name));
    }
    if settings.config.max_batch_size == 0 {
        return refuse(format!("'{}' is padded, but max_batch_size is 0: requests never share a batch", tensor.name));
    }
    if tensor.reshape.is_some() {
        return refuse(format!("'{}' is padded and cannot be reshaped", tensor.name));
    }
    let Some(datatype) = model_config::datatype(tensor.data_type) else { return Ok(()) };
    if !holds(datatype, pad.value) {
        return refuse(format!("'{}' of type {datatype} cannot be filled with {}", tensor.name, pad.value));
    }
    Ok(())
}

/// Whether a datatype can represent a fill value exactly or, for floats, within its range.
#[allow(clippy::cast_precision_loss)]
fn holds(datatype: DataType, value: f64) -> bool {
    let whole = |low: f64, high: f64| value.fract() == 0.0 && (low..high).contains(&value);
    match datatype {
        DataType::Bool => value == 0.0 || value == 1.0,
        DataType::Uint8 => whole(0.0, 2_f64.powi(8)),
        DataType::Uint16 => whole(0.0, 2_f64.powi(16)),
        DataType::Uint32 => whole(0.0, 2_f64.powi(32)),
        DataType::Uint64 => whole(0.0, 2_f64.powi(64)),
        DataType::Int8 => whole(-2_f64.powi(7), 2_f64.powi(7)),
        DataType::Int16 => whole(-2_f64.powi(15), 2_f64.powi(15)),
        DataType::Int32 => whole(-2_f64.powi(31), 2_f64.powi(31)),
        DataType::Int64 => whole(-2_f64.powi(63), 2_f64.powi(63)),
        DataType::Fp16 => value.is_infinite() || value.abs() <= 65_504.0,
        DataType::Fp32 | DataType::Bf16 => value.is_infinite() || value.abs() <= f64::from(f32::MAX),
        DataType::Fp64 => true,
        DataType::Bytes => false,
    }
}

/// Compares inputs and outputs with the graph.
pub(super) fn matches_graph(
    config: &pb::ModelConfig,
    signature: &Signature,
    origin: &Origin,
) -> Result<(), ConfigError> {
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
    let given = model_config::datatype(data_type);
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
    let is_scalar = model_config::is_scalar(config, port);
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
