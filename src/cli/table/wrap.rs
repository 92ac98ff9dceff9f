//! Text on several lines of limited width.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Characters in a long word after which a line may end: those between the parts of a path or a name.
const JOINTS: &str = "/._-,:";

/// Returns how many columns of a terminal a text takes.
pub(super) fn columns_of(text: &str) -> usize {
    text.width()
}

/// Divides a text into lines of at most `width` columns: between words, and within words that are longer than a line.
/// Returns at least one line, which may be empty.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for mut word in text.split(' ') {
        if !line.is_empty() {
            if columns_of(&line) + 1 + columns_of(word) <= width {
                line.push(' ');
                line.push_str(word);
                continue;
            }
            lines.push(std::mem::take(&mut line));
        }
        while columns_of(word) > width {
            let (piece, rest) = word.split_at(end_of_line(word, width));
            word = rest;
            if rest.is_empty() {
                line.push_str(piece);
            } else {
                lines.push(piece.to_owned());
            }
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

/// Returns the byte at which a word that is wider than a line is divided: behind the last joint in the second half of
/// the line, or where the line is full. A line takes at least one character.
fn end_of_line(word: &str, width: usize) -> usize {
    let mut used = 0;
    let mut full = 0;
    let mut joint = None;
    for (at, letter) in word.char_indices() {
        used += letter.width().unwrap_or(0);
        if used > width && at > 0 {
            break;
        }
        full = at + letter.len_utf8();
        if JOINTS.contains(letter) && used * 2 > width {
            joint = Some(full);
        }
    }
    joint.unwrap_or(full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_between_words() {
        assert_eq!(
            wrapped("NO PLAN: the operator has no lowering", 16),
            ["NO PLAN: the", "operator has no", "lowering"]
        );
        assert_eq!(wrapped("short", 16), ["short"]);
        assert_eq!(wrapped("", 16), [""]);
    }

    #[test]
    fn a_long_word_ends_a_line_at_a_joint_or_where_it_is_full() {
        assert_eq!(wrapped("/encoder/layer.0/attention", 16), ["/encoder/layer.", "0/attention"]);
        assert_eq!(wrapped("a abcdefghij b", 4), ["a", "abcd", "efgh", "ij b"]);
        assert_eq!(wrapped("abcdefgh", 4), ["abcd", "efgh"]);
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(columns_of("翻訳 e\u{301}"), 6);
        assert_eq!(wrapped("翻訳モデル", 4), ["翻訳", "モデ", "ル"]);
        assert_eq!(wrapped("翻訳", 1), ["翻", "訳"], "a line has at least one character");
    }
}
