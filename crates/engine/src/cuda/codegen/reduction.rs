//! Kernels of reductions, with a block or a thread for each result.

use std::collections::HashSet;

use super::{Generated, THREADS, call, computed_type, literal, space::Space, writer::Writer};
use crate::cuda::ir::{Function, Kind, Reduce, Reduction, Strides, View};

/// Number of elements from which a whole block reduces them.
const BY_BLOCKS_FROM: usize = 32;

impl Reduction {
    /// Returns the function that combines two elements.
    fn function(self) -> Function {
        match self {
            Self::Sum => Function::Add,
            Self::Max => Function::Max,
            Self::Min => Function::Min,
        }
    }

    /// Returns the neutral element.
    fn neutral(self, kind: Kind) -> String {
        match (self, kind) {
            (Self::Sum, _) => literal(kind, 0),
            (Self::Max, Kind::F32) => literal(kind, f32::NEG_INFINITY.to_bits().into()),
            (Self::Min, Kind::F32) => literal(kind, f32::INFINITY.to_bits().into()),
            (Self::Max, Kind::I64) => literal(kind, i64::MIN.cast_unsigned()),
            (Self::Min, Kind::I64) => literal(kind, i64::MAX.cast_unsigned()),
            (Self::Max, _) => literal(kind, i64::from(i32::MIN).cast_unsigned()),
            (Self::Min, _) => literal(kind, i64::from(i32::MAX).cast_unsigned()),
        }
    }
}

impl Writer<'_> {
    /// Writes a kernel that computes and reduces. Returns its text after the name, and its launch data.
    pub(super) fn reduction(&mut self, reduce: &Reduce) -> (String, Generated) {
        let Reduce { reduction, by_rows, outer, inner, node, to } = reduce;
        let (kind, rank) = (self.expressions().kind(*node), outer.len());
        let all = self.strides([*node].into_iter());
        let (of_outer, of_inner): (Vec<Strides>, Vec<Strides>) = all
            .iter()
            .map(|strides| (Strides::from_slice(&strides[..rank]), Strides::from_slice(&strides[rank..])))
            .unzip();
        let outer_space = Space::new(outer, &of_outer.iter().collect::<Vec<_>>());
        let inner_space = Space::new(inner, &of_inner.iter().collect::<Vec<_>>());
        let (results, count) = (outer_space.elements(), inner_space.elements());
        // Neighbouring threads should read neighbouring elements: along the results if those are adjacent in memory,
        // else along the reduced elements.
        let results_lie_so = outer_space.axes.last().is_some_and(|(_, axis)| of_outer.iter().any(|it| it[*axis] == 1));
        let by_blocks = kind == Kind::F32 && count >= BY_BLOCKS_FROM && !results_lie_so;
        let offset = |strides: &Strides| {
            let (own, rest) = strides.split_at(rank);
            let mut terms = outer_space.offset("x", &Strides::from_slice(own));
            terms.extend(inner_space.offset("y", &Strides::from_slice(rest)));
            terms
        };
        let result = View { buffer: *to, offset: 0, strides: Strides::from_slice(&[1]) };
        let neutral = reduction.neutral(kind);
        if by_blocks {
            self.line(2, &format!("for (int o = blockIdx.y; o < {results}; o += gridDim.y) {{"));
            self.line(3, &outer_space.places("x", "o"));
            self.line(3, "EACH {");
            self.line(4, &format!("part() = {neutral};"));
            self.line(4, &format!("for (int i = TID; i < {count}; i += THREADS) {{"));
            self.line(5, &inner_space.places("y", "i"));
            let value = self.compute(5, &[*node], *by_rows, &offset).swap_remove(0);
            self.line(5, &format!("part() = {};", call(reduction.function(), &["part()", &value])));
            self.line(4, "}");
            // The kernels' vocabulary has no minimum of a block, so the minimum is computed as the negative maximum of
            // the negatives.
            let is_least = *reduction == Reduction::Min;
            if is_least {
                self.line(4, "part() = -part();");
            }
            self.line(3, "}");
            let whole = if *reduction == Reduction::Sum { "BLOCK_SUM(part)" } else { "BLOCK_MAX(part)" };
            self.line(3, &format!("float whole = {}{whole};", if is_least { "-" } else { "" }));
            self.line(3, "EACH {");
            let stored = self.stored(&result, vec!["o".to_owned()], "whole");
            self.line(4, &format!("if (TID == 0) {stored}"));
            self.line(3, "}");
            self.line(2, "}");
        } else {
            self.line(2, "EACH {");
            let places = format!("int o = blockIdx.y * THREADS + TID; o < {results}; o += gridDim.y * THREADS");
            self.line(3, &format!("for ({places}) {{"));
            self.line(4, &outer_space.places("x", "o"));
            self.line(4, &format!("{} whole = {neutral};", computed_type(kind)));
            self.line(4, &format!("for (int i = 0; i < {count}; ++i) {{"));
            self.line(5, &inner_space.places("y", "i"));
            let value = self.compute(5, &[*node], *by_rows, &offset).swap_remove(0);
            self.line(5, &format!("whole = {};", call(reduction.function(), &["whole", &value])));
            self.line(4, "}");
            let stored = self.stored(&result, vec!["o".to_owned()], "whole");
            self.line(4, &stored);
            self.line(3, "}");
            self.line(2, "}");
        }
        let threads = |elements: usize| elements.next_multiple_of(32).clamp(32, THREADS);
        let (registers, (blocks, threads)) = if by_blocks {
            ("    Reg<float> part;\n", (results, threads(count)))
        } else {
            ("", (results.div_ceil(threads(results)), threads(results)))
        };
        self.finish(*by_rows, &HashSet::from([*to]), registers, blocks, threads)
    }
}
