//! Words for keys and lists: by default from maintained crates, or the lists in a folder.
//!
//! RULER takes its adjective-noun keys and the words of its lists from the Python package wonderwords, whose lists are in no crate.
//! The adjectives, adverbs and animal names of `petname` with the plainest words of `random_word` give the same task with other
//! words. To use RULER's own words, put the three files of wonderwords into a folder.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use anyhow::Result;
use rayon::prelude::*;
use regex::Regex;
use sha2::{Digest, Sha256};

use crate::seed::Draw;
use spattn_base::error::UsageError;

/// The least number of words in the pool for lists.
const POOL: usize = 8_400;
/// The fewest words of a list; with fewer, examples would repeat themselves.
const LEAST_WORDS: usize = 10;
/// The fewest keys; with fewer, two needles would have the same key too often.
const LEAST_KEYS: usize = 1000;
const LIST_HINT: &str = "a word list folder holds nounlist.txt, adjectivelist.txt and verblist.txt, one word a line";
/// SHA-256 of `nounlist.txt` in wonderwords 3.0.1.
const WONDERWORDS_NOUNS: &str = "8d88b3ebc2e2969ed92ebe49cdb0c8a87c2ad3b27493d7afdff608f2e51c5bc9";
/// Beginnings of offensive words, which are left out: the large list is a dictionary for word games and contains them.
static BLOCKED: LazyLock<Regex> = LazyLock::new(|| {
    let lines = include_str!("../../tasks/text/blocked.txt").lines();
    let stems = lines.filter(|line| !line.starts_with('#') && !line.is_empty()).map(regex::escape);
    Regex::new(&stems.collect::<Vec<_>>().join("|")).expect("words, one or the other")
});
static PETNAMES: LazyLock<PlainNames> = LazyLock::new(PlainNames::gather);
static PLAIN_POOL: LazyLock<Vec<String>> = LazyLock::new(|| PETNAMES.pool());

/// Word lists: adjectives and nouns for keys, a pool of plain words for lists, and a long tail.
#[derive(Debug, Clone, Hash)]
pub struct Words {
    adjectives: Arc<[String]>,
    nouns: Arc<[String]>,
    pool: Pool,
    label: &'static str,
}

#[derive(Debug, Clone, Hash)]
enum Pool {
    /// [`PLAIN_POOL`], which is computed at first use, since most tasks have no lists.
    Plain,
    Read(Arc<[String]>),
}

impl Words {
    /// The offline default. Keys come from petname's medium lists; the pool holds these, petname's adverbs and the plainest words of
    /// `random_word`, some 8,400 words in total.
    pub fn from_crates() -> Self {
        let PlainNames { adjectives, nouns, .. } = &*PETNAMES;
        Self { adjectives: adjectives.clone(), nouns: nouns.clone(), pool: Pool::Plain, label: "petname" }
    }

