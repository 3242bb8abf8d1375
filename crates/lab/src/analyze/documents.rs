//! How attention is spread over the documents of a prompt (Top-k Fig. 4).
//!
//! Applies to prompts with numbered documents (RULER's question answering and its synthetic stand-in). A document's share is the sum of the
//! weights of its tokens over the sum for all documents' tokens; sink and question do not count. The right document is the one that holds
//! an answer and has most in common with the question, where rare words count more than common ones. Shares are averaged over queries and
//! heads before documents are compared, so "the greatest of the others" is one document, not a maximum over noise.

use anyhow::Result;

use super::document_parts::Part;
use super::findings::{Drawing, Lines, Panel, Point, Table, Tally, Unit};
use super::head::{Head, Query, softmax};
use super::{Analysis, Document, Findings, Observation};

pub(super) const ANALYSIS: Analysis = Analysis {
    name: "documents",
    about: "how attention is divided among the documents of a prompt: the right one against the others",
    reference: "Top-k Fig. 4",
    methods: &[],
    start: |_| Ok(Box::new(Documents::default())),
};

/// The share of the right document, the mean and greatest share of the others, and the right document's share of the tokens.
const NUMBERS: [(&str, Unit); 4] = [
    ("right", Unit::Share),
    ("mean of the others", Unit::Share),
    ("greatest of the others", Unit::Share),
    ("right one's tokens", Unit::Share),
];

#[derive(Default)]
struct Documents {
    /// Sums by layer, stored under head 0.
    by_layer: Tally,
    /// Sums over all layers, stored under layer 0 and head 0.
    overall: Tally,
    /// The number of prompts used, and the number skipped because they have no documents or no unique right one.
    seen: usize,
    without: usize,
}

impl Observation for Documents {
    fn observe(&mut self, document: &Document) -> Result<()> {
        let parts = &document.parts;
        if parts.iter().filter(|part| part.is_right).count() != 1 || parts.len() < 2 {
            self.without += 1;
            return Ok(());
        }
        self.seen += 1;
        let looked = document.each_head(|head| {
            let of_queries = head.queries.iter().map(|query| shares(head, query, parts));
            (head.layer, mean(&of_queries.collect::<Vec<_>>()))
        })?;
        let mut layers = Vec::new();
        for layer in &document.layers {
            let heads: Vec<Vec<f64>> =
                looked.iter().filter(|(of, _)| of == layer).map(|(_, shares)| shares.clone()).collect();
            let of_layer = mean(&heads);
            self.by_layer.add(&document.task, *layer, 0, &compared(&of_layer, parts));
            layers.push(of_layer);
        }
        self.overall.add(&document.task, 0, 0, &compared(&mean(&layers), parts));
        Ok(())
    }

    fn finish(self: Box<Self>) -> Findings {
        let Self { by_layer, overall, seen, without } = *self;
        let about = "Shares of the attention on documents";
        let mut layers = Table::new(
            "documents_by_layer",
            &format!("{about}; by layer, mean over heads and queries"),
            &["layer"],
            &NUMBERS,
        );
        by_layer.layers().into_iter().for_each(|(layer, numbers)| layers.push([layer], numbers));
        let mut tasks =
            Table::new("documents", &format!("{about}; mean over layers, heads and queries"), &["task"], &NUMBERS);
        overall.tasks().into_iter().for_each(|(task, numbers)| tasks.push([task], numbers));
        let mut notes = Vec::new();
        if without > 0 {
            notes.push(format!(
                "{without} of {} prompts are left out: they have no numbered documents, or not exactly one right document",
                seen + without
            ));
        }
        let lines = NUMBERS.iter().enumerate().map(|(at, (name, _))| {
            let points = by_layer.layers().into_iter().map(|(layer, n)| Point::at(layer as f64, 100.0 * n[at]));
            ((*name).to_owned(), points.collect())
        });
        let drawing = Lines {
            name: "documents".to_owned(),
            title: "Attention on documents, by layer".to_owned(),
            x_label: "layer".to_owned(),
            y_label: "share (%)".to_owned(),
            panels: vec![Panel { title: String::new(), series: lines.collect() }],
            ..Lines::default()
        };
        let drawings = if seen > 0 { vec![Drawing::Lines(drawing)] } else { Vec::new() };
        Findings { tables: vec![tasks, layers], drawings, notes }
    }
}

