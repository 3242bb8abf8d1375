//! What passes between the harness and a command: one line of JSON, then arrays of 32-bit floats.
//!
//! `docs/external-methods.md` describes it for authors of commands. Nothing here starts a process or waits for one.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use spattn_base::error::in_plain_words;

/// Version of the protocol.
pub(super) const PROTOCOL: u64 = 1;

/// The longest line of an answer, in bytes: a selection of a million tokens in each of eight query heads.
pub(super) const LONGEST_LINE: usize = 64 << 20;

/// A request to a command.
pub(super) struct Message {
    fields: Map<String, Value>,
    shapes: Map<String, Value>,
    numbers: Vec<u8>,
}

impl Message {
    /// A message of a kind, with its fields.
    pub fn new(kind: &str, fields: Value) -> Self {
        let mut all = Map::from_iter([("type".to_owned(), kind.into())]);
        let Value::Object(fields) = fields else { unreachable!("fields are an object") };
        all.extend(fields);
        Self { fields: all, shapes: Map::new(), numbers: Vec::new() }
    }

    /// The first message, which the command answers with its [`Hello`].
    pub fn hello() -> Self {
        Self::new("hello", json!({ "protocol": PROTOCOL }))
    }

    /// Says that a prefix will not be asked for again; there is no answer.
    pub fn forget(prefix: u64) -> Self {
        Self::new("forget", json!({ "prefix": prefix }))
    }

    /// Adds a matrix `[rows][columns]`.
    pub fn with(mut self, name: &str, columns: usize, numbers: &[f32]) -> Self {
        self.shapes.insert(name.to_owned(), json!([numbers.len() / columns, columns]));
        self.numbers.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
        self
    }

    /// The bytes of the message.
    pub fn into_bytes(self) -> Vec<u8> {
        let Self { mut fields, shapes, numbers } = self;
        fields.insert("arrays".to_owned(), shapes.into());
        fields.insert("bytes".to_owned(), numbers.len().into());
        let mut bytes = Value::Object(fields).to_string().into_bytes();
        bytes.push(b'\n');
        bytes.extend(numbers);
        bytes
    }
}

/// What a command answers to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Answers {
    /// A score for each candidate: the harness selects by them.
    Scores,
    /// The selected candidates.
    Tokens,
}

/// What a command says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Hello {
    protocol: u64,
    /// Its name, for tables.
    pub name: String,
    /// Its version: records of two versions are never mixed.
    pub version: String,
    /// What it answers.
    pub answers: Answers,
    /// Whether it needs values too.
    #[serde(default)]
    pub values: bool,
}

impl Hello {
    /// Reads and checks a hello.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(line: &str) -> Result<Self, String> {
        let hello: Self = read(line)?;
        if hello.protocol != PROTOCOL {
            return Err(format!("it speaks protocol {}, and this program {PROTOCOL}", hello.protocol));
        }
        for (field, word) in [("name", &hello.name), ("version", &hello.version)] {
            check_word(word).map_err(|why| format!("its {field} {why}"))?;
        }
        Ok(hello)
    }
}

/// Checks a name or a version, which stand in tables and in specs.
fn check_word(word: &str) -> Result<(), String> {
    const LONGEST: usize = 40;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    match !word.is_empty() && word.len() <= LONGEST && word.chars().all(is_plain) && !word.contains("..") {
        true => Ok(()),
        false => Err(format!("has to be 1 to {LONGEST} letters, digits, `_`, `-` or `.`")),
    }
}

/// Reads a line of JSON; an object with `error` is the command's own error.
fn read<'l, T: Deserialize<'l>>(line: &'l str) -> Result<T, String> {
    #[derive(Deserialize)]
    struct OwnError {
        error: String,
    }
    if let Ok(OwnError { error }) = serde_json::from_str(line) {
        return Err(format!("it reports: {error}"));
    }
    serde_json::from_str(line)
        .map_err(|e| format!("its answer is not as the protocol says: {}", in_plain_words(&e.to_string())))
}

/// Reads the answer to a prefix: any object.
///
/// # Errors
/// If it is something else, or an error of the command.
pub(super) fn read_ready(line: &str) -> Result<(), String> {
    read::<Map<String, Value>>(line).map(drop)
}

/// Reads the shape `[lists][candidates]` of scores; returns the number of lists: `heads` (one a query head), or 1 for all.
///
/// # Errors
/// If the shape is different.
pub(super) fn read_scores_shape(line: &str, heads: usize, candidates: usize) -> Result<usize, String> {
    #[derive(Deserialize)]
    struct Shape {
        scores: [usize; 2],
    }
    let [lists, length] = read::<Shape>(line)?.scores;
    check_lists(lists, heads)?;
    match length == candidates {
        true => Ok(lists),
        false => Err(format!("it gave {length} scores for {candidates} candidates")),
    }
}

/// Reads scores `[lists][candidates]` from bytes.
///
/// # Errors
/// If a score is not a number, or is positive infinity.
pub(super) fn read_scores(bytes: &[u8], candidates: usize) -> Result<Vec<f32>, String> {
    let (numbers, _) = bytes.as_chunks::<4>();
    let scores: Vec<f32> = numbers.iter().map(|number| f32::from_le_bytes(*number)).collect();
    match scores.iter().position(|score| score.is_nan() || *score == f32::INFINITY) {
        None => Ok(scores),
        Some(at) => Err(format!(
            "its score of candidate {} for query head {} is {}",
            at % candidates,
            at / candidates,
            scores[at]
        )),
    }
}

