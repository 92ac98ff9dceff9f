//! Tables for the terminal.
//!
//! A table that has to fit a terminal wraps its columns of text. If that is not enough, it is printed in blocks below
//! each other, each with a part of the columns. Nothing is cut off, and the cells of other columns stay on one line.

mod blocks;
mod wrap;

use std::{
    fmt::{self, Display},
    os::fd::AsFd,
};

use rustix::termios::tcgetwinsize;

use self::{
    blocks::Block,
    wrap::{columns_of, wrapped},
};

/// Columns of a terminal that each column of a table takes beside its cells, and those at the end of a line.
const FRAME: usize = 3;
const LAST_FRAME: usize = 1;

/// A table with a frame, whose columns are as wide as their widest cell.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// The titles, then the rows.
    rows: Vec<Vec<String>>,
    /// Whether the cells of a column may be wrapped.
    is_text: Vec<bool>,
    /// How many columns identify a row.
    keys: usize,
}

impl Table {
    /// Creates a table with these column titles and no rows. Its first column identifies a row.
    pub(super) fn new(titles: &[&str]) -> Self {
        Self {
            rows: vec![titles.iter().map(|&title| title.to_owned()).collect()],
            is_text: vec![false; titles.len()],
            keys: 1,
        }
    }

    /// Declares columns whose cells may be wrapped.
    pub(super) fn with_text(mut self, titles: &[&str]) -> Self {
        for (is_text, title) in self.is_text.iter_mut().zip(&self.rows[0]) {
            *is_text |= titles.contains(&title.as_str());
        }
        self
    }

    /// Declares that the first `keys` columns identify a row. Every block of the table repeats those of them that
    /// differ between rows.
    pub(super) fn with_keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    /// Adds a row. Line breaks become spaces.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let on_one_line = |cell: String| cell.split_whitespace().collect::<Vec<_>>().join(" ");
        self.rows.push(cells.into_iter().map(on_one_line).collect());
    }

    /// Returns the table's text with lines of at most `width` columns, if its figures allow it.
    pub(super) fn within(&self, width: Option<usize>) -> String {
        let blocks: Vec<String> = self.blocks(width).iter().map(|block| self.block(block)).collect();
        blocks.join("\n")
    }

    fn block(&self, Block(columns): &Block) -> String {
        let line = |cells: &mut dyn Iterator<Item = String>| cells.collect::<String>();
        let rule = line(&mut columns.iter().map(|(_, width)| format!("+{}", "-".repeat(width + 2)))) + "+";

        let mut lines = vec![rule.clone()];
        for (index, row) in self.rows.iter().enumerate() {
            let cells: Vec<(Vec<String>, usize)> = columns
                .iter()
                .map(|&(column, width)| (wrapped(row.get(column).map_or("", String::as_str), width), width))
                .collect();
            let height = cells.iter().map(|(parts, _)| parts.len()).max().unwrap_or(0);
            for number in 0..height {
                let cell = |(parts, width): &(Vec<String>, usize)| {
                    let part = parts.get(number).map_or("", String::as_str);
                    format!("| {part}{} ", " ".repeat(width.saturating_sub(columns_of(part))))
                };
                lines.push(line(&mut cells.iter().map(cell)) + "|");
            }
            if index == 0 {
                lines.push(rule.clone());
            }
        }
        lines.push(rule);
        lines.join("\n")
    }
}

impl Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.within(None))
    }
}

/// Returns how many columns a line of this output has; `None` if the output is no terminal.
pub(super) fn terminal_width(output: impl AsFd) -> Option<usize> {
    tcgetwinsize(output).ok().map(|size| usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

#[cfg(test)]
mod tests;
