//! Converts the outputs of a stage to pieces of its requests' responses, and determines which rows leave the stages
//! early.

use paternoster_engine::BatchOutput;
use paternoster_model::{CellId, ExitTo, Lengths, ModelSpec, Next, RowOutcome};

use super::{
    gather::Part,
    pieces::Piece,
    scatter::{BatchLengths, scatter_output},
    stages::{Stages, fault_of},
};

/// A task of a stage that has run.
pub(super) struct RanStage<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) stages: &'a Stages,
    pub(super) number: usize,
    pub(super) parts: &'a [Part<'a>],
    pub(super) lengths: BatchLengths<'a>,
}

/// For each row, the exit that it takes.
pub(super) type Taken = Vec<Option<usize>>;

/// Consecutive rows of one part that take the same exit.
struct Fate {
    part: usize,
    /// First row within the part's request.
    start: u32,
    count: u32,
    /// The exit that they take.
    exit: Option<usize>,
}

impl RanStage<'_> {
    /// Returns, for each row, the first exit whose threshold its value reaches. `values` returns an output's data.
    ///
    /// # Errors
    /// If an output that decides does not hold one FP32 per row.
    pub(super) fn exits_taken<'v>(&self, values: impl Fn(usize) -> Option<&'v [u8]>) -> Result<Taken, String> {
        let stage = &self.stages.stages[self.number];
        let rows: usize = self.parts.iter().map(|part| part.count as usize).sum();
        let mut taken = vec![None; rows];
        for (number, exit) in stage.exits.iter().enumerate() {
            let data = values(exit.value).unwrap_or_default();
            let (values, rest) = data.as_chunks::<4>();
            if values.len() != rows || !rest.is_empty() {
                let name = &stage.outputs[exit.value].tensor.name;
                let fault = format!("decides over {rows} rows with {} bytes, expected one FP32 a row", data.len());
                return Err(fault_of(self.spec, self.number, &format!("output '{name}'"), &fault));
            }
            for (taken, value) in taken.iter_mut().zip(values) {
                if taken.is_none() && f32::from_le_bytes(*value) >= exit.at_least {
                    *taken = Some(number);
                }
            }
        }
        Ok(taken)
    }

    /// Returns the outcomes of the rows: that of the exit taken, or else the row's own.
    pub(super) fn outcomes(&self, taken: &[Option<usize>], own: Vec<RowOutcome>) -> Vec<RowOutcome> {
        let exits = &self.stages.stages[self.number].exits;
        if exits.is_empty() {
            return own;
        }
        let outcomes = taken.iter().enumerate().map(|(row, exit)| {
            let own = own.get(row).copied().unwrap_or(RowOutcome { next: Next::On, emitted: false });
            match exit.map(|exit| &exits[exit].to) {
                Some(to) if own.next == Next::On => RowOutcome { next: next(to), ..own },
                _ => own,
            }
        });
        outcomes.collect()
    }

    /// Returns the pieces of the responses, each with its part's number.
    ///
    /// # Errors
    /// If an output does not match the specification.
    pub(super) fn pieces(
        &self,
        taken: &[Option<usize>],
        outputs: &[BatchOutput],
    ) -> Result<Vec<(usize, Piece)>, String> {
        let stage = &self.stages.stages[self.number];
        let mut pieces = Vec::new();
        for (output, made) in stage.outputs.iter().zip(outputs) {
            for &reply in &output.replies {
                let spec = &self.spec.outputs[reply];
                scatter_output(self.spec, spec, self.parts, self.lengths, made, |part, tensor| {
                    let start = self.parts[part].start;
                    let rows = start..start + self.parts[part].count;
                    pieces.push((part, Piece { output: reply, rows, tensor }));
                })?;
            }
        }
        if !stage.exits.is_empty() {
            self.pieces_by_exit(&self.fates(taken), outputs, &mut pieces)?;
        }
        Ok(pieces)
    }

    /// Cuts the parts where neighbouring rows take different exits.
    fn fates(&self, taken: &[Option<usize>]) -> Vec<Fate> {
        let mut fates: Vec<Fate> = Vec::new();
        let rows = self.parts.iter().enumerate().flat_map(|(part, rows)| (0..rows.count).map(move |row| (part, row)));
        for ((part, row), &exit) in rows.zip(taken) {
            match fates.last_mut() {
                Some(last) if last.part == part && last.exit == exit => last.count += 1,
                _ => fates.push(Fate { part, start: self.parts[part].start + row, count: 1, exit }),
            }
        }
        fates
    }

    /// Adds the outputs of rows that take an exit, as named by the exit.
    fn pieces_by_exit(
        &self,
        fates: &[Fate],
        outputs: &[BatchOutput],
        pieces: &mut Vec<(usize, Piece)>,
    ) -> Result<(), String> {
        let part_of = |fate: &Fate| Part { start: fate.start, count: fate.count, ..self.parts[fate.part] };
        let parts: Vec<Part<'_>> = fates.iter().map(part_of).collect();
        let own: Vec<&Lengths> = fates.iter().map(|fate| self.lengths.own[fate.part]).collect();
        let lengths = BatchLengths { own: &own, ..self.lengths };
        for (number, exit) in self.stages.stages[self.number].exits.iter().enumerate() {
            let ExitTo::Done(answers) = &exit.to else { continue };
            if fates.iter().all(|fate| fate.exit != Some(number)) {
                continue;
            }
            for (reply, answer) in answers.iter().enumerate() {
                let Some(made) = answer.and_then(|answer| outputs.get(answer)) else { continue };
                scatter_output(self.spec, &self.spec.outputs[reply], &parts, lengths, made, |fate, tensor| {
                    let Fate { part, start, count, exit } = fates[fate];
                    if exit == Some(number) {
                        pieces.push((part, Piece { output: reply, rows: start..start + count, tensor }));
                    }
                })?;
            }
        }
        Ok(())
    }
}

fn next(to: &ExitTo) -> Next {
    match to {
        ExitTo::Done(_) => Next::Done,
        ExitTo::Stage(stage) => Next::Skip(CellId(*stage)),
    }
}