    /// Lists read from `nounlist.txt`, `adjectivelist.txt` and `verblist.txt` in `folder`, with one word per line, as in wonderwords.
    /// The pool has all of these words, as in RULER.
    ///
    /// # Errors
    /// A [`UsageError`] naming the file if one is missing, unreadable or empty.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let nouns = read_list(folder, "nounlist.txt")?;
        let adjectives = read_list(folder, "adjectivelist.txt")?;
        let verbs = read_list(folder, "verblist.txt")?;
        let keys = adjectives.len() * nouns.len();
        if keys < LEAST_KEYS {
            let what = format!(
                "{}: {} adjectives and {} nouns make {keys} keys, too few for distinct needles",
                folder.display(),
                adjectives.len(),
                nouns.len()
            );
            return Err(UsageError::new(what).hint(format!("at least {LEAST_KEYS} are needed")).into());
        }
        let pool = sorted_set(nouns.iter().chain(&adjectives).chain(&verbs).cloned());
        let label = if is_wonderwords(folder) { "wonderwords" } else { "wordlists" };
        Ok(Self { adjectives: adjectives.into(), nouns: nouns.into(), pool: Pool::Read(pool.into()), label })
    }

    /// Where the words come from, for the record: `petname`, `wonderwords` or `wordlists`.
    pub fn label(&self) -> &'static str {
        self.label
    }

    /// Number of words in the pool for lists.
    pub fn pool_len(&self) -> usize {
        self.pool().len()
    }

    /// The words of the pool for lists.
    pub fn pool(&self) -> &[String] {
        match &self.pool {
            Pool::Plain => &PLAIN_POOL,
            Pool::Read(words) => words,
        }
    }

    /// An `adjective-noun` key; every pair is equally likely.
    pub fn key(&self, draw: &mut Draw) -> String {
        let adjective = draw.pick(&self.adjectives);
        let noun = draw.pick(&self.nouns);
        format!("{adjective}-{noun}")
    }

    /// All words for lists in random order: the pool, then (for very long lists only) the words of `random_word` that are not in it.
    /// A list of n words takes the first n.
    ///
    /// If the pool is too small, RULER takes *all* words of a list from a second dictionary. Here its words are added to the pool, so
    /// that the tokens of a list grow smoothly with its number of words.
    pub fn shuffled(&self, seed: u64, stream: u64) -> Shuffled<'_> {
        let mut draw = Draw::new(seed, stream);
        let mut order: Vec<&str> = self.pool().iter().map(String::as_str).collect();
        draw.shuffle(&mut order);
        Shuffled { words: self, order, draw, has_tail: false }
    }
}

/// Plain words of petname.
struct PlainNames {
    adjectives: Arc<[String]>,
    nouns: Arc<[String]>,
    adverbs: Vec<String>,
}

impl PlainNames {
    fn gather() -> Self {
        let petnames = petname::Petnames::medium();
        let list = |words: &[&str]| sorted_set(words.iter().filter(|w| is_plain(w)).map(|w| (*w).to_owned()));
        let [adjectives, nouns, adverbs] = [&petnames.adjectives, &petnames.nouns, &petnames.adverbs].map(|w| list(w));
        Self { adjectives: adjectives.into(), nouns: nouns.into(), adverbs }
    }

    /// All of these words, and the plainest words of the dictionary.
    fn pool(&self) -> Vec<String> {
        let mut pool = sorted_set(self.adjectives.iter().chain(&*self.nouns).chain(&self.adverbs).cloned());
        let known: HashSet<String> = pool.iter().cloned().collect();
        let missing = POOL.saturating_sub(pool.len());
        pool.extend(plainest_words().filter(|w| !known.contains(*w)).take(missing).map(str::to_owned));
        pool.sort_unstable();
        pool
    }
}

/// Words in random order, see [`Words::shuffled`].
#[derive(Debug)]
pub struct Shuffled<'a> {
    words: &'a Words,
    order: Vec<&'a str>,
    draw: Draw,
    has_tail: bool,
}

impl<'a> Shuffled<'a> {
    /// The first `count` words, or all there are.
    pub fn first(&mut self, count: usize) -> &[&'a str] {
        if count > self.order.len() && !self.has_tail {
            self.append_tail();
        }
        &self.order[..count.min(self.order.len())]
    }

    fn append_tail(&mut self) {
        self.has_tail = true;
        let pool: HashSet<&str> = self.words.pool().iter().map(String::as_str).collect();
        let mut tail: Vec<&'static str> = dictionary().filter(|w| !pool.contains(*w)).collect();
        self.draw.shuffle(&mut tail);
        self.order.extend(tail);
    }
}

/// Every word of the large dictionary that is not offensive, in its order.
pub fn dictionary_words() -> &'static [&'static str] {
    static ALL: LazyLock<Vec<&'static str>> = LazyLock::new(|| dictionary().collect());
    &ALL
}

