//! The papers' tables and figures: what is run for each, the published numbers, and tests of the claims.
//!
//! An item is one file, `configs/papers/PAPER/ITEM.toml` ([`item`], [`claim`]). From a run's records, [`measure`] makes the cells of its
//! table ([`run_of`] says which rows a model's numbers belong to); [`claims`] defines the tests, [`outcome`] joins cells and tests with the
//! published numbers, and [`verdicts`] judges the claims. Numbers that are not scores come from analyses ([`seen`]), calibrations
//! ([`learning`]), timings ([`times`]) or other cells ([`derived`]). Only [`calibrations`] runs a model, and nothing here draws.

pub mod calibrations;
pub mod claim;
pub mod claims;
pub mod counts;
pub mod derived;
pub mod equal;
pub mod equal_rows;
pub mod experiment;
pub mod findings;
pub mod floor;
pub mod item;
pub mod judging;
pub mod learning;
pub mod measure;
pub mod more;
pub mod numbers;
pub mod outcome;
pub mod progress;
pub mod real_models;
pub mod run_of;
pub mod seen;
pub mod setting_lines;
pub mod times;
pub mod values;
pub mod variant;
pub mod verdicts;

use self::item::Item;
use spattn_base::error::UsageError;

/// A paper with items.
#[derive(Debug)]
pub struct Paper {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its title, as cited.
    pub title: &'static str,
}

/// The papers, in the order in which their items are listed.
pub const PAPERS: [Paper; 5] = [
    Paper { name: "magicpig", title: "MagicPIG (Chen et al. 2024)" },
    Paper { name: "hashattention", title: "HashAttention (Desai et al. 2024)" },
    Paper { name: "double-sparsity", title: "Double Sparsity (Yang et al. 2024)" },
    Paper { name: "topk", title: "Top-k attention over a vector database (Synk et al. 2025)" },
    Paper { name: "hip", title: "HiP attention (Lee et al. 2024)" },
];

/// What items over all papers have in place of a paper's name.
pub const ACROSS: &str = "all";

/// An item's file.
#[derive(Debug, Clone, Copy)]
pub struct Shipped {
    /// `PAPER/ITEM`.
    pub name: &'static str,
    /// The file's text.
    pub text: &'static str,
}

macro_rules! items {
    ($($name:literal,)*) => {
        &[$(Shipped { name: $name, text: include_str!(concat!("../../papers/", $name, ".toml")) },)*]
    };
}

/// All items: those over all papers, then paper by paper, tables before figures.
pub const ITEMS: &[Shipped] = items![
    "all/table-1",
    "magicpig/table-1",
    "magicpig/table-2",
    "magicpig/table-3",
    "magicpig/table-4",
    "magicpig/table-5",
    "magicpig/table-6",
    "magicpig/table-7",
    "magicpig/table-8",
    "magicpig/table-9",
    "magicpig/table-10",
    "magicpig/table-11",
    "magicpig/table-12",
    "magicpig/figure-1",
    "magicpig/figure-2",
    "magicpig/figure-3",
    "magicpig/figure-4",
    "magicpig/figure-5",
    "magicpig/figure-7",
    "magicpig/figure-8",
    "magicpig/figure-9",
    "magicpig/figure-10",
    "magicpig/figure-11",
    "hashattention/table-1",
    "hashattention/table-2",
    "hashattention/table-4",
    "hashattention/table-5",
    "hashattention/table-3",
    "hashattention/table-6",
    "hashattention/table-7",
    "hashattention/table-8",
    "hashattention/table-9",
    "hashattention/figure-1",
    "hashattention/figure-4",
    "hashattention/figure-3",
    "hashattention/figure-6",
    "hashattention/figure-5",
    "double-sparsity/table-1",
    "double-sparsity/table-2",
    "double-sparsity/table-3",
    "double-sparsity/table-4",
    "double-sparsity/figure-2",
    "double-sparsity/figure-3",
    "double-sparsity/figure-4",
    "double-sparsity/figure-5",
    "double-sparsity/figure-6",
    "double-sparsity/figure-7",
    "double-sparsity/figure-8",
    "double-sparsity/figure-9",
    "topk/table-1",
    "topk/table-2",
    "topk/table-3",
    "topk/figure-2",
    "topk/figure-6",
    "topk/figure-3",
    "topk/figure-4",
    "topk/figure-5",
    "topk/figure-9",
    "topk/figure-10",
    "topk/figure-7",
    "topk/figure-8",
    "topk/figure-11",
    "topk/figure-12",
    "hip/table-1-dense-prefill",
    "hip/table-1-sparse-prefill",
    "hip/table-2-dense-prefill",
    "hip/table-2-sparse-prefill",
    "hip/table-3",
    "hip/table-3-sparse-prefill",
    "hip/table-4",
    "hip/table-5",
    "hip/table-6",
    "hip/table-7",
    "hip/table-8",
    "hip/table-9",
    "hip/table-10",
    "hip/table-13",
    "hip/table-14",
    "hip/table-15",
    "hip/table-16",
    "hip/table-17",
    "hip/figure-5",
    "hip/figure-10",
    "hip/figure-11",
    "hip/figure-12",
    "hip/figure-13",
    "hip/figure-14",
    "hip/figure-15",
    "hip/figure-16",
    "hip/figure-6",
    "hip/figure-7",
    "hip/figure-8",
    "hip/figure-17",
    "hip/figure-18",
    "hip/figure-19",
    "hip/figure-20",
    "hip/figure-25",
];

