//! `speedup.svg`: the speed-up of each setting over `full`, as bars in the methods' usual colours.

use anyhow::Result;
use plotters::prelude::RGBColor;
use plotters::style::text_anchor::HPos;

use super::columns::method_name;
use super::scene::Scene;
use super::series::Series;
use crate::report::format::{distinct, setting_name, tokens};
use crate::report::plots::axis::Axis;
use crate::report::plots::bars::{Field, LINE};
use crate::report::plots::looks::looks;
use crate::report::plots::pen::{
    self, CHARACTER, INK, LEAST_WIDTH, MOST_HEIGHT, Pen, SIZE, SeriesLook, TITLE_HEIGHT, page_title, title_width,
};
use crate::report::plots::{Figure, paged};
use spattn_lab::bench::BenchRow;

/// The shades of settings that are not usable methods: lighter than all methods, also in greyscale.
const ORACLE: RGBColor = RGBColor(196, 196, 196);
const FLOOR: RGBColor = RGBColor(230, 230, 230);
const PEER: RGBColor = RGBColor(255, 255, 255);

/// A setting with its speed-up at each context.
#[derive(Debug, PartialEq)]
struct Bar {
    name: String,
    kind: Kind,
    speedups: Vec<Option<f64>>,
}

/// The kind of a setting, which determines its shade.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// A usable method, with its colour.
    Method(RGBColor),
    Oracle,
    Floor,
    /// Another program.
    Peer,
}

impl Kind {
    fn of(method: &str, is_peer: bool) -> Self {
        match looks(&[method])[0] {
            _ if is_peer => Self::Peer,
            SeriesLook::Oracle(..) => Self::Oracle,
            SeriesLook::Floor(..) => Self::Floor,
            look => Self::Method(look.colour()),
        }
    }

    fn shade(self) -> RGBColor {
        match self {
            Self::Method(colour) => colour,
            Self::Oracle => ORACLE,
            Self::Floor => FLOOR,
            Self::Peer => PEER,
        }
    }
}

/// Draws a bar for each setting except `full`, with a field for each context, on as many pages as needed. Peers come last, with hollow
/// bars. `None` if nothing was compared with `full`.
pub fn figure(scene: &Scene, all: &[Scene]) -> Option<Result<Vec<Figure>>> {
    let (contexts, bars) = bars(scene);
    if bars.is_empty() {
        return None;
    }
    let title = format!("Speed-up over full: {}", scene.title());
    let drawn = pages(&title, &contexts, &bars);
    Some(drawn.map(|pages| paged(&scene.file_name("speedup", all), &title, pages)))
}

/// The contexts at which settings were compared with `full`, and the bars.
fn bars(scene: &Scene) -> (Vec<usize>, Vec<Bar>) {
    let speedup = |row: &&BenchRow| row.speedup_vs_full.filter(|speedup| speedup.is_finite());
    let compared: Vec<&BenchRow> =
        scene.rows.iter().copied().filter(|row| speedup(row).is_some() && !Series::of(row).is_reference()).collect();
    let contexts = Scene { rows: compared.clone() }.contexts();
    let of = |(method, params, is_peer): &(String, &str, bool)| {
        let is_same =
            |row: &&&BenchRow| (method_name(row), row.params.as_str(), row.peer) == (method.clone(), *params, *is_peer);
        let at =
            |context: &usize| compared.iter().filter(is_same).find(|row| row.context == *context).and_then(speedup);
        let (name, kind) = (setting_name(method, params), Kind::of(method, *is_peer));
        Bar { name, kind, speedups: contexts.iter().map(at).collect() }
    };
    let settings = distinct(compared.iter().map(|row| (method_name(row), row.params.as_str(), row.peer)));
    let mut bars: Vec<Bar> = settings.iter().map(of).collect();
    bars.sort_by_key(|bar| bar.kind == Kind::Peer);
    (contexts, bars)
}

const HEAD: i32 = 34;
const FOOT: i32 = 56;
/// The width of a field of bars, and of the space to its right for a number.
const FIELD: i32 = 200;
const RIGHT: i32 = 70;
const LEGEND_LINE: i32 = 26;

/// The pages of bars. All pages have the same axes.
fn pages(title: &str, contexts: &[usize], bars: &[Bar]) -> Result<Vec<String>> {
    let beside = TITLE_HEIGHT + HEAD + FOOT + (1 + legend(bars).len() as i32) * LEGEND_LINE + 10;
    let most = ((MOST_HEIGHT - beside) / LINE).max(1) as usize;
    let parts: Vec<&[Bar]> = bars.chunks(most).collect();
    let page = |(i, part): (usize, &&[Bar])| page(&page_title(title, i, parts.len()), contexts, part, bars);
    parts.iter().enumerate().map(page).collect()
}

