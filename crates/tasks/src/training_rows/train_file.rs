//! `training_rows.toml`: the share of each family of rows, and the hand-written wordings.

use std::sync::LazyLock;

use serde::Deserialize;

pub(crate) static FILE: LazyLock<TrainFile> = LazyLock::new(|| {
    // The file is embedded, so a mistake in it is ours, and the tests find it.
    toml::from_str(include_str!("../../tasks/training_rows.toml")).expect("training_rows.toml is well-formed")
});

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrainFile {
    pub family: Vec<FamilyShare>,
    /// Examples exactly as the tasks make them.
    #[serde(rename = "shaped")]
    pub task_examples: TaskExampleShares,
    pub wording: Wording,
    pub kv: RecordText,
    pub passkey: RecordText,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FamilyShare {
    pub name: String,
    /// Relative frequency among the families that fit the length.
    pub share: usize,
    /// The shortest rows, in tokens, that may be of this family.
    pub from: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskExampleShares {
    pub share: usize,
    pub from: usize,
    /// Names of tasks, and their relative frequencies.
    pub tasks: Vec<(String, usize)>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wording {
    /// Percentage of rows with a wording other than the published one.
    pub percent: usize,
    /// Percentage of these rows whose wording is drawn word by word.
    pub drawn: usize,
    /// Frequent words, from which drawn wordings are made.
    pub words: Vec<String>,
    /// Forms of a list item, with `{number}` and `{word}`.
    pub items: Vec<String>,
    /// Forms of a document, with `{i}` and `{document}`.
    pub frames: Vec<String>,
    pub needles: Vec<NeedleWording>,
    pub chains: Vec<ChainWording>,
    pub common: Vec<ListWording>,
    pub frequent: Vec<ListWording>,
    pub documents: Vec<DocumentWording>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NeedleWording {
    pub intro: String,
    pub statement: String,
    pub ask: String,
    pub prefix: String,
    pub ask_all: String,
    pub prefix_all: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChainWording {
    pub intro: String,
    pub first: String,
    pub link: String,
    pub ask: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListWording {
    pub intro: String,
    pub ask: String,
    /// One word of the list.
    #[serde(default = "numbered_item")]
    pub item: String,
}

pub(crate) fn numbered_item() -> String {
    "{number}. {word}".to_owned()
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DocumentWording {
    pub intro: String,
    pub ask: String,
    pub prefix: String,
    /// A document and its number.
    #[serde(default = "numbered_document")]
    pub frame: String,
}

fn numbered_document() -> String {
    "Document {i}:\n{document}".to_owned()
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordText {
    pub context: String,
    #[serde(default)]
    pub statement: String,
    pub ask: String,
}
