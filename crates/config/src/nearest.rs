//! Lists of known words in error messages, and suggestions for misspelt ones.

/// Longer words get no suggestion, because the distance takes quadratic time.
const MAX_WORD_BYTES: usize = 256;

/// Lists words as `a, b or c`.
pub(super) fn alternatives(words: &[&str]) -> String {
    match words {
        [others @ .., before, last] if !others.is_empty() => format!("{}, {before} or {last}", others.join(", ")),
        words => words.join(" or "),
    }
}

/// Returns `; did you mean 'x'?` with the candidate nearest to `word`, or an empty text if none is near.
pub fn suggestion<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map(|candidate| format!("; did you mean '{candidate}'?")).unwrap_or_default()
}

fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > MAX_WORD_BYTES {
        return None;
    }
    let lower = word.to_ascii_lowercase();
    let reach = (word.chars().count() / 3).max(2);
    let scored = candidates.into_iter().filter_map(|candidate| {
        let other = candidate.to_ascii_lowercase();
        let contained = lower.len() >= 4 && (other.contains(&lower) || lower.contains(&other) && other.len() >= 4);
        let distance = if contained { 1 } else { strsim::levenshtein(&lower, &other) };
        (distance <= reach).then_some((distance, candidate))
    });
    scored.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_key_finds_its_neighbour() {
        let known = ["max_batch_size", "version_policy", "inputs"];
        assert_eq!(nearest("max_batchsize", known), Some("max_batch_size"));
        assert_eq!(nearest("batch_size", known), Some("max_batch_size"));
        assert_eq!(nearest("input", known), Some("inputs"));
        assert_eq!(nearest("warmup", known), None);
    }

    #[test]
    fn a_huge_word_costs_nothing() {
        assert_eq!(nearest(&"x".repeat(1 << 20), ["max_batch_size"]), None);
    }
}
