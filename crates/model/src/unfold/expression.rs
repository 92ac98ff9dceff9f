//! Expressions over the lengths of a request's inputs, such as `len(source) + 50`, which give the number of steps of a
//! segment.

use std::fmt;

/// Maximum nesting depth of a parsed expression.
const MOST_DEPTH: u32 = 32;

/// An expression: integers and `len(input)`, combined with `+`, `-`, `*`, `/` and parentheses.
///
/// Differences saturate at 0, other results at `u64::MAX`, and quotients are rounded down. Division by 0 has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// An integer.
    Number(u64),
    /// Length of the request's input with this number along its first axis, without the batch.
    Length(usize),
    /// Two operands and an operator.
    Joined(Operator, Box<[Expression; 2]>),
}

/// A binary operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// Sum.
    Plus,
    /// Difference, at least 0.
    Minus,
    /// Product.
    Times,
    /// Quotient, rounded down.
    Divided,
}

/// Reasons why a text is not an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// Unexpected text.
    #[error("expected {expected}, but found {found}")]
    Unexpected {
        /// The expected syntax.
        expected: &'static str,
        /// The text that was found.
        found: String,
    },
    /// `len` of a name without a known length.
    #[error("'{0}' is not an input whose length is known before the segment runs")]
    Unknown(String),
    /// The text is nested too deeply.
    #[error("expected at most {MOST_DEPTH} parentheses within one another")]
    Deep,
}

impl Expression {
    /// Parses an expression. `length_of` resolves the name in `len(…)`.
    ///
    /// # Errors
    /// If the text is not an expression, or names something without a length.
    pub fn parse(text: &str, length_of: &dyn Fn(&str) -> Option<Expression>) -> Result<Self, ExpressionError> {
        let mut reader = Reader { rest: text.trim(), length_of, depth: 0 };
        let expression = reader.sum()?;
        if reader.rest.is_empty() { Ok(expression) } else { Err(reader.unexpected("an operator or the end")) }
    }

    /// Evaluates the expression with these input lengths. `None` if a required input was omitted, or for a division by
    /// 0.
    pub fn value(&self, length: &dyn Fn(usize) -> Option<u64>) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Length(input) => length(*input),
            Self::Joined(operator, sides) => {
                let (left, right) = (sides[0].value(length)?, sides[1].value(length)?);
                match operator {
                    Operator::Plus => Some(left.saturating_add(right)),
                    Operator::Minus => Some(left.saturating_sub(right)),
                    Operator::Times => Some(left.saturating_mul(right)),
                    Operator::Divided => left.checked_div(right),
                }
            }
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Plus => "+",
            Self::Minus => "-",
            Self::Times => "*",
            Self::Divided => "/",
        })
    }
}

struct Reader<'t> {
    rest: &'t str,
    length_of: &'t dyn Fn(&str) -> Option<Expression>,
    depth: u32,
}

impl Reader<'_> {
    fn sum(&mut self) -> Result<Expression, ExpressionError> {
        let mut left = self.product()?;
        loop {
            let operator = match self.rest.chars().next() {
                Some('+') => Operator::Plus,
                Some('-') => Operator::Minus,
                _ => return Ok(left),
            };
            self.skip(1);
            left = Expression::Joined(operator, Box::new([left, self.product()?]));
        }
    }

    fn product(&mut self) -> Result<Expression, ExpressionError> {
        let mut left = self.factor()?;
        loop {
            let operator = match self.rest.chars().next() {
                Some('*') => Operator::Times,
                Some('/') => Operator::Divided,
                _ => return Ok(left),
            };
            self.skip(1);
            left = Expression::Joined(operator, Box::new([left, self.factor()?]));
        }
    }

    fn factor(&mut self) -> Result<Expression, ExpressionError> {
        const EXPECTED: &str = "a whole number, len(input) or a parenthesis";
        if self.rest.starts_with('(') {
            self.skip(1);
            self.depth += 1;
            if self.depth > MOST_DEPTH {
                return Err(ExpressionError::Deep);
            }
            let inside = self.sum()?;
            self.depth -= 1;
            self.close()?;
            return Ok(inside);
        }
        let digits = self.rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(self.rest.len());
        if digits > 0 {
            let number = self.rest[..digits].parse().map_err(|_| self.unexpected("a number below 2^64"))?;
            self.skip(digits);
            return Ok(Expression::Number(number));
        }
        let Some(name) = self.rest.strip_prefix("len").map(str::trim_start).and_then(|rest| rest.strip_prefix('('))
        else {
            return Err(self.unexpected(EXPECTED));
        };
        let end = name.find(')').unwrap_or(name.len());
        let named = name[..end].trim();
        let length = (self.length_of)(named).ok_or_else(|| ExpressionError::Unknown(named.to_owned()))?;
        self.rest = &name[end..];
        self.close()?;
        Ok(length)
    }

    fn close(&mut self) -> Result<(), ExpressionError> {
        if !self.rest.starts_with(')') {
            return Err(self.unexpected("a closing parenthesis"));
        }
        self.skip(1);
        Ok(())
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest[bytes..].trim_start();
    }

    fn unexpected(&self, expected: &'static str) -> ExpressionError {
        let found = match self.rest.chars().next() {
            None => "the end".to_owned(),
            Some(_) => format!("'{}'", self.rest.chars().take(20).collect::<String>()),
        };
        ExpressionError::Unexpected { expected, found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Expression, String> {
        let length_of =
            |name: &str| ["source", "frames"].iter().position(|known| *known == name).map(Expression::Length);
        Expression::parse(text, &length_of).map_err(|error| error.to_string())
    }

    fn value(text: &str) -> Option<u64> {
        parse(text).expect("an expression").value(&|input| [Some(24), None].get(input).copied().flatten())
    }

    #[test]
    fn lengths_and_numbers_are_joined_as_in_arithmetic() {
        assert_eq!(value("len(source) + 50"), Some(74));
        assert_eq!(value(" 2*len( source )-3 * 4 "), Some(36));
        assert_eq!(value("(len(source) + 1) / 2"), Some(12));
        assert_eq!(value("10 - 3 - 2"), Some(5));
        assert_eq!(value("3 - 10"), Some(0));
        assert_eq!(value("18446744073709551615 + 1"), Some(u64::MAX));
        assert_eq!((value("1 / 0"), value("len(frames)")), (None, None));
    }

    #[test]
    fn what_is_none_is_refused_with_what_was_expected() {
        let refusals = [
            ("", "expected a whole number, len(input) or a parenthesis, but found the end"),
            ("len(source) 50", "expected an operator or the end, but found '50'"),
            ("(1 + 2", "expected a closing parenthesis, but found the end"),
            ("len(source", "expected a closing parenthesis, but found the end"),
            ("len(target)", "'target' is not an input whose length is known before the segment runs"),
            ("-1", "expected a whole number, len(input) or a parenthesis, but found '-1'"),
            ("18446744073709551616", "expected a number below 2^64, but found '18446744073709551616'"),
        ];
        for (text, refusal) in refusals {
            assert_eq!(parse(text), Err(refusal.to_owned()), "{text}");
        }
        assert_eq!(parse(&"(".repeat(10_000)), Err("expected at most 32 parentheses within one another".to_owned()));
    }
}