/// The large dictionary without blocked, very short and very long words.
fn dictionary() -> impl Iterator<Item = &'static str> {
    random_word::all(random_word::Lang::En).iter().copied().filter(|w| is_plain(w))
}

/// Dictionary words of four to eight letters, those with the most derived words (plays, played, player, replay, …) first. The
/// dictionary has no frequencies, but common words have many derived ones.
fn plainest_words() -> impl Iterator<Item = &'static str> {
    let words = random_word::all(random_word::Lang::En);
    let all: HashSet<&str> = words.iter().copied().collect();
    let candidate = |w: &&str| (4..=8).contains(&w.len()) && !is_inflected(w, &all) && is_plain(w);
    let mut ranked: Vec<(usize, &'static str)> =
        words.par_iter().copied().filter(candidate).map(|w| (relatives(w, &all), w)).collect();
    ranked.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    ranked.into_iter().map(|(_, w)| w)
}

fn relatives(word: &str, all: &HashSet<&str>) -> usize {
    const ENDINGS: [&str; 18] = [
        "s", "es", "ed", "d", "ing", "er", "r", "ers", "rs", "ly", "ness", "able", "ful", "less", "like", "y", "man",
        "work",
    ];
    const BEGINNINGS: [&str; 9] = ["un", "re", "out", "over", "mis", "under", "pre", "sub", "inter"];
    let stem = word.strip_suffix('e').unwrap_or(word);
    // One buffer for a million look-ups.
    let mut joined = String::with_capacity(16);
    let mut is_word = |start: &str, end: &str| {
        joined.clear();
        joined.push_str(start);
        joined.push_str(end);
        all.contains(joined.as_str())
    };
    let endings = ENDINGS.iter().filter(|end| is_word(word, end)).count();
    let dropped_e = ["ing", "able", "y"].iter().filter(|end| stem != word && is_word(stem, end)).count();
    let beginnings = BEGINNINGS.iter().filter(|start| is_word(start, word)).count();
    endings + dropped_e + beginnings
}

/// Whether `word` looks like a plural or a past tense of another word.
fn is_inflected(word: &str, all: &HashSet<&str>) -> bool {
    ["s", "es", "ed", "d", "ing"].iter().any(|end| word.strip_suffix(end).is_some_and(|stem| all.contains(stem)))
}

fn is_plain(word: &str) -> bool {
    (3..=12).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase()) && !is_blocked(word)
}

fn is_blocked(word: &str) -> bool {
    BLOCKED.is_match(word)
}

fn sorted_set(words: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut words: Vec<String> = words.into_iter().collect();
    words.sort_unstable();
    words.dedup();
    words
}

fn read_list(folder: &Path, file: &str) -> Result<Vec<String>> {
    let path = folder.join(file);
    let text = super::read(&path).map_err(|e| UsageError { hint: e.hint.or(Some(LIST_HINT.to_owned())), ..e })?;
    let words: Vec<String> = text.lines().map(str::trim).filter(|w| !w.is_empty()).map(str::to_owned).collect();
    let words = sorted_set(words);
    if words.len() < LEAST_WORDS {
        let what = match words.len() {
            0 => format!("the word list {} is empty", path.display()),
            n => format!("the word list {} has {n} different words, fewer than {LEAST_WORDS}", path.display()),
        };
        return Err(UsageError::new(what).hint(LIST_HINT).into());
    }
    Ok(words)
}

