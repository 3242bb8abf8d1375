//! Cosines of queries with their top keys, as they are and as HashAttention's nets embed them (HashAttention Table 7, §5.4).
//!
//! A net maps a query or a key to one number for each bit of a signature. Training compares the hyperbolic tangents of these numbers,
//! inference compares their signs. Only the 32 keys with the highest scores of each query count.

use anyhow::Result;

use super::findings::{Drawing, Lines, Panel, Tally, Unit};
use super::head::{Head, Query, cosine, wide};
use super::{Analysis, Document, Findings, Observation, Setup};
use spattn_attention::methods::Embeddings as Nets;
use spattn_eval::calibration::supply::found;

pub(super) const ANALYSIS: Analysis = Analysis {
    name: "embeddings",
    about: "cosines of queries with their top keys: as they are, and as HashAttention's nets embed them",
    reference: "HashAttention Table 7",
    methods: &[],
    start: |setup| Ok(Box::new(Embeddings::new(setup)?)),
};

/// The number of keys with the highest scores that count for each query, as in the paper.
const TOP: usize = 32;
const CALIBRATION: &str = "hash_attention";
const NUMBERS: [(&str, Unit); 3] = [("original", Unit::Number), ("tanh", Unit::Number), ("sign", Unit::Number)];

struct Embeddings {
    nets: Option<Nets>,
    tally: Tally,
    notes: Vec<String>,
}

impl Embeddings {
    fn new(setup: &Setup<'_>) -> Result<Self> {
        let model = &setup.loaded.model;
        let artefact = found(CALIBRATION, model, None)?;
        let mut notes = Vec::new();
        if artefact.is_none() {
            notes.push(format!(
                "{} has no calibration of {CALIBRATION}, so only the original vectors are measured; make it with: spattn calibrate {CALIBRATION} --model {0}",
                model.id
            ));
        }
        let nets = artefact.map(|artefact| Nets::read(&artefact)).transpose()?;
        Ok(Self { nets, tally: Tally::default(), notes })
    }
}

impl Observation for Embeddings {
    fn observe(&mut self, document: &Document) -> Result<()> {
        let nets = self.nets.as_ref();
        let looked = document.each_head(|head| {
            let one = |query: &Query| (query.head, of_query(head, query, nets));
            (head.layer, head.queries.iter().map(one).collect::<Vec<_>>())
        })?;
        for (layer, queries) in looked {
            queries.iter().for_each(|(head, numbers)| self.tally.add(&document.task, layer, *head, numbers));
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Findings {
        let Self { tally, notes, nets } = *self;
        let about = format!("Cosines of queries with the {TOP} keys of the highest scores, by embedding");
        let title = format!("{about}; by layer, mean over heads, queries and documents");
        let by_layer = tally.layer_table("embeddings_by_layer", &title, &NUMBERS);
        let title = format!("{about}; by layer and head");
        let by_head = tally.head_table("embeddings_by_head", &title, ["layer", "head"], &NUMBERS);
        let drawn = if nets.is_some() { NUMBERS.len() } else { 1 };
        let series = (0..drawn).map(|at| (NUMBERS[at].0.to_owned(), tally.by_layer(at)));
        let lines = Lines {
            name: "embeddings".to_owned(),
            title: format!("Cosines of queries with their top {TOP} keys"),
            x_label: "layer".to_owned(),
            y_label: "cosine".to_owned(),
            panels: vec![Panel { title: String::new(), series: series.collect() }],
            ..Lines::default()
        };
        Findings { tables: vec![by_layer, by_head], drawings: vec![Drawing::Lines(lines)], notes }
    }
}

/// Returns the mean cosines with the top keys: of the vectors, and of the tangents and the signs of their embeddings.
fn of_query(head: &Head, query: &Query, nets: Option<&Nets>) -> Vec<f64> {
    let logits = head.logits(query);
    let mut order: Vec<usize> = (0..query.tokens).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    order.truncate(TOP);
    let mean = |of: &dyn Fn(usize) -> f64| (0..order.len()).map(of).sum::<f64>() / order.len() as f64;
    let q = wide(&query.vector);
    let original = mean(&|at| cosine(&q, &wide(head.key(order[at]))));
    let Some(nets) = nets else { return vec![original, f64::NAN, f64::NAN] };
    let keys: Vec<f32> = order.iter().flat_map(|token| head.key(*token)).copied().collect();
    let query_out = nets.query(head.layer, query.head, &query.vector);
    let keys_out = nets.keys(head.layer, head.kv_head, query.in_group, &keys);
    let by = |embed: fn(f32) -> f64| {
        let own: Vec<f64> = query_out.iter().copied().map(embed).collect();
        let key =
            |at: usize| -> Vec<f64> { keys_out[at * own.len()..][..own.len()].iter().copied().map(embed).collect() };
        mean(&|at| cosine(&own, &key(at)))
    };
    // A bit is set if the net's number is above 0.
    vec![original, by(|x| f64::from(x).tanh()), by(|x| if x > 0.0 { 1.0 } else { -1.0 })]
}

#[cfg(test)]
mod tests {
    use super::super::head::{dot, norm};
    use super::super::reading::{DocumentReader, Request};
    use super::*;
    use spattn_model::device::Device;
    use std::collections::BTreeSet;

    /// Checks that signs agree with the method's own signatures: their cosine is `1 − 2·distance/bits`, with its score's distance.
    #[test]
    fn cosines_are_those_of_the_vectors_and_of_the_methods_signatures() {
        let tasks = ["ruler/vt".to_owned()];
        let request = Request {
            model: "builtin",
            device: Device::Cpu,
            dtype: None,
            tasks: &tasks,
            text: None,
            system: None,
            data: None,
            length: 900,
            samples: 1,
            queries: 2,
            layers: &[4],
            seed: 3,
        };
        let loaded = DocumentReader::open(&request).unwrap().load().unwrap();
        let artefact = found(CALIBRATION, &loaded.model, None).unwrap().unwrap();
        let nets = Nets::read(&artefact).unwrap();
        let document = loaded.read(0, 0, &BTreeSet::new()).unwrap();
        for head in document.each_head(Head::clone).unwrap() {
            for query in &head.queries {
                let numbers = of_query(&head, query, Some(&nets));
                let logits = head.logits(query);
                let top = |t: &usize| logits.iter().filter(|x| **x > logits[*t]).count() < TOP;
                let top: Vec<usize> = (0..query.tokens).filter(top).collect();
                assert_eq!(top.len(), TOP);
                let plain = |t: &usize| {
                    dot(&query.vector, head.key(*t)) / (norm(&wide(&query.vector)) * norm(&wide(head.key(*t))))
                };
                let expected = top.iter().map(plain).sum::<f64>() / TOP as f64;
                assert!((numbers[0] - expected).abs() < 1e-9);
                let signs = |x: Vec<f32>| x.iter().map(|x| *x > 0.0).collect::<Vec<bool>>();
                let own = signs(nets.query(4, query.head, &query.vector));
                let distance = |t: &usize| {
                    let key = signs(nets.keys(4, head.kv_head, query.in_group, head.key(*t)));
                    own.iter().zip(&key).filter(|(a, b)| a != b).count() as f64
                };
                let expected = top.iter().map(|t| 1.0 - 2.0 * distance(t) / own.len() as f64).sum::<f64>() / TOP as f64;
                assert!((numbers[2] - expected).abs() < 1e-9, "{} {expected}", numbers[2]);
                assert!(numbers[1].abs() <= 1.0 && numbers[1] != numbers[2]);
                assert!(of_query(&head, query, None)[1].is_nan());
            }
        }
    }
}
