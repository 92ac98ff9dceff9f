//! BYTES tensors in wire form, encoded and decoded independently of the code under test.

/// Decodes the elements.
pub(crate) fn split(data: &[u8]) -> Vec<String> {
    let mut rest = data;
    let mut elements = Vec::new();
    while !rest.is_empty() {
        let (indicator, behind) = rest.split_at(4);
        let length = u32::from_le_bytes(indicator.try_into().expect("four bytes")) as usize;
        elements.push(String::from_utf8(behind[..length].to_vec()).expect("text"));
        rest = &behind[length..];
    }
    elements
}

/// Encodes elements.
pub(crate) fn join(elements: &[&[u8]]) -> Vec<u8> {
    let mut joined = Vec::new();
    for element in elements {
        joined.extend((element.len() as u32).to_le_bytes());
        joined.extend_from_slice(element);
    }
    joined
}
