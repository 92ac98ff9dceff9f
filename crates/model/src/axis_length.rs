//! Expressions over the lengths of padded axes, such as `(T + 1)//2`, which give the length of another axis.

use std::fmt;

use super::SymbolId;

/// Maximum nesting depth of a parsed expression.
const MOST_DEPTH: u32 = 32;
/// Maximum bytes of a parsed expression.
const MOST_BYTES: usize = 256;

/// An expression: integers and names of axes, combined with `+`, `-`, `*`, `/`, `//` and parentheses, and `floor(…)`
/// and `ceiling(…)` of one.
///
/// `/` divides exactly and `//` rounds down, as in the names that exporters write. A result that is no whole number, or
/// that is negative, is no length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisLength(Term);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    Number(i64),
    Axis(SymbolId),
    Joined(Operator, Box<[Term; 2]>),
    Floor(Box<Term>),
    Ceiling(Box<Term>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Plus,
    Minus,
    Times,
    Divided,
    DividedDown,
}

/// Why a text is no expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, but found {found}")]
pub struct AxisLengthError {
    expected: &'static str,
    found: String,
}

impl AxisLength {
    /// Parses an expression. `axis_of` finds the padded axis of a name.
    ///
    /// # Errors
    /// If the text is not an expression, or names something else.
    pub fn parse(text: &str, axis_of: &dyn Fn(&str) -> Option<SymbolId>) -> Result<Self, AxisLengthError> {
        if text.len() > MOST_BYTES {
            return Err(AxisLengthError { expected: "at most 256 bytes", found: text.len().to_string() });
        }
        let mut reader = Reader { rest: text.trim(), axis_of, depth: 0 };
        let term = reader.sum()?;
        if reader.rest.is_empty() { Ok(Self(term)) } else { Err(reader.unexpected("an operator or the end")) }
    }

    /// Whether a letter can be part of a name or a number in an expression.
    pub fn is_in_word(letter: char) -> bool {
        letter.is_alphanumeric() || matches!(letter, '_' | '.' | ':')
    }

    /// Returns the padded axes in it.
    pub fn axes(&self) -> Vec<SymbolId> {
        let mut axes = Vec::new();
        self.0.collect_axes(&mut axes);
        axes
    }

    /// Returns its value with these lengths of the padded axes, which are indexed by [`SymbolId`]; `None` if it is no
    /// length.
    pub fn value(&self, lengths: &[u32]) -> Option<u32> {
        let Ratio { over, under } = self.0.value(lengths)?;
        if under == 1 { u32::try_from(over).ok() } else { None }
    }
}

impl Term {
    fn collect_axes(&self, axes: &mut Vec<SymbolId>) {
        match self {
            Self::Number(_) => {}
            Self::Axis(axis) => axes.push(*axis),
            Self::Joined(_, sides) => sides.iter().for_each(|side| side.collect_axes(axes)),
            Self::Floor(term) | Self::Ceiling(term) => term.collect_axes(axes),
        }
    }

    fn value(&self, lengths: &[u32]) -> Option<Ratio> {
        Some(match self {
            Self::Number(number) => Ratio::from(i128::from(*number)),
            Self::Axis(axis) => Ratio::from(i128::from(*lengths.get(usize::from(axis.0))?)),
            Self::Floor(term) => Ratio::from(term.value(lengths)?.floor()),
            Self::Ceiling(term) => Ratio::from(term.value(lengths)?.ceiling()?),
            Self::Joined(operator, sides) => {
                let (left, right) = (sides[0].value(lengths)?, sides[1].value(lengths)?);
                match operator {
                    Operator::Plus => left.plus(right)?,
                    Operator::Minus => left.plus(right.times(Ratio::from(-1))?)?,
                    Operator::Times => left.times(right)?,
                    Operator::Divided => left.times(right.inverse()?)?,
                    Operator::DividedDown => Ratio::from(left.times(right.inverse()?)?.floor()),
                }
            }
        })
    }
}

