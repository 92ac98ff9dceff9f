//! The known word nearest to an unknown one, for messages that suggest what was meant.

/// `; did you mean 'x'?` for the candidate within reach of `word`, or nothing.
pub(super) fn suggestion<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map(|candidate| format!("; did you mean '{candidate}'?")).unwrap_or_default()
}

fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_ascii_lowercase();
    let reach = (word.chars().count() / 3).max(2);
    let scored = candidates.into_iter().filter_map(|candidate| {
        let other = candidate.to_ascii_lowercase();
        let contained = lower.len() >= 4 && (other.contains(&lower) || lower.contains(&other) && other.len() >= 4);
        let distance = if contained { 1 } else { edit_distance(&lower, &other, reach)? };
        Some((distance, candidate))
    });
    scored.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

/// Levenshtein distance, `None` beyond `limit`; words longer than 64 characters have no neighbours.
fn edit_distance(left: &str, right: &str, limit: usize) -> Option<usize> {
    let left: Vec<char> = left.chars().take(65).collect();
    let right: Vec<char> = right.chars().take(65).collect();
    if left.len() > 64 || right.len() > 64 || left.len().abs_diff(right.len()) > limit {
        return None;
    }
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, from) in left.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().filter(|distance| *distance <= limit)
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