/// Reads the selected candidates of each of `heads` query heads, or one list for all, each in ascending order.
///
/// # Errors
/// If a candidate does not exist, or is listed twice.
pub(super) fn read_tokens(line: &str, heads: usize, candidates: usize) -> Result<Vec<Vec<u32>>, String> {
    #[derive(Deserialize)]
    struct Tokens {
        tokens: Vec<Vec<i64>>,
    }
    let lists = read::<Tokens>(line)?.tokens;
    check_lists(lists.len(), heads)?;
    lists.iter().map(|list| check_tokens(list, candidates)).collect()
}

fn check_lists(lists: usize, heads: usize) -> Result<(), String> {
    match lists == heads || lists == 1 {
        true => Ok(()),
        false => Err(format!("it gave {lists} lists for {heads} query heads: give one for each, or one for all")),
    }
}

fn check_tokens(list: &[i64], candidates: usize) -> Result<Vec<u32>, String> {
    let mut seen = HashSet::with_capacity(list.len());
    let check = |token: &i64| match u32::try_from(*token).ok().filter(|token| (*token as usize) < candidates) {
        None => Err(format!("it selected candidate {token} of {candidates}, counted from 0")),
        Some(token) if !seen.insert(token) => Err(format!("it selected candidate {token} twice")),
        Some(token) => Ok(token),
    };
    let mut tokens: Vec<u32> = list.iter().map(check).collect::<Result<_, String>>()?;
    tokens.sort_unstable();
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_line_and_the_numbers_behind_it() {
        let message = Message::new("step", json!({ "prefix": 7 })).with("queries", 2, &[1.0, -2.0, 0.5, 0.0]);
        let bytes = message.into_bytes();
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        let line = r#"{"type":"step","prefix":7,"arrays":{"queries":[2,2]},"bytes":16}"#;
        assert_eq!(std::str::from_utf8(&bytes[..end]).unwrap(), line);
        assert_eq!(&bytes[end + 1..], [0, 0, 128, 63, 0, 0, 0, 192, 0, 0, 0, 63, 0, 0, 0, 0]);
    }

    #[test]
    fn a_hello_says_what_records_are_known_by() {
        let hello =
            Hello::parse(r#"{"protocol":1,"name":"mine","version":"2.1","answers":"tokens","more":0}"#).unwrap();
        let expected =
            Hello { protocol: 1, name: "mine".into(), version: "2.1".into(), answers: Answers::Tokens, values: false };
        assert_eq!(hello, expected);
        for (line, why) in [
            ("hello", "expected a value"),
            (r#"{"protocol":2,"name":"m","version":"1","answers":"tokens"}"#, "speaks protocol 2, and this program 1"),
            (r#"{"protocol":1,"name":"a b","version":"1","answers":"tokens"}"#, "its name has to be"),
            (r#"{"protocol":1,"name":"m","version":"","answers":"tokens"}"#, "its version has to be"),
            (r#"{"protocol":1,"name":"m","version":"1","answers":"picks"}"#, "unknown value `picks`"),
            (r#"{"protocol":1,"name":"m","answers":"tokens"}"#, "missing field `version`"),
            (r#"{"error":"no CUDA"}"#, "it reports: no CUDA"),
        ] {
            let error = Hello::parse(line).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn selections_are_checked_and_sorted() {
        let read = |line: &str| read_tokens(line, 2, 10);
        assert_eq!(read(r#"{"tokens":[[9,0],[]]}"#).unwrap(), [vec![0, 9], vec![]]);
        assert_eq!(read(r#"{"tokens":[[3]]}"#).unwrap(), [[3]]);
        for (line, why) in [
            (r#"{"tokens":[[10],[0]]}"#, "candidate 10 of 10"),
            (r#"{"tokens":[[-1],[0]]}"#, "candidate -1 of 10"),
            (r#"{"tokens":[[4294967296],[0]]}"#, "candidate 4294967296 of 10"),
            (r#"{"tokens":[[1,1],[0]]}"#, "candidate 1 twice"),
            (r#"{"tokens":[[1],[1],[1]]}"#, "3 lists for 2 query heads"),
            (r#"{"tokens":[[1.5],[1]]}"#, "not as the protocol says"),
            (r#"{"scores":[2,10]}"#, "missing field `tokens`"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn scores_are_checked() {
        assert_eq!(read_scores_shape(r#"{"scores":[2,10]}"#, 2, 10), Ok(2));
        assert_eq!(read_scores_shape(r#"{"scores":[1,10]}"#, 2, 10), Ok(1));
        assert!(read_scores_shape(r#"{"scores":[3,10]}"#, 2, 10).unwrap_err().contains("3 lists for 2"));
        assert!(read_scores_shape(r#"{"scores":[2,9]}"#, 2, 10).unwrap_err().contains("9 scores for 10 candidates"));
        let bytes = |scores: &[f32]| scores.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let fine = [1.0, f32::NEG_INFINITY, -0.0, 3.5];
        assert_eq!(read_scores(&bytes(&fine), 2).unwrap(), fine);
        for (wrong, named) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
            let error = read_scores(&bytes(&[1.0, 0.0, 2.0, wrong]), 2).unwrap_err();
            assert_eq!(error, format!("its score of candidate 1 for query head 1 is {named}"));
        }
    }
}
