//! A response whose rows were made by several tasks: its pieces, and their assembly.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use paternoster_model::{Dims, ModelSpec, TensorSpec, element_count};

use super::{OutputTensor, Response, strings::Elements};

/// Rows of one output of a request.
pub(super) struct Piece {
    /// Index of the model's output.
    pub(super) output: usize,
    /// Rows within the request.
    pub(super) rows: Range<u32>,
    pub(super) tensor: OutputTensor,
}

/// Assembles the response of a request with `rows` rows. If pieces overlap, the later one counts. An output that
/// consists of one piece is shared; others are copied once. Outputs for which `is_placed` holds are in a card's memory:
/// their pieces, and the outputs made of them, have no elements.
///
/// # Errors
/// If a row of an output is missing, or if rows of one output have different shapes.
pub(super) fn assemble(
    spec: &ModelSpec,
    rows: u32,
    pieces: &[Piece],
    is_placed: impl Fn(usize) -> bool,
) -> Result<Response, String> {
    let outputs = spec.outputs.iter().enumerate();
    let outputs = outputs.map(|(number, output)| {
        let own: Vec<&Piece> = pieces.iter().filter(|piece| piece.output == number).collect();
        join(output, rows, &own, is_placed(number))
            .map_err(|fault| format!("output '{}' of model '{}' {fault}", output.name, spec.name))
    });
    Ok(Response { outputs: outputs.collect::<Result<_, String>>()? })
}

fn join(output: &TensorSpec, rows: u32, pieces: &[&Piece], is_placed: bool) -> Result<OutputTensor, String> {
    if let Some(last) = pieces.last()
        && last.rows == (0..rows)
    {
        return Ok(last.tensor.clone());
    }
    // For each row, the latest piece that contains it.
    let mut latest: Vec<Option<&Piece>> = vec![None; rows as usize];
    for piece in pieces {
        let (start, end) = (piece.rows.start as usize, piece.rows.end as usize);
        latest.get_mut(start..end).ok_or("has rows that its request has not")?.fill(Some(piece));
    }
    let mut row_dims: Option<&[i64]> = None;
    let mut data = BytesMut::new();
    let mut row = 0;
    while row < rows {
        let piece = latest[row as usize].ok_or_else(|| format!("has no row {row}"))?;
        let same = |other: &&Option<&Piece>| other.is_some_and(|other| std::ptr::eq(other, piece));
        let run = latest[row as usize..].iter().take_while(same).count() as u32;
        let (_, dims) = piece.tensor.shape.split_first().ok_or("has no batch axis")?;
        if let Some(before) = row_dims
            && before != dims
        {
            return Err(format!("has rows of the dims {before:?} and of {dims:?}"));
        }
        row_dims = Some(dims);
        let first = row - piece.rows.start;
        if !is_placed {
            let part = rows_of(output, piece, first..first + run).ok_or("holds fewer elements than its shape says")?;
            data.extend_from_slice(&part);
        }
        row += run;
    }
    let mut shape = Dims::from_slice(&[i64::from(rows)]);
    shape.extend_from_slice(row_dims.unwrap_or_default());
    Ok(OutputTensor { shape, data: data.freeze() })
}

/// Returns rows of a piece, counted within the piece.
fn rows_of(output: &TensorSpec, piece: &Piece, rows: Range<u32>) -> Option<Bytes> {
    let data = &piece.tensor.data;
    let elements = element_count(piece.tensor.shape.get(1..)?)?;
    let (from, to) = match output.datatype.size_bytes() {
        Some(size) => (rows.start as usize * elements * size, rows.end as usize * elements * size),
        None => {
            let from = strings_bytes(data, rows.start as usize * elements)?;
            (from, strings_bytes(data, rows.end as usize * elements)?)
        }
    };
    (from <= to && to <= data.len()).then(|| data.slice(from..to))
}

