//! Measurements of trained nets on held-out text, beside random signatures, and how they are reported.

use std::fmt::Write as _;

use super::{
    Asked, Examined, Found, Learner, Mean, NEAREST, PICKED_SHARE, POINTS, Point, Random, SoftSums, Trainer, UsedNets,
};
use crate::methods::hash_attention::training::SoftNet;
use crate::methods::lsh_bits::{augment_keys, side_signatures};
use crate::methods::planes::RandomPlanes;
use crate::methods::signatures::{Signatures, words_of};

impl Trainer {
    pub(super) fn used_nets(&self) -> Vec<Vec<UsedNets>> {
        let used = |nets: &[SoftNet]| nets.iter().map(SoftNet::to_sign_net).collect();
        let of = |learner: &Learner| UsedNets { keys: used(&learner.nets.keys), queries: used(&learner.nets.queries) };
        self.layers.iter().map(|heads| heads.iter().map(of).collect()).collect()
    }

    pub(super) fn to_examine(&self) -> Examined {
        let none = vec![Mean::default(); self.model.layers];
        let widths = match &self.settings.against.0 {
            given if given.is_empty() => vec![self.settings.kind.bits],
            given => given.clone(),
        };
        let random = |bits: usize| Random { bits, planes: RandomPlanes::new(bits, 1), found: none.clone() };
        let soft = vec![SoftSums::default(); self.model.layers];
        Examined { nets: self.used_nets(), random: widths.into_iter().map(random).collect(), learned: none, soft }
    }

    /// The learning curve, and the measurements on held-out text.
    pub(super) fn notes(&self) -> Vec<String> {
        let steps = self.layers[0].first().map_or(0, |l| l.queries[0].steps);
        if steps == 0 {
            return vec![format!("nothing was learned: no prompt is longer than {} tokens", self.least())];
        }
        let top = self.settings.top;
        let mut notes = vec![format!(
            "{steps} steps of {} nets a KV head",
            self.settings.kind.key_nets(self.model.group()) + self.model.group()
        )];
        for part in self.curve.chunks(self.curve.len().div_ceil(POINTS)) {
            notes.push(Point::told(part, top));
        }
        if let Some(Examined { learned, random, soft, .. }) = &self.examined {
            let queries: usize = learned.iter().map(|mean| mean.count).sum();
            notes.push(format!(
                "held out, {queries} queries, 1/{PICKED_SHARE} of the context picked, against random planes; mean, then by layer:",
            ));
            let list = |nets: &str, of: &[Mean], what: &str, number: fn(Found) -> f64| {
                let mean = of.iter().map(|m| number(m.value())).sum::<f64>() / of.len() as f64;
                let layers: Vec<String> = of.iter().map(|m| format!("{:.2}", number(m.value()))).collect();
                format!("  {nets:<12} {what:<18} {mean:.3}  {}", layers.join(" "))
            };
            let learned = (format!("learned {}", self.settings.kind.bits), learned);
            let random = random.iter().map(|random| (format!("random {}", random.bits), &random.found));
            for (nets, of) in [learned].into_iter().chain(random) {
                notes.push(list(&nets, of, &format!("recall@{top}"), |found| found.recall));
                notes.push(list(&nets, of, "of its attention", |found| found.mass));
            }
            let told = |what: &str, of: &[f64]| {
                let mean = of.iter().sum::<f64>() / of.len() as f64;
                let layers: Vec<String> = of.iter().map(|x| format!("{x:.2}")).collect();
                format!("  {:<12} {what:<18} {mean:.3}  {}", "", layers.join(" "))
            };
            notes.push(told("loss", &soft.iter().map(SoftSums::loss).collect::<Vec<_>>()));
            notes.push(format!(
                "cosines of queries with the {NEAREST} tokens that they attend most; mean, then by layer:"
            ));
            for (which, what) in ["of q and k", "of tanh", "of signs"].into_iter().enumerate() {
                notes.push(told(what, &soft.iter().map(|sums| sums.cosines()[which]).collect::<Vec<_>>()));
            }
        }
        notes
    }
}

impl Trainer {
    /// CSV of the measurements on held-out text, a row for each layer and kind of signature.
    pub(super) fn held_out(&self) -> Option<String> {
        let Examined { learned, random, soft, .. } = self.examined.as_ref()?;
        let mut text =
            String::from("nets,bits,layer,queries,recall,of_attention,loss,cosine,cosine_tanh,cosine_sign\n");
        for (layer, (found, soft)) in learned.iter().zip(soft).enumerate() {
            let (Found { recall, mass }, [cosine, tanh, sign]) = (found.value(), soft.cosines());
            let (bits, queries, loss) = (self.settings.kind.bits, found.count, soft.loss());
            let _ = writeln!(text, "learned,{bits},{layer},{queries},{recall},{mass},{loss},{cosine},{tanh},{sign}");
        }
        for Random { bits, found, .. } in random {
            for (layer, found) in found.iter().enumerate() {
                let Found { recall, mass } = found.value();
                let _ = writeln!(text, "random,{bits},{layer},{},{recall},{mass},,,,", found.count);
            }
        }
        Some(text)
    }
}

impl Random {
    /// Measures the random signatures on the queries of a layer; `further` is what a key's score has beyond `q·k`.
    pub(super) fn examine(&mut self, layer: usize, asked: &Asked, further: &[f32], d: usize) {
        let planes = self.planes.of_width(d + 2);
        let augmented = augment_keys(&asked.keys, d, Some(further));
        let keys = Signatures::new(&side_signatures(&planes, &augmented), words_of(self.bits));
        for (h, queries) in asked.queries.iter().enumerate() {
            let rows = queries.chunks_exact(d);
            let augmented: Vec<f32> = rows.flat_map(|q| q.iter().chain(&[1.0, 0.0])).copied().collect();
            let found = &mut self.found[layer];
            asked.found_by(h, &keys, &side_signatures(&planes, &augmented), 1, |of_query| found.add(of_query));
        }
    }
}
