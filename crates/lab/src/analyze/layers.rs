//! How similar neighbouring layers are (Double Sparsity Fig. 2).
//!
//! For each examined token there are two cosines: of a layer's input with the next layer's input, which the paper shows; and of each
//! query with the same head's query in the next layer, whose weights differ.

use anyhow::Result;

use super::findings::{Drawing, Lines, Panel, Point, Table, Tally, Unit};
use super::head::{cosine, wide};
use super::{Analysis, Document, Findings, Observation};

pub(super) const ANALYSIS: Analysis = Analysis {
    name: "layers",
    about: "cosines of a layer's inputs and queries with those of the next layer",
    reference: "Double Sparsity Fig. 2",
    methods: &[],
    start: |_| Ok(Box::new(Layers::default())),
};

#[derive(Default)]
struct Layers {
    /// Cosines by the earlier of the two layers; those of inputs are stored under head 0.
    inputs: Tally,
    queries: Tally,
}

impl Observation for Layers {
    fn observe(&mut self, document: &Document) -> Result<()> {
        let d = document.d();
        for layer in document.layers.iter().copied().filter(|layer| layer + 1 < document.all_layers()) {
            for (own, next) in document.inputs(layer).zip(document.inputs(layer + 1)) {
                self.inputs.add(&document.task, layer, 0, &[cosine(&wide(own), &wide(next))]);
            }
            let (own, next) = (document.queries(layer).chunks_exact(d), document.queries(layer + 1).chunks_exact(d));
            for (at, (own, next)) in own.zip(next).enumerate() {
                self.queries.add(&document.task, layer, at % document.heads, &[cosine(&wide(own), &wide(next))]);
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Findings {
        let Self { inputs, queries } = *self;
        let columns = [("inputs", Unit::Number), ("queries", Unit::Number)];
        let title = "Cosines with the next layer, of inputs and of queries of the same head; mean over tokens, heads and documents";
        let mut table = Table::new("layers", title, &["layer", "next"], &columns);
        let (of_inputs, of_queries) = (inputs.layers(), queries.layers());
        for (layer, numbers) in &of_queries {
            let input = of_inputs.get(layer).map_or(f64::NAN, |numbers| numbers[0]);
            table.push([*layer, layer + 1], [input, numbers[0]]);
        }
        let points: Vec<Point> =
            of_inputs.iter().map(|(layer, numbers)| Point::at(*layer as f64, numbers[0])).collect();
        let lines = Lines {
            name: "layers".to_owned(),
            title: "Cosine with the next layer".to_owned(),
            x_label: "layer".to_owned(),
            y_label: "cosine".to_owned(),
            panels: vec![Panel {
                title: String::new(),
                series: vec![
                    ("inputs".to_owned(), points),
                    ("queries of the same head".to_owned(), queries.by_layer(0)),
                ],
            }],
            ..Lines::default()
        };
        let high = of_inputs.values().filter(|numbers| numbers[0] > 0.9).count();
        let notes = vec![format!(
            "inputs of {high} of {} pairs of neighbouring layers have a cosine above 0.9",
            of_inputs.len()
        )];
        Findings { tables: vec![table], drawings: vec![Drawing::Lines(lines)], notes }
    }
}