/// A fraction in lowest terms; `under` is positive.
#[derive(Clone, Copy)]
struct Ratio {
    over: i128,
    under: i128,
}

impl From<i128> for Ratio {
    fn from(over: i128) -> Self {
        Self { over, under: 1 }
    }
}

impl Ratio {
    fn of(over: i128, under: i128) -> Option<Self> {
        let (mut divisor, mut rest) = (over.checked_abs()?, under.checked_abs()?);
        while rest != 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        let divisor = if under < 0 { -divisor } else { divisor };
        (under != 0).then(|| Self { over: over / divisor, under: under / divisor })
    }

    fn plus(self, other: Self) -> Option<Self> {
        let (left, right) = (self.over.checked_mul(other.under)?, other.over.checked_mul(self.under)?);
        Self::of(left.checked_add(right)?, self.under.checked_mul(other.under)?)
    }

    fn times(self, other: Self) -> Option<Self> {
        Self::of(self.over.checked_mul(other.over)?, self.under.checked_mul(other.under)?)
    }

    fn inverse(self) -> Option<Self> {
        Self::of(self.under, self.over)
    }

    fn floor(self) -> i128 {
        self.over.div_euclid(self.under)
    }

    fn ceiling(self) -> Option<i128> {
        self.over.checked_neg()?.div_euclid(self.under).checked_neg()
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Plus => "+",
            Self::Minus => "-",
            Self::Times => "*",
            Self::Divided => "/",
            Self::DividedDown => "//",
        })
    }
}

struct Reader<'t> {
    rest: &'t str,
    axis_of: &'t dyn Fn(&str) -> Option<SymbolId>,
    depth: u32,
}

