//! Reads a model without the elements of its larger weights: what shape inference needs, however large the file. Memory
//! is bounded, whatever the file claims.

use std::io::{Cursor, Read, Seek};

use super::{
    Model,
    infer::VALUES_MAX,
    pb,
    protobuf::{Body, Fault, Field, Wire},
};

/// Maximum bytes of nodes, inputs, outputs and small weights. Large language models have a few million.
const OUTLINE_MAX_BYTES: u64 = 16 << 20;
/// Weights with more bytes are kept without their elements, which inference does not use.
const WEIGHT_MAX_BYTES: u64 = 10 * VALUES_MAX as u64;

/// Reads the outline of a serialized model; `None` if it is unreadable or too large.
pub(super) fn outline(model: &[u8]) -> Option<Model> {
    outline_of(Cursor::new(model), model.len() as u64)
}

/// Reads the outline of a file of `length` bytes.
pub(super) fn outline_of(source: impl Read + Seek, length: u64) -> Option<Model> {
    let mut wire = Wire::new(source, OUTLINE_MAX_BYTES);
    read_model(&mut wire, length).ok().filter(|model| model.graph.is_some()).map(Model)
}

fn read_model<S: Read + Seek>(wire: &mut Wire<S>, end: u64) -> Result<pb::ModelProto, Fault> {
    let mut model = pb::ModelProto::default();
    while let Some(field) = wire.field(end)? {
        match field {
            Field { number: 7, body: Body::Bytes(end) } => model.graph = Some(read_graph(wire, end)?),
            Field { number: 8, body: Body::Bytes(end) } => model.opset_import.push(wire.message(end)?),
            Field { body: Body::Bytes(end), .. } => wire.skip_to(end)?,
            Field { .. } => {}
        }
    }
    Ok(model)
}

fn read_graph<S: Read + Seek>(wire: &mut Wire<S>, end: u64) -> Result<pb::GraphProto, Fault> {
    let mut graph = pb::GraphProto::default();
    while let Some(field) = wire.field(end)? {
        match field {
            Field { number: 1, body: Body::Bytes(end) } => graph.node.push(wire.message(end)?),
            Field { number: 5, body: Body::Bytes(end) } if end - wire.at() <= WEIGHT_MAX_BYTES => {
                graph.initializer.push(wire.message(end)?);
            }
            Field { number: 5, body: Body::Bytes(end) } => graph.initializer.push(read_weight(wire, end)?),
            Field { number: 11, body: Body::Bytes(end) } => graph.input.push(wire.message(end)?),
            Field { number: 12, body: Body::Bytes(end) } => graph.output.push(wire.message(end)?),
            Field { number: 13, body: Body::Bytes(end) } => graph.value_info.push(wire.message(end)?),
            Field { body: Body::Bytes(end), .. } => wire.skip_to(end)?,
            Field { .. } => {}
        }
    }
    Ok(graph)
}

/// Reads a weight without its elements.
fn read_weight<S: Read + Seek>(wire: &mut Wire<S>, end: u64) -> Result<pb::TensorProto, Fault> {
    let mut weight = pb::TensorProto::default();
    while let Some(field) = wire.field(end)? {
        match field {
            Field { number: 1, body: Body::Varint(length) } => weight.dims.push(length.cast_signed()),
            Field { number: 1, body: Body::Bytes(end) } => weight.dims.extend(wire.numbers(end)?),
            Field { number: 2, body: Body::Varint(elem) } => weight.data_type = i32::try_from(elem).ok(),
            Field { number: 8, body: Body::Bytes(end) } => weight.name = Some(wire.text(end)?),
            Field { body: Body::Bytes(end), .. } => wire.skip_to(end)?,
            Field { .. } => {}
        }
    }
    Ok(weight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        infer::{Inference, infer},
        zoo,
    };

    #[test]
    fn inference_over_an_outline_tells_what_it_tells_over_the_model() {
        let model = zoo::mobilenet(zoo::Width::QUARTER).expect("the graph is sound");
        let bytes = model.to_bytes();
        let outline = outline(&bytes).expect("it is small");
        assert!(outline.to_bytes().len() < bytes.len() / 4, "weights are left out");
        let graph = model.0.graph.as_ref().expect("it has one");
        let names = graph.node.iter().flat_map(|node| &node.output);
        let dims = |inference: &Inference, name: &str| inference.tensor(name).map(|info| info.dims.clone());
        let (whole, outlined) = (infer(&model), infer(&outline));
        for name in names {
            assert_eq!(dims(&whole, name), dims(&outlined, name), "{name}");
        }
    }

    #[test]
    fn what_is_no_model_has_no_outline() {
        let model = zoo::lookup().expect("the graph is sound").to_bytes();
        for length in 0..model.len() {
            outline(&model[..length]);
        }
        assert_eq!(outline(b"garbage"), None);
        assert_eq!(outline(&[]), None);
    }

    #[test]
    fn nodes_that_take_many_times_their_bytes_are_not_kept() {
        let node = [0x0a, 0x00];
        let graph = node.repeat(OUTLINE_MAX_BYTES as usize / 16 + 1);
        let mut model = vec![0x3a];
        prost::encode_length_delimiter(graph.len(), &mut model).expect("a vector grows");
        model.extend_from_slice(&graph);
        assert_eq!(outline(&model), None);
    }
}
