//! How much work a text is, and the most memory that it takes.

use super::{Piece, TextTokenizer, allowance, bounded};

/// Memory for each token that stays, beside that of [`allowance`]: the library copies it to join it with others.
const JOINED_BYTES_OF_A_TOKEN: usize = 320;

/// Memory for a piece: itself and its text.
const PIECE_BYTES: usize = size_of::<Piece>() + 16;

/// Memory for each byte of text while the places of pieces are counted in characters.
const PLACES_BYTES: usize = 64;

/// The time of a row beside that for its text, as that of so many bytes of text.
const ROW_WORK_BYTES: usize = 16;

/// A row of at most this many bytes takes some hundredths of a second.
const USUAL_ROW_BYTES: usize = 64 << 10;

/// A word that is divided takes as long as one byte of usual text for so much of the square of its characters.
const WORK_OF_A_SQUARE: usize = 4;

impl TextTokenizer {
    /// Returns about how many bytes of usual text take as long as a row of these texts, one after the other. Of texts
    /// that are long anyway, only the lengths are looked at.
    pub fn work(&self, texts: &[&str], is_pair: bool) -> usize {
        let bytes = texts.iter().map(|text| text.len()).fold(ROW_WORK_BYTES, usize::saturating_add);
        if bytes > USUAL_ROW_BYTES {
            return bytes;
        }
        texts.iter().map(|text| self.words_work(text)).fold(bytes + self.added(is_pair), usize::saturating_add)
    }

    /// Words that are divided take time by the square of their length.
    fn words_work(&self, text: &str) -> usize {
        let Some(longest) = bounded::longest_divided_word(&self.tokenizer.get_model().0) else { return 0 };
        let words = text.split(|character: char| character.is_ascii() && !character.is_ascii_alphanumeric());
        let of_word = |word: &str| word.chars().count().min(longest).pow(2) / WORK_OF_A_SQUARE;
        words.map(of_word).fold(0, usize::saturating_add)
    }

    /// Returns the most tokens that stay of a text of this many bytes, or of a pair.
    pub fn most_tokens(&self, text: usize, pair: Option<usize>) -> usize {
        let of_pair = pair.map_or(0, allowance::most_tokens);
        let all = allowance::most_tokens(text).saturating_add(of_pair).saturating_add(self.added(pair.is_some()));
        all.min(self.options.max_tokens)
    }

    /// Returns the most memory, in bytes, that a text of this many bytes takes while it is tokenized, or a pair. What
    /// stays of it is [`Self::most_tokens`].
    pub fn most_bytes(&self, text: usize, pair: Option<usize>) -> usize {
        self.joined_bytes(text.saturating_add(pair.unwrap_or(0)), self.most_tokens(text, pair))
    }

    fn joined_bytes(&self, text: usize, tokens: usize) -> usize {
        let of_tokens = tokens.saturating_mul(JOINED_BYTES_OF_A_TOKEN);
        let of_names = self.added_names_bytes.saturating_mul(allowance::NAMES);
        allowance::most_bytes(text).saturating_add(of_tokens).saturating_add(of_names)
    }

    /// Returns the most memory, in bytes, that all pieces of texts of these bytes take, with that for making them.
    pub fn pieces_bytes(&self, texts: impl Iterator<Item = usize>) -> usize {
        let (mut pieces, mut work) = (0_usize, 0);
        for text in texts {
            let count = allowance::most_tokens(text).saturating_add(self.added(false));
            pieces = pieces.saturating_add(count.saturating_mul(PIECE_BYTES)).saturating_add(self.added_names_bytes);
            let places = text.saturating_mul(PLACES_BYTES);
            work = work.max(self.joined_bytes(text, count).saturating_add(places));
        }
        pieces.saturating_add(work)
    }
}
