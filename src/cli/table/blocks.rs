//! Which columns of a table stand side by side, and how wide they are.

use super::{FRAME, LAST_FRAME, Table, wrap::columns_of};

/// Width that a column of text keeps, if its cells are as wide as that.
const LEAST_TEXT: usize = 16;

/// Columns that stand side by side: their numbers and their widths.
pub(super) struct Block(pub(super) Vec<(usize, usize)>);

impl Table {
    /// Divides the columns into blocks of at most `width` columns of a terminal.
    pub(super) fn blocks(&self, width: Option<usize>) -> Vec<Block> {
        let all: Vec<usize> = (0..self.rows[0].len()).collect();
        let Some(width) = width else { return vec![self.leveled(&all, usize::MAX)] };
        let (keys, others) = all.split_at(self.keys.min(all.len()));
        let repeated: Vec<usize> = keys.iter().copied().filter(|&key| self.differs(key)).collect();

        let mut blocks = Vec::new();
        let mut block = keys.to_vec();
        for &column in others {
            block.push(column);
            if self.least_width(&block) <= width {
                continue;
            }
            block.pop();
            // A block has at least one column that the one before it lacks, however wide that is.
            let has_own = if blocks.is_empty() { !block.is_empty() } else { block.len() > repeated.len() };
            if has_own {
                blocks.push(self.leveled(&block, width));
                block.clone_from(&repeated);
            }
            block.push(column);
        }
        blocks.push(self.leveled(&block, width));
        blocks
    }

    /// Whether the cells of a column differ between rows.
    fn differs(&self, column: usize) -> bool {
        self.rows[1..].windows(2).any(|pair| pair[0].get(column) != pair[1].get(column))
    }

    /// Returns the width of a column's widest cell.
    fn natural_width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| columns_of(cell)).max().unwrap_or(0)
    }

    /// Returns the width of a column if its text is at most `limit` wide.
    fn limited_width(&self, column: usize, limit: usize) -> usize {
        let natural = self.natural_width(column);
        if self.is_text[column] { natural.min(limit) } else { natural }
    }

    /// Returns the width of a line of these columns if their text is at most `limit` wide.
    fn line_width(&self, columns: &[usize], limit: usize) -> usize {
        columns.iter().map(|&column| self.limited_width(column, limit) + FRAME).sum::<usize>() + LAST_FRAME
    }

    fn least_width(&self, columns: &[usize]) -> usize {
        self.line_width(columns, LEAST_TEXT)
    }

    /// Returns a block of these columns, of which the widest ones of text are narrowed until a line fits `width`.
    fn leveled(&self, columns: &[usize], width: usize) -> Block {
        let widest = columns.iter().map(|&column| self.natural_width(column)).max().unwrap_or(0);
        let fits = |limit: &usize| self.line_width(columns, *limit) <= width;
        let limit = (LEAST_TEXT..=widest).rev().find(fits).unwrap_or(LEAST_TEXT);
        Block(columns.iter().map(|&column| (column, self.limited_width(column, limit))).collect())
    }
}