/// Returns the length in bytes of the first `count` length-prefixed elements.
fn strings_bytes(data: &[u8], count: usize) -> Option<usize> {
    let mut elements_left = Elements { rest: data };
    if count > 0 {
        elements_left.nth(count - 1)?;
    }
    Some(data.len() - elements_left.rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use paternoster_model::DataType;

    fn model(datatype: DataType) -> ModelSpec {
        ModelSpec {
            name: "m".to_owned(),
            version: 1,
            max_batch_size: 8,
            inputs: vec![],
            outputs: vec![TensorSpec::new("y", datatype, &[-1])],
            symbols: vec![],
            decoupled: false,
        }
    }

    fn piece(rows: Range<u32>, row_dims: &[i64], data: &[u8]) -> Piece {
        let mut shape = Dims::from_slice(&[i64::from(rows.end - rows.start)]);
        shape.extend_from_slice(row_dims);
        Piece { output: 0, rows, tensor: OutputTensor { shape, data: Bytes::copy_from_slice(data) } }
    }

    fn reply(rows: u32, pieces: &[Piece]) -> Result<OutputTensor, String> {
        assemble(&model(DataType::Uint8), rows, pieces, |_| false).map(|mut response| response.outputs.remove(0))
    }

    #[test]
    fn a_piece_that_is_the_whole_is_shared() {
        let whole = piece(0..2, &[2], &[1, 2, 3, 4]);
        let output = reply(2, std::slice::from_ref(&whole)).expect("all rows are there");
        assert_eq!(output.data.as_ptr(), whole.tensor.data.as_ptr(), "no copy was made");
    }

    #[test]
    fn rows_come_in_the_requests_order_whatever_ended_first() {
        let pieces = [piece(2..3, &[2], &[5, 6]), piece(0..2, &[2], &[1, 2, 3, 4])];
        let output = reply(3, &pieces).expect("all rows are there");
        assert_eq!(output.shape.as_slice(), [3, 2]);
        assert_eq!(&output.data[..], [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn rows_that_lie_elsewhere_are_counted_alone() {
        let pieces = [piece(2..3, &[2], &[]), piece(0..2, &[2], &[])];
        let placed = |pieces| assemble(&model(DataType::Uint8), 3, pieces, |output| output == 0);
        let response = placed(&pieces).expect("all rows are there");
        assert_eq!((response.outputs[0].shape.as_slice(), response.outputs[0].data.len()), (&[3, 2][..], 0));
        assert!(placed(&pieces[..1]).is_err_and(|error| error.contains("has no row 0")));
    }

    #[test]
    fn a_row_that_was_made_twice_is_the_later_one() {
        let pieces = [piece(0..3, &[1], &[1, 2, 3]), piece(1..2, &[1], &[9])];
        assert_eq!(&reply(3, &pieces).expect("all rows are there").data[..], [1, 9, 3]);
    }

    #[test]
    fn a_missing_row_is_named() {
        let error = reply(3, &[piece(0..1, &[1], &[1]), piece(2..3, &[1], &[3])]).expect_err("row 1 is missing");
        assert_eq!(error, "output 'y' of model 'm' has no row 1");
    }

    #[test]
    fn rows_of_different_shapes_are_no_tensor() {
        let error = reply(2, &[piece(0..1, &[1], &[1]), piece(1..2, &[2], &[2, 3])]).expect_err("they differ");
        assert_eq!(error, "output 'y' of model 'm' has rows of the dims [1] and of [2]");
    }

    #[test]
    fn strings_are_put_together_row_by_row() {
        let later = piece(1..2, &[1], &[1, 0, 0, 0, b'z']);
        let early = piece(0..3, &[1], &[0, 0, 0, 0, 2, 0, 0, 0, b'a', b'b', 1, 0, 0, 0, b'c']);
        let response = assemble(&model(DataType::Bytes), 3, &[early, later], |_| false).expect("all rows are there");
        assert_eq!(&response.outputs[0].data[..], [0, 0, 0, 0, 1, 0, 0, 0, b'z', 1, 0, 0, 0, b'c']);
    }
}