impl Reader<'_> {
    fn sum(&mut self) -> Result<Term, AxisLengthError> {
        let mut left = self.product()?;
        while let Some(operator) = self.operator(&[Operator::Plus, Operator::Minus]) {
            left = Term::Joined(operator, Box::new([left, self.product()?]));
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Term, AxisLengthError> {
        let mut left = self.factor()?;
        while let Some(operator) = self.operator(&[Operator::Times, Operator::DividedDown, Operator::Divided]) {
            left = Term::Joined(operator, Box::new([left, self.factor()?]));
        }
        Ok(left)
    }

    fn operator(&mut self, operators: &[Operator]) -> Option<Operator> {
        let found = operators.iter().find(|operator| self.rest.starts_with(&operator.to_string()))?;
        self.skip(found.to_string().len());
        Some(*found)
    }

    fn factor(&mut self) -> Result<Term, AxisLengthError> {
        const EXPECTED: &str = "a whole number, a padded axis or a parenthesis";
        if self.rest.starts_with('(') {
            return self.parenthesis();
        }
        if self.rest.starts_with('-') {
            self.skip(1);
            self.deepen()?;
            let term = self.factor()?;
            self.depth -= 1;
            return Ok(Term::Joined(Operator::Times, Box::new([Term::Number(-1), term])));
        }
        let ends = |letter: char| !AxisLength::is_in_word(letter);
        let word = &self.rest[..self.rest.find(ends).unwrap_or(self.rest.len())];
        if word.starts_with(|letter: char| letter.is_ascii_digit()) {
            let number = word.parse().map_err(|_| self.unexpected("a whole number below 2^63"))?;
            self.skip(word.len());
            return Ok(Term::Number(number));
        }
        let after = self.rest[word.len()..].trim_start();
        let round = match word.to_ascii_lowercase().as_str() {
            "floor" => Some(Term::Floor as fn(Box<Term>) -> Term),
            "ceiling" | "ceil" => Some(Term::Ceiling as fn(Box<Term>) -> Term),
            _ => None,
        };
        if let Some(round) = round.filter(|_| after.starts_with('(')) {
            self.skip(word.len());
            return self.parenthesis().map(|term| round(Box::new(term)));
        }
        let axis = (self.axis_of)(word).ok_or_else(|| self.unexpected(EXPECTED))?;
        self.skip(word.len());
        Ok(Term::Axis(axis))
    }

    fn parenthesis(&mut self) -> Result<Term, AxisLengthError> {
        self.skip(1);
        self.deepen()?;
        let inside = self.sum()?;
        self.depth -= 1;
        if !self.rest.starts_with(')') {
            return Err(self.unexpected("a closing parenthesis"));
        }
        self.skip(1);
        Ok(inside)
    }

    fn deepen(&mut self) -> Result<(), AxisLengthError> {
        self.depth += 1;
        if self.depth > MOST_DEPTH { Err(self.unexpected("fewer parentheses within one another")) } else { Ok(()) }
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest[bytes..].trim_start();
    }

    fn unexpected(&self, expected: &'static str) -> AxisLengthError {
        let found = match self.rest.chars().next() {
            None => "the end".to_owned(),
            Some(_) => format!("'{}'", self.rest.chars().take(20).collect::<String>()),
        };
        AxisLengthError { expected, found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<AxisLength, String> {
        let axis_of = |name: &str| ["T", "dim.1"].iter().position(|known| *known == name).map(|at| SymbolId(at as u16));
        AxisLength::parse(text, &axis_of).map_err(|error| error.to_string())
    }

    fn value(text: &str, lengths: [u32; 2]) -> Option<u32> {
        parse(text).expect("an expression").value(&lengths)
    }

    #[test]
    fn lengths_are_computed_as_exporters_write_them() {
        for (text, expected) in [
            ("T", 57),
            ("(T + 1)//2", 29),
            ("T//2", 28),
            ("((T - 3)//2) + 1", 28),
            ("floor(T/2 + 1/2)", 29),
            ("ceiling(T/4)", 15),
            ("Floor( T / 4 )", 14),
            ("2*T - dim.1", 104),
            ("-1*(3 - T)", 54),
            ("-3 + T", 54),
            ("T - 4 - 3", 50),
            ("100//3//2", 16),
            ("4*T/2", 114),
            ("7", 7),
        ] {
            assert_eq!(value(text, [57, 10]), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_length_has_no_value() {
        for text in ["T/2", "3 - T", "T//(dim.1 - 10)", "T*T*T*T*T*T*T*T*T*T*T*T*T*T*T*T*T*T*T*T*T*T*T*T*T*T*T*T*T*T"] {
            assert_eq!(value(text, [57, 10]), None, "{text}");
        }
        assert_eq!(value("(T - 3)//2 + 1", [2, 0]), Some(0), "a quotient is rounded down below 0 too");
        assert_eq!(parse("T + 1").expect("an expression").value(&[]), None, "no length is known");
    }

    #[test]
    fn what_is_no_expression_is_refused_with_what_was_expected() {
        let refusals = [
            ("", "expected a whole number, a padded axis or a parenthesis, but found the end"),
            ("frames", "expected a whole number, a padded axis or a parenthesis, but found 'frames'"),
            ("T 2", "expected an operator or the end, but found '2'"),
            ("(T + 1", "expected a closing parenthesis, but found the end"),
            ("9223372036854775808", "expected a whole number below 2^63, but found '9223372036854775808'"),
        ];
        for (text, refusal) in refusals {
            assert_eq!(parse(text), Err(refusal.to_owned()), "{text}");
        }
        for deep in ["(".repeat(200), "-".repeat(200)] {
            assert!(parse(&deep).is_err_and(|error| error.starts_with("expected fewer parentheses")));
        }
        assert!(parse(&"1+".repeat(200)).is_err_and(|error| error.contains("at most 256 bytes")));
    }

    #[test]
    fn the_axes_of_an_expression_are_known() {
        assert_eq!(parse("floor(T/2) + dim.1").expect("an expression").axes(), [SymbolId(0), SymbolId(1)]);
        assert!(parse("3*4").expect("an expression").axes().is_empty());
    }
}
