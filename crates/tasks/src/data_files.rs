//! The files that any task looks for in a data folder.

use super::assets::{
    BOOK_TEXTS, ESSAY_FILES, ESSAY_TEXTS, HOTPOTQA, HOTPOTQA_FILES, LONGBENCH_ARCHIVES, LONGBENCH_FILES, PG19, SQUAD,
    WIKITEXT2, WORD_LISTS,
};
use super::templated::{choice, generation};
use super::{long_sets, longbench};

/// The paths of all files that tasks look for in a data folder; `*` stands for a part of a file name. For a file in an archive,
/// this is the archive's path.
pub fn patterns() -> Vec<&'static str> {
    let longbench = longbench::file_names().collect::<Vec<_>>();
    let longbench = [LONGBENCH_FILES, LONGBENCH_ARCHIVES, &longbench];
    let ruler = [ESSAY_FILES, ESSAY_TEXTS, BOOK_TEXTS, WORD_LISTS, SQUAD, HOTPOTQA_FILES, HOTPOTQA];
    let texts = [WIKITEXT2, PG19];
    let fixed = [ruler.concat(), longbench.concat(), texts.concat()].concat();
    let all = fixed.into_iter().chain(choice::patterns()).chain(generation::patterns()).chain(long_sets::patterns());
    all.map(|pattern| pattern.split_once(".zip/").map_or(pattern, |(name, _)| &pattern[..name.len() + 4])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fetches_is_told_all_that_is_looked_for() {
        let all = patterns();
        for wanted in ["PaulGrahamEssays.json", "essays/*.txt", "wordlists/*.txt", "squad/dev-v2.0.json"] {
            assert!(all.contains(&wanted), "{wanted}");
        }
        // Downloads support no other patterns.
        let name = |pattern: &'static str| pattern.rsplit('/').next().unwrap();
        assert!(all.iter().all(|p| p.matches('*').count() == name(p).matches('*').count().min(1)), "{all:?}");
    }
}