impl Shipped {
    /// The paper's name.
    pub fn paper(&self) -> &'static str {
        self.name.split_once('/').map_or(self.name, |(paper, _)| paper)
    }

    /// The table's or figure's name, such as `table-3`.
    pub fn item_name(&self) -> &'static str {
        self.name.split_once('/').map_or(self.name, |(_, item)| item)
    }

    /// The parsed item.
    ///
    /// # Errors
    /// As [`Item::parse`]; never for shipped items, which a test checks.
    pub fn parse(&self) -> Result<Item, UsageError> {
        Item::parse(self.text, &format!("configs/papers/{}.toml", self.name))
    }
}

/// Returns the key that orders an item within its paper: tables before figures, each by number.
pub fn order_of(item_name: &str) -> (bool, usize, &str) {
    let (kind, rest) = item_name.split_once('-').unwrap_or((item_name, ""));
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    (kind != "table", rest[..digits].parse().unwrap_or(usize::MAX), rest)
}

/// Returns an item's name in words: `Table 1, dense prefill`.
pub fn title_of(item_name: &str) -> String {
    let mut parts = item_name.split('-');
    let first = parts.next().unwrap_or_default();
    let mut title = first.get(..1).unwrap_or_default().to_uppercase() + first.get(1..).unwrap_or_default();
    title.extend(parts.next().map(|number| format!(" {number}")));
    let rest: Vec<&str> = parts.collect();
    if rest.is_empty() { title } else { format!("{title}, {}", rest.join(" ")) }
}

