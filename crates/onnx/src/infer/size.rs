//! Lengths and integers that may depend on the lengths of a request: exact products of symbols, and opaque symbols for
//! all other expressions.

use std::collections::HashMap;

use smallvec::{SmallVec, smallvec};

/// Maximum number of symbols in a product, which keeps repeated squaring cheap.
const FACTORS_MAX: usize = 6;

/// Maximum nesting depth of a size that is written as text, and maximum bytes of the text.
const DEPTH_MAX: u32 = 16;
const TEXT_MAX_BYTES: usize = 256;

/// A length that varies from run to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Symbol(u32);

/// The number of rows.
pub(crate) const BATCH: Symbol = Symbol(0);

/// An integer: a factor times a product of symbols. Equal sizes are equal in every run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Size {
    factor: i64,
    /// Sorted; empty if the factor is 0.
    symbols: SmallVec<[Symbol; 2]>,
}

/// A size, or unknown.
pub(crate) type Dim = Option<Size>;

impl From<i64> for Size {
    fn from(factor: i64) -> Self {
        Self { factor, symbols: SmallVec::new() }
    }
}

impl From<Symbol> for Size {
    fn from(symbol: Symbol) -> Self {
        Self { factor: 1, symbols: smallvec![symbol] }
    }
}

impl Size {
    /// Returns the number, if it has no symbols.
    pub(crate) fn known(&self) -> Option<i64> {
        self.symbols.is_empty().then_some(self.factor)
    }

    pub(crate) fn is(&self, number: i64) -> bool {
        self.known() == Some(number)
    }

    /// Returns the symbol, if it is just a symbol.
    pub(crate) fn symbol(&self) -> Option<Symbol> {
        match (self.factor, self.symbols.as_slice()) {
            (1, &[symbol]) => Some(symbol),
            _ => None,
        }
    }

    pub(crate) fn is_batch(&self) -> bool {
        self.symbol() == Some(BATCH)
    }

    /// Returns whether it is the number of rows times something that does not depend on that number.
    pub(crate) fn is_batch_multiple(&self, symbols: &Symbols) -> bool {
        let rest = self.symbols.iter().filter(|&&symbol| symbol != BATCH);
        self.symbols.iter().filter(|&&symbol| symbol == BATCH).count() == 1
            && rest.into_iter().all(|&symbol| !symbols.counts_rows(symbol))
    }

    /// Returns whether it depends on the number of rows.
    pub(crate) fn counts_rows(&self, symbols: &Symbols) -> bool {
        self.symbols.iter().any(|&symbol| symbols.counts_rows(symbol))
    }

    /// Returns the product; `None` if it overflows or has too many symbols.
    pub(crate) fn times(&self, other: &Self) -> Dim {
        let factor = self.factor.checked_mul(other.factor)?;
        if factor == 0 {
            return Some(Self::from(0));
        }
        if self.symbols.len() + other.symbols.len() > FACTORS_MAX {
            return None;
        }
        let mut symbols = self.symbols.clone();
        symbols.extend_from_slice(&other.symbols);
        symbols.sort_unstable();
        Some(Self { factor, symbols })
    }

    /// Returns the quotient, if `other` divides it for all values of the symbols. Lengths are assumed not to be 0.
    pub(crate) fn exact_quotient(&self, other: &Self) -> Dim {
        if other.factor == 0 || self.factor.checked_rem(other.factor)? != 0 {
            return None;
        }
        let mut symbols = self.symbols.clone();
        for symbol in &other.symbols {
            let at = symbols.iter().position(|own| own == symbol)?;
            symbols.remove(at);
        }
        Some(Self { factor: self.factor / other.factor, symbols })
    }

    /// Returns its value, given the values of symbols.
    pub(crate) fn evaluate(&self, value: impl Fn(Symbol) -> f64) -> f64 {
        self.symbols.iter().fold(self.factor as f64, |product, &symbol| product * value(symbol))
    }
}