fn page(title: &str, contexts: &[usize], bars: &[Bar], all: &[Bar]) -> Result<String> {
    let longest = all.iter().map(|bar| bar.name.chars().count() as i32).max().unwrap_or(0);
    let left = 20 + CHARACTER * longest;
    let width = (left + contexts.len() as i32 * (FIELD + RIGHT)).max(LEAST_WIDTH).max(title_width(title));
    let top = TITLE_HEIGHT + HEAD;
    let bottom = top + bars.len() as i32 * LINE;
    let legend = legend(all);
    let height = bottom + FOOT + (1 + legend.len() as i32) * LEGEND_LINE + 10;
    let field = |i: usize| {
        let most = all.iter().filter_map(|bar| bar.speedups[i]).fold(1.0, f64::max);
        Field { axis: Axis::from_zero(most), left: left + i as i32 * (FIELD + RIGHT), width: FIELD, top, bottom }
    };
    pen::draw((width, height), title, |pen| {
        for (y, bar) in (0..).map(|i| top + i * LINE).zip(bars) {
            pen.text(&bar.name, (left - 8, y + LINE / 2), SIZE, HPos::Right)?;
        }
        for (i, context) in contexts.iter().enumerate() {
            draw_field(pen, &field(i), *context, bars.iter().map(|bar| (bar.speedups[i], bar.kind.shade())))?;
        }
        let mut y = bottom + FOOT + 10;
        for (name, colour) in legend {
            pen.fill((left, y - 7), (left + 30, y + 7), colour)?;
            pen.edge((left, y - 7), (left + 30, y + 7), INK)?;
            pen.text(name, (left + 40, y), SIZE, HPos::Left)?;
            y += LEGEND_LINE;
        }
        pen.stroke(SeriesLook::Dense, &[(left, y), (left + 30, y)])?;
        pen.text("full (dense)", (left + 40, y), SIZE, HPos::Left)
    })
}

fn draw_field(
    pen: &Pen,
    field: &Field,
    context: usize,
    bars: impl Iterator<Item = (Option<f64>, RGBColor)>,
) -> Result<()> {
    pen.text(&format!("{} tokens", tokens(context)), (field.left, field.top - 16), SIZE, HPos::Left)?;
    field.frame(pen, "speed-up over full (×)")?;
    for (y, (speedup, colour)) in (0..).map(|i| field.top + i * LINE).zip(bars) {
        let Some(speedup) = speedup else { continue };
        field.bar(pen, y, &[(speedup, colour)])?;
        // The number must not cover the line at `full`.
        field.label(pen, y, speedup, speedup.max(1.0))?;
    }
    let one = field.at(1.0);
    pen.stroke(SeriesLook::Dense, &[(one, field.top), (one, field.bottom)])
}

/// The legend of the shades of settings that are not usable methods.
fn legend(bars: &[Bar]) -> Vec<(&'static str, RGBColor)> {
    let shades = [
        ("oracles, which select by exact scores of all tokens", Kind::Oracle),
        ("floors, which select without scores", Kind::Floor),
        ("peers: other programs", Kind::Peer),
    ];
    let there = shades.into_iter().filter(|(_, kind)| bars.iter().any(|bar| bar.kind == *kind));
    there.map(|(name, kind)| (name, kind.shade())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::scene::scenes;
    use super::super::tests::{bench, full, peer, sparse};
    use super::*;

    #[test]
    fn bars_are_settings_with_peers_last() {
        let with = |speedup, row: BenchRow| BenchRow { speedup_vs_full: Some(speedup), ..row };
        let bench = bench(vec![
            full(4096),
            with(0.5, peer(4096)),
            with(2.0, sparse("quest", 0.05, 4096)),
            sparse("loki", 0.05, 4096),
            full(16384),
            with(4.0, sparse("quest", 0.05, 16384)),
            with(3.0, sparse("topk", 0.05, 16384)),
        ]);
        let scenes = scenes(&bench);
        let (contexts, bars) = bars(&scenes[0]);
        assert_eq!(contexts, [4096, 16384]);
        let bar =
            |name: &str, kind, speedups: [Option<f64>; 2]| Bar { name: name.into(), kind, speedups: speedups.into() };
        assert_eq!(
            bars,
            [
                bar("quest density=0.05", Kind::Method(looks(&["quest"])[0].colour()), [Some(2.0), Some(4.0)]),
                bar("topk density=0.05", Kind::Oracle, [None, Some(3.0)]),
                bar("torch_sdpa_bf16 (peer)", Kind::Peer, [Some(0.5), None]),
            ],
            "full itself and what was not compared have none"
        );
        let [figure] = &figure(&scenes[0], &scenes).unwrap().unwrap()[..] else { panic!("one page") };
        for text in ["16K tokens", "torch_sdpa_bf16 (peer)", "peers: other programs", "oracles, which", "\n4.00\n"] {
            assert!(figure.svg.contains(text), "{text}");
        }
        assert!(!figure.svg.contains("floors, which"));
    }

    #[test]
    fn many_bars_go_on_in_other_files_under_the_same_axis() {
        let row = |i: usize| BenchRow { speedup_vs_full: Some(i as f64), ..sparse("quest", i as f64 / 100.0, 4096) };
        let bench = bench((1..=60).map(row).collect());
        let scenes = scenes(&bench);
        let figures = figure(&scenes[0], &scenes).unwrap().unwrap();
        let files: Vec<&str> = figures.iter().map(|figure| figure.file.as_str()).collect();
        assert_eq!(files, ["speedup.svg", "speedup-2.svg"]);
        assert!(figures.iter().all(|figure| figure.svg.contains("\n60\n")), "the last tick is on both");
        for i in 1..=60 {
            let name = format!("density={}\n", i as f64 / 100.0);
            assert_eq!(figures.iter().filter(|figure| figure.svg.contains(&name)).count(), 1, "{name}");
        }
    }
}