fn is_wonderwords(folder: &Path) -> bool {
    std::fs::read(folder.join("nounlist.txt")).is_ok_and(|bytes| {
        let digest: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        digest == WONDERWORDS_NOUNS
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_pool_is_large_plain_and_without_repeats() {
        let words = Words::from_crates();
        assert!(words.pool_len() >= 8_000);
        let distinct: HashSet<&String> = words.pool().iter().collect();
        assert_eq!(distinct.len(), words.pool_len());
        assert!(words.pool().iter().all(|w| is_plain(w)));
        assert!(words.adjectives.len() * words.nouns.len() > 1_000_000, "keys must hardly ever repeat");
    }

    #[test]
    fn words_are_blocked_and_ranked_as_their_definitions_say() {
        let stems: Vec<&str> = include_str!("../../tasks/text/blocked.txt").lines().collect();
        let stems = || stems.iter().filter(|stem| !stem.is_empty() && !stem.starts_with('#'));
        assert!(stems().count() > 20 && stems().all(|stem| is_blocked(&format!("pre{stem}ing"))));
        let words = random_word::all(random_word::Lang::En);
        let all: HashSet<&str> = words.iter().copied().collect();
        let joined = |parts: [&str; 2]| usize::from(all.contains(parts.concat().as_str()));
        for word in words.iter().step_by(97) {
            assert_eq!(is_blocked(word), stems().any(|stem| word.contains(stem)), "{word}");
            let stem = word.strip_suffix('e');
            let endings = "s es ed d ing er r ers rs ly ness able ful less like y man work".split(' ');
            let expected: usize = endings.map(|end| joined([word, end])).sum::<usize>()
                + "un re out over mis under pre sub inter".split(' ').map(|start| joined([start, word])).sum::<usize>()
                + stem.map_or(0, |stem| ["ing", "able", "y"].map(|end| joined([stem, end])).iter().sum());
            assert_eq!(relatives(word, &all), expected, "{word}");
        }
    }

    #[test]
    fn lists_longer_than_the_pool_go_on_with_new_words() {
        let words = Words::from_crates();
        let mut shuffled = words.shuffled(3, 0);
        let short: Vec<String> = shuffled.first(500).iter().map(|w| w.to_string()).collect();
        let long = shuffled.first(20_000);
        assert_eq!(long.len(), 20_000);
        assert_eq!(long[..500].to_vec(), short);
        let distinct: HashSet<&&str> = long.iter().collect();
        assert_eq!(distinct.len(), long.len());
    }

    #[test]
    fn a_folder_gives_exactly_its_words() {
        let dir = tempfile::tempdir().unwrap();
        let list = |file: &str, start: &str, count: usize| {
            let words: String = (0..count).map(|i| format!("{start}{i}\n{start}{i}\n")).collect();
            std::fs::write(dir.path().join(file), words).unwrap();
        };
        list("nounlist.txt", "noun", 100);
        list("adjectivelist.txt", "red", 10);
        list("verblist.txt", "noun", 12);
        let words = Words::from_folder(dir.path()).unwrap();
        assert_eq!((words.pool_len(), words.nouns.len(), words.adjectives.len()), (110, 100, 10));
        assert_eq!(words.label(), "wordlists");
        let key = words.key(&mut Draw::new(0, 0));
        assert!(key.starts_with("red") && key.contains("-noun"), "{key}");
        for (file, start, count, what) in [
            ("nounlist.txt", "noun", 99, "990 keys, too few"),
            ("nounlist.txt", "noun", 1, "nounlist.txt has 1 different words"),
            ("verblist.txt", "verb", 9, "verblist.txt has 9 different words"),
        ] {
            list("nounlist.txt", "noun", 100);
            list(file, start, count);
            let error = Words::from_folder(dir.path()).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn a_missing_list_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = Words::from_folder(dir.path()).unwrap_err();
        assert!(error.to_string().contains("nounlist.txt"), "{error}");
        std::fs::write(dir.path().join("nounlist.txt"), "\n\n").unwrap();
        assert!(Words::from_folder(dir.path()).unwrap_err().to_string().contains("empty"));
    }

    #[test]
    fn wonderwords_lists_are_recognised() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/wordlists"));
        if !folder.is_dir() {
            eprintln!("skipped: no folder {}", folder.display());
            return;
        }
        let words = Words::from_folder(folder).unwrap();
        assert_eq!(words.label(), "wonderwords");
        assert_eq!((words.nouns.len(), words.adjectives.len(), words.pool_len()), (6_782, 910, 8_166));
    }
}