/// Returns the product of sizes; `None` if one is unknown.
pub(crate) fn product<'d>(dims: impl IntoIterator<Item = &'d Dim>) -> Dim {
    dims.into_iter().try_fold(Size::from(1), |product, dim| product.times(dim.as_ref()?))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Operation {
    Sum,
    Quotient,
    Remainder,
    Least,
    Greatest,
}

#[derive(Debug)]
struct Entry {
    /// ONNX's `dim_param`; `None` for expressions.
    name: Option<String>,
    expression: Option<(Operation, Size, Size)>,
    counts_rows: bool,
}

/// All symbols of a graph. Equal expressions share a symbol.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    entries: Vec<Entry>,
    named: HashMap<String, Symbol>,
    expressions: HashMap<(Operation, Size, Size), Symbol>,
    /// A length to which the file gives the name of the batch too.
    namesake: Option<Symbol>,
}

impl Symbols {
    /// Creates the symbols with just the number of rows, under its name and aliases.
    pub(crate) fn new(batch: String, aliases: impl IntoIterator<Item = String>) -> Self {
        let mut named: HashMap<String, Symbol> = aliases.into_iter().map(|alias| (alias, BATCH)).collect();
        named.insert(batch.clone(), BATCH);
        let entries = vec![Entry { name: Some(batch), expression: None, counts_rows: true }];
        Self { entries, named, expressions: HashMap::new(), namesake: None }
    }

    /// Returns the length of an axis with this name that is not the batch, even if the name is the batch's. Exporters
    /// give one name to several axes, which may or may not be equal.
    pub(crate) fn behind_batch(&mut self, name: &str) -> Symbol {
        let symbol = self.named(name);
        if symbol != BATCH {
            return symbol;
        }
        let namesake = self.namesake.unwrap_or_else(|| self.fresh());
        self.namesake = Some(namesake);
        namesake
    }

    /// Returns the length to which the file gives the name of the batch too, if there is one.
    pub(crate) fn namesake(&self) -> Option<Symbol> {
        self.namesake
    }

    /// Whether a name may be that of the batch or that of another length.
    pub(crate) fn is_ambiguous(&self, name: &str) -> bool {
        self.namesake.is_some() && self.named.get(name) == Some(&BATCH)
    }

    pub(crate) fn named(&mut self, name: &str) -> Symbol {
        if let Some(&symbol) = self.named.get(name) {
            return symbol;
        }
        let symbol = self.enter(Some(name.to_owned()), false);
        self.named.insert(name.to_owned(), symbol);
        symbol
    }

    /// Gives a symbol another name.
    pub(crate) fn alias(&mut self, name: &str, symbol: Symbol) {
        self.named.insert(name.to_owned(), symbol);
    }

    /// Returns the symbol that the file declares for an inner tensor. A name that no input has may stand for anything,
    /// including the number of rows.
    pub(crate) fn declared(&mut self, name: &str) -> Symbol {
        if let Some(&symbol) = self.named.get(name) {
            return symbol;
        }
        let symbol = self.enter(Some(name.to_owned()), true);
        self.named.insert(name.to_owned(), symbol);
        symbol
    }

    /// Creates a new symbol for a length that is not known to equal any other.
    pub(crate) fn fresh(&mut self) -> Symbol {
        self.enter(None, false)
    }