/// Returns the items of a paper, or a single `PAPER/ITEM`; all items without a name.
///
/// # Errors
/// If the name is unknown.
pub fn select(name: Option<&str>) -> Result<Vec<Shipped>, UsageError> {
    let Some(name) = name else { return Ok(ITEMS.to_vec()) };
    let found: Vec<Shipped> = ITEMS.iter().copied().filter(|item| item.name == name || item.paper() == name).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let known = PAPERS.iter().map(|paper| paper.name).chain([ACROSS]).chain(ITEMS.iter().map(|item| item.name));
    Err(match name.split_once('/') {
        Some((paper, item)) if PAPERS.iter().any(|p| p.name == paper) => {
            let of_paper = ITEMS.iter().filter(|item| item.paper() == paper).map(Shipped::item_name);
            UsageError::unknown(&format!("item of {paper}"), item, of_paper)
        }
        _ => UsageError::unknown("paper", name, known),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::item::Variant;
    use super::real_models::RealModel;
    use super::*;
    use spattn_eval::config::run_config::RunConfig;

    #[test]
    fn every_file_is_shipped_and_parses() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("papers");
        let mut files = BTreeSet::new();
        let papers = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        for paper in papers.filter(|path| path.is_dir()) {
            let name = paper.file_name().unwrap().to_string_lossy().into_owned();
            for file in std::fs::read_dir(&paper).unwrap() {
                files.insert(format!("{name}/{}", file.unwrap().path().file_stem().unwrap().to_string_lossy()));
            }
        }
        assert_eq!(files, ITEMS.iter().map(|item| item.name.to_owned()).collect::<BTreeSet<_>>());
        let wrong: Vec<String> = ITEMS.iter().filter_map(|shipped| shipped.parse().err().map(|e| e.what)).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        for shipped in ITEMS {
            let item = shipped.parse().unwrap_or_else(|e| panic!("{}", e.what));
            let is_known = PAPERS.iter().any(|paper| paper.name == shipped.paper()) || shipped.paper() == ACROSS;
            assert!(is_known, "{}", shipped.name);
            for variant in Variant::ALL {
                let Some(settings) = item.settings(variant) else { continue };
                let configs = RunConfig::resolve(settings).unwrap();
                assert!(!configs[0].methods.is_empty(), "{}", shipped.name);
                let is_of = |config: &RunConfig| match variant {
                    Variant::Paper => config.model != "builtin" && RealModel::find(&config.model).is_err(),
                    Variant::Builtin => config.model == "builtin",
                    Variant::Real => RealModel::find(&config.model).is_ok(),
                };
                assert!(configs.iter().all(is_of), "{}: {variant:?}", shipped.name);
            }
        }
    }

    #[test]
    fn every_table_and_figure_has_a_file_or_is_listed_without_one() {
        let page = include_str!("../../../../docs/papers.md");
        let numbers = [
            ("magicpig", 12, 11),
            ("hashattention", 9, 6),
            ("double-sparsity", 4, 9),
            ("topk", 3, 12),
            ("hip", 18, 25),
        ];
        let all = numbers.into_iter().flat_map(|(paper, tables, figures)| {
            let tables = (1..=tables).map(move |n| format!("{paper}/table-{n}"));
            tables.chain((1..=figures).map(move |n| format!("{paper}/figure-{n}")))
        });
        for name in all {
            let half = format!("{name}-");
            let has_file = ITEMS.iter().any(|item| item.name == name || item.name.starts_with(&half));
            let is_listed = page.contains(&format!("| `{name}` |"));
            assert!(has_file != is_listed, "{name}: file {has_file}, listed {is_listed}");
        }
    }

    #[test]
    fn every_claim_says_where_the_paper_has_it() {
        for shipped in ITEMS {
            for claim in shipped.parse().unwrap().claims {
                let words = claim.quote.as_deref().unwrap_or_default().split_whitespace().count();
                assert!((1..=26).contains(&words), "{}: {}: a quote of {words} words", shipped.name, claim.says);
                assert!(claim.place.is_some(), "{}: {}", shipped.name, claim.says);
            }
        }
    }

    /// The number of tokens of WikiText-2's test file in Llama-2's tokenizer, without BOS. Each window begins with a BOS token.
    const WIKITEXT2: usize = 335_687;

    #[test]
    fn a_run_of_all_windows_has_as_many_as_the_text() {
        let mut found = Vec::new();
        for shipped in ITEMS {
            let item = shipped.parse().unwrap();
            let is_of_all = |differs: &&claim::Differs| differs.because.starts_with("all windows of the text");
            let Some(stated) = item.differs.iter().find(is_of_all) else { continue };
            let run = item.settings(Variant::Paper).unwrap();
            let windows = WIKITEXT2 / (run.lengths.unwrap()[0] - 1);
            assert_eq!((run.samples, stated.here.clone()), (Some(windows), windows.to_string()), "{}", shipped.name);
            found.push(shipped.name);
        }
        assert_eq!(found, ["hip/table-9", "hip/table-13", "hip/figure-18", "hip/figure-19", "hip/figure-25"]);
    }

    #[test]
    fn items_are_in_the_order_of_their_numbers() {
        let mut names = ["figure-2", "table-10", "table-2", "table-1-sparse-prefill", "table-1-dense-prefill", "own"];
        names.sort_by_key(|name| order_of(name));
        let sorted = ["table-1-dense-prefill", "table-1-sparse-prefill", "table-2", "table-10", "figure-2", "own"];
        assert_eq!(names, sorted);
        assert_eq!(title_of("table-1-dense-prefill"), "Table 1, dense prefill");
        assert_eq!(title_of("figure-12"), "Figure 12");
    }

    #[test]
    fn items_are_found_by_paper_and_by_name() {
        let item = ITEMS[0];
        assert_eq!(select(Some(item.name)).unwrap().len(), 1);
        assert!(select(Some(item.paper())).unwrap().iter().all(|i| i.paper() == item.paper()));
        assert_eq!(select(None).unwrap().len(), ITEMS.len());
        assert_eq!(select(Some("magicpg")).unwrap_err().hint.unwrap(), "did you mean `magicpig`?");
        let error = select(Some("magicpig/table-99")).unwrap_err();
        assert!(error.what.contains("`table-99`") && error.hint.is_some(), "{error:?}");
    }
}
