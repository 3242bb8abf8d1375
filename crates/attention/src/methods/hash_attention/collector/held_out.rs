//! Measurements of trained nets on held-out text, beside random signatures, and how they are reported.

use std::fmt::Write as _;

use rayon::prelude::*;

use super::lesson::Lesson;
use super::settings::Settings;
use super::{
    Asked, Examined, Found, Learner, Mean, NEAREST, PICKED_SHARE, POINTS, Point, Random, SoftSums, Trainer, UsedNets,
    of_head,
};
use crate::methods::hash_attention::kind::in_blocks;
use crate::methods::hash_attention::net::SignNet;
use crate::methods::hash_attention::training::{GroupNets, SoftNet};
use crate::methods::lsh_bits::{augment_keys, side_signatures};
use crate::methods::planes::RandomPlanes;
use crate::methods::signatures::{Signatures, words_of};

impl Trainer {
    /// Measures the nets on the lessons that wait to be examined.
    pub(super) fn examine_waiting(&mut self) {
        let lessons = std::mem::take(&mut self.exams).lessons;
        if lessons.is_empty() {
            return;
        }
        let mut examined = self.examined.take().unwrap_or_else(|| self.to_examine());
        let of = |lesson: &Lesson| {
            let soft = &self.layers[lesson.stretch.layer][lesson.kv_head].nets;
            examined.measure(soft, lesson, &self.settings)
        };
        let measured: Vec<Measured> = lessons.par_iter().with_max_len(1).map(of).collect();
        lessons.iter().zip(measured).for_each(|(lesson, measured)| examined.add(lesson.stretch.layer, measured));
        self.examined = Some(examined);
    }

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

/// Measurements of a lesson.
pub(super) struct Measured {
    learned: Vec<Found>,
    soft: SoftSums,
    /// A list for each number of bits.
    random: Vec<Vec<Found>>,
}

impl Examined {
    /// Measures the nets of one KV head on a lesson, and random signatures beside them; `soft` are the nets as they were trained.
    pub(super) fn measure(&self, soft: &GroupNets, lesson: &Lesson, settings: &Settings) -> Measured {
        let asked = lesson.ask_all(settings);
        let (nets, d) = (&self.nets[lesson.stretch.layer][lesson.kv_head], soft.width());
        let of_net = |net: &SignNet| Signatures::new(&in_blocks(net, asked.keys, d), words_of(settings.kind.bits));
        let keys: Vec<Signatures> = nets.keys.iter().map(of_net).collect();
        let mut learned = Vec::new();
        for (h, net) in nets.queries.iter().enumerate() {
            let queries = net.signatures(&asked.queries[h]);
            asked.found_by(h, of_head(&keys, h), &queries, 1, |found| learned.push(found));
        }
        let further = &lesson.keys.further[..asked.keys.len() / d];
        let random = self.random.iter().map(|random| random.find(&asked, further, d)).collect();
        Measured { learned, soft: SoftSums::of(soft, &asked, settings, d), random }
    }

    /// Adds the measurements of a lesson of a layer.
    pub(super) fn add(&mut self, layer: usize, measured: Measured) {
        measured.learned.into_iter().for_each(|found| self.learned[layer].add(found));
        self.soft[layer].add(&measured.soft);
        for (random, found) in self.random.iter_mut().zip(measured.random) {
            found.into_iter().for_each(|found| random.found[layer].add(found));
        }
    }
}

impl Random {
    /// What the random signatures find for each head and query; `further` is what is added to each key's `q·k`.
    fn find(&self, asked: &Asked<'_>, further: &[f32], d: usize) -> Vec<Found> {
        let planes = self.planes.of_width(d + 2);
        let augmented = augment_keys(asked.keys, d, Some(further));
        let keys = Signatures::new(&side_signatures(&planes, &augmented), words_of(self.bits));
        let mut all = Vec::new();
        for (h, queries) in asked.queries.iter().enumerate() {
            let rows = queries.chunks_exact(d);
            let augmented: Vec<f32> = rows.flat_map(|q| q.iter().chain(&[1.0, 0.0])).copied().collect();
            asked.found_by(h, &keys, &side_signatures(&planes, &augmented), 1, |found| all.push(found));
        }
        all
    }
}