    fn enter(&mut self, name: Option<String>, counts_rows: bool) -> Symbol {
        self.entries.push(Entry { name, expression: None, counts_rows });
        Symbol(u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX))
    }

    fn counts_rows(&self, symbol: Symbol) -> bool {
        self.entries.get(symbol.0 as usize).is_none_or(|entry| entry.counts_rows)
    }

    /// Returns the symbol's name in the file; `None` for expressions.
    pub(crate) fn name(&self, symbol: Symbol) -> Option<&str> {
        self.entries.get(symbol.0 as usize)?.name.as_deref()
    }

    fn expression(&mut self, operation: Operation, left: &Size, right: &Size) -> Size {
        let key = (operation, left.clone(), right.clone());
        if let Some(&symbol) = self.expressions.get(&key) {
            return symbol.into();
        }
        let counts_rows = left.counts_rows(self) || right.counts_rows(self);
        let symbol = self.enter(None, counts_rows);
        if let Some(entry) = self.entries.last_mut() {
            entry.expression = Some(key.clone());
        }
        self.expressions.insert(key, symbol);
        symbol.into()
    }

    /// Returns a size as text, in the form of [`AxisLength`](paternoster_model::AxisLength): a number, the name of an
    /// axis, or an expression of such. `None` if it depends on the number of rows or on lengths without a name, or if
    /// the text would be long.
    pub(crate) fn text(&self, size: &Size) -> Option<String> {
        self.nested_text(size, 0)
    }

    fn nested_text(&self, size: &Size, depth: u32) -> Option<String> {
        if depth > DEPTH_MAX || size.counts_rows(self) {
            return None;
        }
        let mut text = match size.factor {
            1 if !size.symbols.is_empty() => String::new(),
            factor => factor.to_string(),
        };
        for symbol in &size.symbols {
            if !text.is_empty() {
                text.push('*');
            }
            let entry = self.entries.get(symbol.0 as usize)?;
            match (&entry.name, &entry.expression) {
                (Some(name), _) => text.push_str(name),
                (None, Some((operation, left, right))) => {
                    let sign = match operation {
                        Operation::Sum => " + ",
                        // Rounded toward zero; lengths are not negative.
                        Operation::Quotient => "//",
                        Operation::Remainder | Operation::Least | Operation::Greatest => return None,
                    };
                    let left = self.nested_text(left, depth + 1)?;
                    text.extend(["(", &left, sign, &self.nested_text(right, depth + 1)?, ")"]);
                }
                (None, None) => return None,
            }
        }
        (text.len() <= TEXT_MAX_BYTES).then_some(text)
    }

    pub(crate) fn sum(&mut self, left: &Size, right: &Size) -> Dim {
        if left.symbols == right.symbols {
            let factor = left.factor.checked_add(right.factor)?;
            return if factor == 0 { Some(Size::from(0)) } else { Some(Size { factor, ..left.clone() }) };
        }
        match (left.is(0), right.is(0)) {
            (true, _) => Some(right.clone()),
            (_, true) => Some(left.clone()),
            _ => Some(self.expression(Operation::Sum, left.min(right), left.max(right))),
        }
    }

    pub(crate) fn difference(&mut self, left: &Size, right: &Size) -> Dim {
        let negative = right.times(&Size::from(-1))?;
        self.sum(left, &negative)
    }

    /// Returns the quotient, rounded toward zero.
    pub(crate) fn quotient(&mut self, left: &Size, right: &Size) -> Dim {
        if let Some(exact) = left.exact_quotient(right) {
            return Some(exact);
        }
        match (left.known(), right.known()) {
            (_, Some(0)) => None,
            (Some(left), Some(right)) => left.checked_div(right).map(Size::from),
            _ => Some(self.expression(Operation::Quotient, left, right)),
        }
    }

    pub(crate) fn remainder(&mut self, left: &Size, right: &Size) -> Dim {
        if left.exact_quotient(right).is_some() {
            return Some(Size::from(0));
        }
        match (left.known(), right.known()) {
            (_, Some(0)) => None,
            (Some(left), Some(right)) => left.checked_rem_euclid(right).map(Size::from),
            _ => Some(self.expression(Operation::Remainder, left, right)),
        }
    }

    pub(crate) fn least(&mut self, left: &Size, right: &Size) -> Dim {
        match (left.known(), right.known()) {
            _ if left == right => Some(left.clone()),
            (Some(left), Some(right)) => Some(Size::from(left.min(right))),
            _ => Some(self.expression(Operation::Least, left.min(right), left.max(right))),
        }
    }

    pub(crate) fn greatest(&mut self, left: &Size, right: &Size) -> Dim {
        match (left.known(), right.known()) {
            _ if left == right => Some(left.clone()),
            (Some(left), Some(right)) => Some(Size::from(left.max(right))),
            _ => Some(self.expression(Operation::Greatest, left.min(right), left.max(right))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_cancel_and_sums_of_like_terms_join() {
        let mut symbols = Symbols::new("batch".to_owned(), []);
        let (batch, tokens) = (Size::from(BATCH), Size::from(symbols.named("tokens")));
        let all = batch.times(&tokens).and_then(|rows| rows.times(&384.into())).expect("three factors");
        assert_eq!(all.exact_quotient(&tokens.times(&12.into()).expect("small")), batch.times(&32.into()));
        assert_eq!(all.exact_quotient(&5.into()), None, "384 is no multiple of 5");
        assert_eq!(symbols.sum(&tokens, &tokens), tokens.times(&2.into()));
        assert_eq!(symbols.difference(&tokens, &tokens), Some(Size::from(0)));
    }

    #[test]
    fn equal_expressions_are_one_symbol_and_remember_the_rows_they_count() {
        let mut symbols = Symbols::new("batch".to_owned(), []);
        let (batch, tokens) = (Size::from(BATCH), Size::from(symbols.named("tokens")));
        let (one, other) = (symbols.sum(&tokens, &1.into()), symbols.sum(&1.into(), &tokens));
        assert_eq!(one, other);
        assert!(!one.expect("a sum").counts_rows(&symbols));
        assert!(symbols.sum(&batch, &1.into()).expect("a sum").counts_rows(&symbols));
    }

    #[test]
    fn sizes_are_written_as_expressions_of_named_lengths() {
        let mut symbols = Symbols::new("batch".to_owned(), []);
        let (batch, tokens) = (Size::from(BATCH), Size::from(symbols.named("tokens")));
        let next = symbols.sum(&tokens, &1.into()).expect("a sum");
        let half = symbols.quotient(&next, &2.into()).expect("a quotient");
        let text = |size: &Size| symbols.text(size);
        assert_eq!(text(&7.into()).as_deref(), Some("7"));
        assert_eq!(text(&tokens).as_deref(), Some("tokens"));
        assert_eq!(text(&half).as_deref(), Some("((1 + tokens)//2)"));
        assert_eq!(text(&half.times(&3.into()).expect("small")).as_deref(), Some("3*((1 + tokens)//2)"));
        assert_eq!(text(&batch.times(&tokens).expect("small")), None, "it counts rows");
        let unnamed = Size::from(symbols.fresh());
        assert_eq!(symbols.text(&unnamed), None);
        let declared = Size::from(symbols.declared("anything"));
        assert_eq!(symbols.text(&declared), None, "it may count rows");
        let mut long = tokens.clone();
        for step in 0..100 {
            let other = symbols.named("other").into();
            long = symbols.sum(&long, &other).expect("a sum");
            long = symbols.quotient(&long, &(step + 2).into()).expect("a quotient");
        }
        assert_eq!(symbols.text(&long), None);
    }

    #[test]
    fn numbers_that_overflow_are_unknown() {
        let mut symbols = Symbols::new("batch".to_owned(), []);
        let large = Size::from(i64::MAX);
        assert_eq!(large.times(&2.into()), None);
        assert_eq!(symbols.sum(&large, &1.into()), None);
        assert_eq!(symbols.quotient(&i64::MIN.into(), &(-1).into()), None);
        assert_eq!(symbols.quotient(&1.into(), &0.into()), None);
        let mut power = Size::from(BATCH);
        for _ in 0..2 {
            power = power.times(&power).expect("at most four factors");
        }
        assert_eq!(power.times(&power), None, "eight factors");
    }
}
