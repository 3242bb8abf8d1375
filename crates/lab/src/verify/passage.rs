//! The input that both programs read, as `scripts/verify_hf.py` makes it: a text with positions to compare, and a prompt to continue.

use anyhow::Result;

use spattn_model::tokenizer::Tokenizer;

/// The number of tokens that greedy decoding appends to the prompt.
pub(super) const NEW_TOKENS: usize = 24;
/// The most tokens that are read within the trained length.
const MOST_TOKENS: usize = 2048;
/// The number of tokens that are read beyond the trained length.
const BEYOND: usize = 64;
/// The prompt that is continued.
const PROMPT: &str =
    "The keeper of the lock wrote down every boat that passed: its name, its load and the hour. On the first day";

/// The input of both programs.
pub(super) struct Passage {
    /// A text.
    pub ids: Vec<u32>,
    /// The positions of the text that are compared, rising from 0.
    pub positions: Vec<usize>,
    /// The prompt that is continued.
    pub prompt: Vec<u32>,
    /// Why the text is shorter than wanted.
    pub cut: Option<String>,
}

impl Passage {
    /// Makes a text of `tokens` tokens; if `None`, of 64 more than the model was `trained` for, at most 2,112. `bound` limits the tokens,
    /// and gives the reason for it.
    ///
    /// # Errors
    /// If a text cannot be tokenised.
    pub(super) fn new(
        tokenizer: &Tokenizer,
        trained: Option<usize>,
        tokens: Option<usize>,
        bound: Option<(usize, &str)>,
    ) -> Result<Self> {
        let trained = trained.unwrap_or(MOST_TOKENS);
        let wanted = tokens.unwrap_or(trained.min(MOST_TOKENS) + BEYOND);
        let bound = bound.filter(|(most, _)| *most < wanted);
        let count = bound.map_or(wanted, |(most, _)| most);
        let ids = text(tokenizer, count)?;
        let mut prompt = tokenizer.encode_text(PROMPT, true)?;
        prompt.truncate(bound.map_or(usize::MAX, |(most, _)| most.saturating_sub(NEW_TOKENS).max(1)));
        Ok(Self {
            positions: chosen(ids.len(), trained),
            ids,
            prompt,
            cut: bound.map(|(most, why)| format!("{most} tokens instead of {wanted}: {why}")),
        })
    }
}

/// Returns paragraphs of which no two are equal.
fn text(tokenizer: &Tokenizer, count: usize) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    for i in 0..count {
        let (day, height, boats) = (i * 37 % 365 + 1, i * 7919 % 997, i * 31 % 17);
        let paragraph = format!(
            "Entry {i}. On day {day} the river stood {height} cm above the mark, and the keeper of the lock wrote: \u{201c}wind from the \
             west, water clear; {boats} boats passed before noon.\u{201d} He had counted them twice, as the rules asked, and put the book \
             back on its shelf. "
        );
        ids.extend(tokenizer.encode_text(&paragraph, ids.is_empty())?);
        if ids.len() >= count {
            break;
        }
    }
    ids.truncate(count);
    Ok(ids)
}

/// Returns the positions that are compared: the first few, powers of two, the end of the trained length, the last one.
fn chosen(tokens: usize, trained: usize) -> Vec<usize> {
    let powers = (0..usize::BITS).map(|power| 1 << power);
    let ends = [0, 3, trained.wrapping_sub(1), trained, tokens.wrapping_sub(1)];
    let mut all: Vec<usize> = ends.into_iter().chain(powers).filter(|position| *position < tokens).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_those_of_the_script() {
        assert_eq!(chosen(20, 10), [0, 1, 2, 3, 4, 8, 9, 10, 16, 19]);
        assert_eq!(chosen(2, 2048), [0, 1]);
        assert_eq!(chosen(0, 2048), [0_usize; 0]);
    }
}
