//! The source of an input's elements: a raw entry, typed contents or shared memory.

use std::vec;

use bytes::Bytes;
use paternoster_executor::CardPorts;
use paternoster_model::DataType;

use super::{
    super::{SharedMemory, fault::InputFault, pb::InferTensorContents, shared_memory::Allowance},
    on_card::Staying,
    parameters::{self, Parameters},
    strings, typed,
};

/// The payloads of one request, taken input by input.
#[derive(Debug)]
pub(super) struct Source<'a> {
    /// The remaining raw entries. They belong, in order, to the inputs that use no shared memory. As in Triton, surplus
    /// entries are not an error.
    raw: vec::IntoIter<Bytes>,
    any_raw: bool,
    regions: &'a SharedMemory,
    /// How much the request may still read from them.
    allowance: Allowance,
    /// What it need not read, since it stays on a card.
    staying: Staying<'a>,
}

impl<'a> Source<'a> {
    pub(super) fn new(raw: Vec<Bytes>, regions: &'a SharedMemory, ports: &'a CardPorts) -> Self {
        let (any_raw, allowance) = (!raw.is_empty(), regions.allowance());
        Self { any_raw, raw: raw.into_iter(), regions, allowance, staying: Staying::new(ports) }
    }

    /// Returns the tensors that stay on a card.
    pub(super) fn into_staying(self) -> Staying<'a> {
        self.staying
    }

    /// Returns the elements of the next input, which has this number, in wire form, after checking that there are
    /// `elements` of `datatype`. Returns none if they stay on a card.
    pub(super) fn take(
        &mut self,
        number: usize,
        parameters: &Parameters,
        contents: Option<InferTensorContents>,
        datatype: DataType,
        elements: usize,
    ) -> Result<Bytes, InputFault> {
        let region = if parameters.is_empty() { None } else { parameters::region(parameters, self.regions)? };
        match (region, contents) {
            (Some(_), Some(_)) => Err(InputFault::ContentsBesideRegion),
            (Some(region), None) => {
                if let Some(size) = datatype.size_bytes() {
                    check_size(region.size_bytes(), size, elements)?;
                }
                if elements > 0 && self.staying.keep_input(number, &region) {
                    return Ok(Bytes::new());
                }
                let data = region.read(&mut self.allowance)?;
                check(&data, datatype, elements)?;
                Ok(data)
            }
            (None, Some(_)) if self.any_raw => Err(InputFault::ContentsBesideRaw),
            (None, Some(contents)) => typed::into_raw(contents, datatype, elements),
            (None, None) => {
                let data = self.raw.next().ok_or(InputFault::NoData)?;
                check(&data, datatype, elements)?;
                Ok(data)
            }
        }
    }
}

fn check(data: &Bytes, datatype: DataType, elements: usize) -> Result<(), InputFault> {
    match datatype.size_bytes() {
        Some(size) => check_size(data.len() as u64, size, elements),
        None => strings::check(data, elements),
    }
}

fn check_size(got: u64, element_bytes: usize, elements: usize) -> Result<(), InputFault> {
    let expected = elements.saturating_mul(element_bytes);
    if got == expected as u64 { Ok(()) } else { Err(InputFault::ByteSize { expected, got }) }
}
