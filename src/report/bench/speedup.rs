//! `speedup.svg`: how many times as fast as `full` a setting is, as bars.

use anyhow::Result;
use plotters::prelude::RGBColor;
use plotters::style::text_anchor::HPos;

use super::columns::method_name;
use super::scene::Scene;
use super::series::Series;
use crate::bench::BenchRow;
use crate::report::format::{distinct, setting_name, tokens};
use crate::report::plots::Figure;
use crate::report::plots::axis::Axis;
use crate::report::plots::bars::{Field, LINE};
use crate::report::plots::pen::{self, CHARACTER, INK, LEAST_WIDTH, Look, Pen, SIZE, TITLE_HEIGHT, title_width};

/// Shades that differ in grey too.
const OWN: RGBColor = RGBColor(86, 160, 210);
const PEER: RGBColor = RGBColor(255, 255, 255);

/// A setting with its speed-up at each context.
#[derive(Debug, PartialEq)]
struct Bar {
    name: String,
    is_peer: bool,
    speedups: Vec<Option<f64>>,
}

/// A bar for each setting beside `full`, with a field for each context; peers come last and are hollow. `None` if nothing
/// was compared with `full`.
pub fn figure(scene: &Scene, all: &[Scene]) -> Option<Result<Figure>> {
    let (contexts, bars) = bars(scene);
    if bars.is_empty() {
        return None;
    }
    let title = format!("Speed-up over full: {}", scene.title());
    let file = scene.file_name("speedup", all);
    Some(svg(&title, &contexts, &bars).map(|svg| Figure { file, svg, title }))
}

/// The contexts at which something was compared, and the bars.
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
        Bar { name: setting_name(method, params), is_peer: *is_peer, speedups: contexts.iter().map(at).collect() }
    };
    let settings = distinct(compared.iter().map(|row| (method_name(row), row.params.as_str(), row.peer)));
    let mut bars: Vec<Bar> = settings.iter().map(of).collect();
    bars.sort_by_key(|bar| bar.is_peer);
    (contexts, bars)
}

const HEAD: i32 = 34;
const FOOT: i32 = 56;
/// Width of a field of bars, and of the room behind it for a number.
const FIELD: i32 = 200;
const RIGHT: i32 = 70;
const LEGEND_LINE: i32 = 26;

fn svg(title: &str, contexts: &[usize], bars: &[Bar]) -> Result<String> {
    let longest = bars.iter().map(|bar| bar.name.chars().count() as i32).max().unwrap_or(0);
    let left = 20 + CHARACTER * longest;
    let width = (left + contexts.len() as i32 * (FIELD + RIGHT)).max(LEAST_WIDTH).max(title_width(title));
    let top = TITLE_HEIGHT + HEAD;
    let bottom = top + bars.len() as i32 * LINE;
    let legend = legend(bars);
    let height = bottom + FOOT + (1 + legend.len() as i32) * LEGEND_LINE + 10;
    let field = |i: usize| {
        let most = bars.iter().filter_map(|bar| bar.speedups[i]).fold(1.0, f64::max);
        Field { axis: Axis::from_zero(most), left: left + i as i32 * (FIELD + RIGHT), width: FIELD, top, bottom }
    };
    pen::draw((width, height), title, |pen| {
        for (y, bar) in (0..).map(|i| top + i * LINE).zip(bars) {
            pen.text(&bar.name, (left - 8, y + LINE / 2), SIZE, HPos::Right)?;
        }
        for (i, context) in contexts.iter().enumerate() {
            draw_field(pen, &field(i), *context, bars.iter().map(|bar| (bar.speedups[i], shade(bar.is_peer))))?;
        }
        let mut y = bottom + FOOT + 10;
        for (name, colour) in legend {
            pen.fill((left, y - 7), (left + 30, y + 7), colour)?;
            pen.edge((left, y - 7), (left + 30, y + 7), INK)?;
            pen.text(name, (left + 40, y), SIZE, HPos::Left)?;
            y += LEGEND_LINE;
        }
        pen.stroke(Look::Dense, &[(left, y), (left + 30, y)])?;
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
        // The number is not to lie on the line of `full`.
        field.label(pen, y, speedup, speedup.max(1.0))?;
    }
    let one = field.at(1.0);
    pen.stroke(Look::Dense, &[(one, field.top), (one, field.bottom)])
}

fn shade(is_peer: bool) -> RGBColor {
    if is_peer { PEER } else { OWN }
}

/// The shades that there are, where there are several.
fn legend(bars: &[Bar]) -> Vec<(&'static str, RGBColor)> {
    let has_peers = bars.iter().any(|bar| bar.is_peer);
    if has_peers { vec![("own methods", OWN), ("peers: other programs", PEER)] } else { Vec::new() }
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
        let bar = |name: &str, is_peer, speedups: [Option<f64>; 2]| Bar {
            name: name.into(),
            is_peer,
            speedups: speedups.into(),
        };
        assert_eq!(
            bars,
            [
                bar("quest density=0.05", false, [Some(2.0), Some(4.0)]),
                bar("topk density=0.05", false, [None, Some(3.0)]),
                bar("torch_sdpa_bf16 (peer)", true, [Some(0.5), None]),
            ],
            "full itself and what was not compared have none"
        );
        let figure = figure(&scenes[0], &scenes).unwrap().unwrap();
        for text in ["16K tokens", "torch_sdpa_bf16 (peer)", "peers: other programs", "\n4.00\n"] {
            assert!(figure.svg.contains(text), "{text}");
        }
    }
}
