//! The form of every invariant: a condition, and the sentence that describes its violation.

/// Returns the formatted description as an error unless the condition holds.
macro_rules! hold {
    ($that:expr, $($sentence:tt)+) => {
        if !$that {
            return Err(format!($($sentence)+));
        }
    };
}
pub(super) use hold;