/// Each document's share of the attention on all documents.
fn shares(head: &Head, query: &Query, parts: &[Part]) -> Vec<f64> {
    let weights = softmax(&head.logits(query));
    let of_part = |part: &Part| weights[part.tokens.clone()].iter().sum::<f64>();
    let sums: Vec<f64> = parts.iter().map(of_part).collect();
    let all = sums.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    sums.into_iter().map(|sum| sum / all).collect()
}

fn mean(rows: &[Vec<f64>]) -> Vec<f64> {
    let width = rows.first().map_or(0, Vec::len);
    (0..width).map(|at| rows.iter().map(|row| row[at]).sum::<f64>() / rows.len() as f64).collect()
}

/// The [`NUMBERS`] of a prompt, from its documents' shares.
fn compared(shares: &[f64], parts: &[Part]) -> Vec<f64> {
    let sum = |of: &dyn Fn(&Part) -> bool| -> f64 {
        parts.iter().zip(shares).filter(|(part, _)| of(part)).map(|(_, share)| share).sum()
    };
    let others = parts.iter().zip(shares).filter(|(part, _)| !part.is_right).map(|(_, share)| *share);
    let tokens = |of: &dyn Fn(&Part) -> bool| {
        parts.iter().filter(|part| of(part)).map(|part| part.tokens.len()).sum::<usize>() as f64
    };
    vec![
        sum(&|part| part.is_right),
        sum(&|part| !part.is_right) / (parts.len() - 1) as f64,
        others.fold(f64::NEG_INFINITY, f64::max),
        tokens(&|part| part.is_right) / tokens(&|_| true),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::head::testing::drawn;
    use super::super::reading::{DocumentReader, Request};
    use super::*;
    use std::collections::BTreeSet;
    use std::ops::Range;

    use spattn_model::device::Device;

    #[test]
    fn shares_are_sums_of_weights_over_those_of_all_documents() {
        let head = drawn(60, 1, 4, 3);
        let query = &head.queries[0];
        let part = |tokens: Range<usize>, is_right: bool| Part { tokens, is_right };
        let parts = [part(5..15, false), part(15..40, true), part(40..50, false)];
        let exps: Vec<f64> = head.logits(query).iter().map(|x| x.exp()).collect();
        let sum = |range: Range<usize>| exps[range].iter().sum::<f64>();
        let all = sum(5..50);
        let found = shares(&head, query, &parts);
        for (share, expected) in found.iter().zip([sum(5..15), sum(15..40), sum(40..50)]) {
            assert!((share - expected / all).abs() < 1e-9);
        }
        let numbers = compared(&[0.2, 0.5, 0.3], &parts);
        for (number, expected) in numbers.iter().zip([0.5, 0.25, 0.3, 25.0 / 45.0]) {
            assert!((number - expected).abs() < 1e-12, "{numbers:?}");
        }
        assert_eq!(mean(&[vec![1.0, 2.0], vec![3.0, 6.0]]), [2.0, 4.0]);
    }

    /// Checks on a real prompt that the tokens of each document decode to its text, and that the right one holds the answer.
    #[test]
    fn the_right_document_of_a_prompt_holds_its_answer() {
        let tasks = ["ruler/qa_synth".to_owned()];
        let request = Request {
            model: "builtin",
            device: Device::Cpu,
            dtype: None,
            tasks: &tasks,
            text: None,
            system: None,
            data: None,
            length: 900,
            samples: 3,
            queries: 2,
            layers: &[2],
            seed: 3,
        };
        let loaded = DocumentReader::open(&request).unwrap().load().unwrap();
        for number in 0..3 {
            let document = loaded.read(0, number, &BTreeSet::new()).unwrap();
            let text = |part: &Part| loaded.model.tokenizer.decode(&document.ids[part.tokens.clone()]).unwrap();
            assert!(document.parts.len() > 3, "{}", document.parts.len());
            for (at, part) in document.parts.iter().enumerate() {
                let text = text(part);
                assert!(text.trim_start().starts_with(&format!("Document {}:", at + 1)), "{text}");
                assert!(!text.contains(&format!("Document {}:", at + 2)), "{text}");
            }
            let right: Vec<_> = document.parts.iter().filter(|part| part.is_right).collect();
            let asked = loaded.model.tokenizer.decode(&document.ids[document.ids.len() - 40..]).unwrap();
            let [right] = right.as_slice() else { panic!("{} are right: {asked}", right.len()) };
            // A document begins with its subject. Other documents may name that subject too.
            let text = text(right);
            let first = text.split_once(":\n").unwrap().1.split_whitespace().next().unwrap();
            assert!(asked.contains(first), "{asked}\n{text}");
        }
    }
}
