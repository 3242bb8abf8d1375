//! `time.svg`: the time of each method, for each example and for each token after the prefix.

use std::ops::Range;

use anyhow::Result;
use plotters::prelude::RGBColor;
use plotters::style::text_anchor::HPos;

use super::axis::{Axis, tick_label};
use super::pen::{
    self, CHARACTER, GRID, INK, LEAST_WIDTH, MOST_HEIGHT, Pen, SIZE, TITLE_HEIGHT, page_title, title_width,
};
use super::{Figures, Pages, end_of, suffix};
use crate::report::MeanTable;
use crate::report::format::{distinct, latency_of, number, tokens};
use crate::report::parameters::ShownParams;
use spattn_eval::config::protocol::Protocol;
use spattn_eval::records::timing::Latency;
use spattn_eval::summary::columns::SummaryRow;

/// Shades that also differ in greyscale.
const PREFILL: RGBColor = RGBColor(0, 84, 134);
const INDEX: RGBColor = RGBColor(230, 130, 0);
const STEP: RGBColor = RGBColor(190, 222, 240);

/// The bars of one length: means over its tasks, or its only task.
struct Block {
    title: String,
    bars: Vec<Bar>,
}

/// The times of one setting of a method.
#[derive(Debug, PartialEq)]
struct Bar {
    name: String,
    /// Seconds for each example: prefill, and index.
    once: [f64; 2],
    /// Milliseconds for each step, with the ends of the interval.
    step: Option<(f64, Option<(f64, f64)>)>,
}

/// One figure for each model and protocol, with a block of bars for each length, on as many pages as needed. Rows timed under other
/// conditions than most are left out, and the title says so. If there are several figures, their file names contain what differs.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn figures(rows: &[SummaryRow], means: &[MeanTable], most: usize) -> Result<Figures> {
    let scenes = distinct(rows.iter().map(|r| (r.model.clone(), r.protocol.clone())));
    let mut figures = Figures::up_to(most);
    for (model, protocol) in &scenes {
        let is_here = |r: &SummaryRow| (&r.model, &r.protocol) == (model, protocol);
        let shown: Vec<&SummaryRow> = rows.iter().filter(|r| is_here(r)).collect();
        let names = ShownParams::of_rows(shown.iter().copied());
        let blocks = blocks(&shown, means, &names);
        let left_out = shown.iter().filter(|r| r.is_timed_apart).count();
        let without = match left_out {
            0 => String::new(),
            rows => format!(" ({rows} rows timed under other conditions left out)"),
        };
        let suffix = suffix(&[
            (scenes.iter().any(|s| s.0 != *model), model),
            (scenes.iter().any(|s| s.1 != *protocol), protocol),
        ]);
        let kind = latency_of(shown.into_iter().filter(|r| !r.is_timed_apart));
        let title = format!("Time: {}, sparse from {protocol}{without}", end_of(model));
        let notes = names.note().map_or_else(Vec::new, |note| pen::in_lines(&note, LEAST_WIDTH - 2 * NOTES_LEFT));
        let drawing =
            Drawing { title: &title, prefill: prefill_name(protocol), step: step_name(kind), blocks: &blocks, notes };
        figures.pages(&format!("time{suffix}.svg"), &title, drawing.pages(figures.pages_left)?);
    }
    Ok(figures)
}

/// The legend's name of the prefill under a protocol.
fn prefill_name(protocol: &str) -> &'static str {
    match protocol.parse() {
        Ok(Protocol::Prefill) => "prefill by the method itself",
        _ => "dense prefill (shared by all methods)",
    }
}

/// The legend's name of a step's time.
fn step_name(kind: Option<Latency>) -> &'static str {
    match kind {
        None => "a decode step",
        Some(Latency::Shared) => "a decode step: share of a step of all methods together",
        Some(Latency::Solo) => "a decode step of a method alone (mean; median turn)",
    }
}

/// A block for each length in the rows of a model and protocol: the means over all tasks that any setting has, or the rows themselves if
/// there is only one task. Texts whose perplexity is measured have their own blocks.
fn blocks(rows: &[&SummaryRow], means: &[MeanTable], names: &ShownParams) -> Vec<Block> {
    let mut blocks: Vec<(usize, Block)> = Vec::new();
    let is_of = |table: &&MeanTable, row: &SummaryRow| {
        let head = &table.rows[0];
        (&head.model, &head.protocol, head.length) == (&row.model, &row.protocol, row.length)
    };
    for row in rows {
        let mean = means.iter().find(|table| row.measure.is_score() && is_of(table, row));
        let title = mean.map_or_else(|| row.task.clone(), MeanTable::title);
        let length =
            if row.length > 0 { format!("{} tokens", tokens(row.length)) } else { "as long as the files".into() };
        let title = format!("{title}, {length}");
        if blocks.iter().any(|(_, block)| block.title == title) {
            continue;
        }
        let of: Vec<&SummaryRow> = match mean {
            Some(table) => table.rows.iter().collect(),
            None => rows.iter().copied().filter(|r| (&r.task, r.length) == (&row.task, row.length)).collect(),
        };
        let bars = of.into_iter().filter(|r| !r.is_timed_apart).map(|row| bar(row, names)).collect();
        blocks.push((row.length, Block { title, bars }));
    }
    blocks.sort_by_key(|(length, _)| *length);
    blocks.into_iter().map(|(_, block)| block).filter(|block| !block.bars.is_empty()).collect()
}

fn bar(row: &SummaryRow, names: &ShownParams) -> Bar {
    Bar {
        name: names.name(&row.method, &row.params),
        once: [row.prefill_s, row.index_s],
        step: row.decode_ms_per_token.map(|ms| (ms, row.decode_ms_low.zip(row.decode_ms_high))),
    }
}

/// The height of a bar, including the gaps around it.
pub const LINE: i32 = 24;
const HEAD: i32 = 34;
const FOOT: i32 = 56;
/// The width of each of the two fields of bars, and of the space to the right of each for a number.
const FIELD: i32 = 300;
const RIGHT: i32 = 76;
const LEGEND_LINE: i32 = 26;
const LEGEND: i32 = 3 * LEGEND_LINE;
/// The left end of lines below the legend.
const NOTES_LEFT: i32 = 20;

/// The contents of all pages.
struct Drawing<'a> {
    title: &'a str,
    /// The names of the parts of bars.
    prefill: &'a str,
    step: &'a str,
    blocks: &'a [Block],
    /// Lines below the legend.
    notes: Vec<String>,
}

/// Some bars of a block.
type Piece<'a> = (&'a Block, Range<usize>);

impl Drawing<'_> {
    fn legend_height(&self) -> i32 {
        LEGEND + self.notes.len() as i32 * LEGEND_LINE
    }

    fn pages(&self, most: usize) -> Result<Pages> {
        let pages = self.dealt();
        Pages::of(&pages, most, |i, pieces| self.page(pieces, &page_title(self.title, i, pages.len())))
    }

    /// The bars of each page, with as many as fit.
    fn dealt(&self) -> Vec<Vec<Piece<'_>>> {
        // A block starts on a new page if fewer than this many of its bars fit on the current one.
        const LEAST: i32 = 3;
        let available = MOST_HEIGHT - TITLE_HEIGHT - self.legend_height() - 10;
        let (mut pages, mut page, mut left) = (Vec::new(), Vec::new(), available);
        for block in self.blocks {
            let mut first = 0;
            while first < block.bars.len() {
                let rest = (block.bars.len() - first) as i32;
                if !page.is_empty() && left < HEAD + FOOT + rest.min(LEAST) * LINE {
                    pages.push(std::mem::take(&mut page));
                    left = available;
                }
                let count = ((left - HEAD - FOOT) / LINE).clamp(1, rest);
                page.push((block, first..first + count as usize));
                first += count as usize;
                left -= HEAD + FOOT + count * LINE;
            }
        }
        // An empty figure has one page.
        if !page.is_empty() || pages.is_empty() {
            pages.push(page);
        }
        pages
    }

    fn page(&self, pieces: &[Piece], title: &str) -> Result<String> {
        let names = self.blocks.iter().flat_map(|block| &block.bars).map(|bar| bar.name.chars().count() as i32);
        let left = 20 + CHARACTER * names.max().unwrap_or(0);
        let width = (left + 2 * (FIELD + RIGHT)).max(LEAST_WIDTH).max(title_width(title));
        let of = |(_, bars): &Piece| HEAD + bars.len() as i32 * LINE + FOOT;
        let height = TITLE_HEIGHT + pieces.iter().map(of).sum::<i32>() + self.legend_height() + 10;
        let legend = [
            (self.prefill, PREFILL),
            ("building the index, with no sharing between methods", INDEX),
            (self.step, STEP),
        ];
        pen::draw((width, height), title, |pen| {
            let mut top = TITLE_HEIGHT;
            for piece in pieces {
                draw_block(pen, piece, left, top + HEAD)?;
                top += of(piece);
            }
            (0..).zip(legend).try_for_each(|(i, (name, colour))| {
                let y = top + i * LEGEND_LINE + 10;
                pen.fill((left, y - 7), (left + 30, y + 7), colour)?;
                pen.edge((left, y - 7), (left + 30, y + 7), INK)?;
                pen.text(name, (left + 40, y), SIZE, HPos::Left)
            })?;
            (0..).zip(&self.notes).try_for_each(|(line, note)| {
                pen.text(note, (NOTES_LEFT, top + LEGEND + line * LEGEND_LINE + 10), SIZE - 2, HPos::Left)
            })
        })
    }
}

/// Draws some bars of a block. On every page, the axes are those of the whole block.
fn draw_block(pen: &Pen, (block, shown): &Piece, left: i32, top: i32) -> Result<()> {
    let goes_on = if shown.start > 0 { " (continued)" } else { "" };
    pen.text(&format!("{}{goes_on}", block.title), (left, top - 16), SIZE, HPos::Left)?;
    let bottom = top + shown.len() as i32 * LINE;
    let most = |of: fn(&Bar) -> f64| block.bars.iter().map(of).fold(0.0, f64::max);
    let once = Field { axis: Axis::from_zero(most(|b| b.once.iter().sum())), left, width: FIELD, top, bottom };
    let second = left + FIELD + RIGHT;
    let highest = |b: &Bar| b.step.map_or(0.0, |(ms, ends)| ends.map_or(ms, |(_, high)| high));
    let step = Field { axis: Axis::from_zero(most(highest)), left: second, width: FIELD, top, bottom };
    once.frame(pen, "once per example (s)")?;
    step.frame(pen, "each token after the prefix (ms)")?;
    for (i, bar) in (0..).zip(&block.bars[shown.clone()]) {
        let y = top + i * LINE;
        pen.text(&bar.name, (left - 8, y + LINE / 2), SIZE, HPos::Right)?;
        once.bar(pen, y, &[(bar.once[0], PREFILL), (bar.once[1], INDEX)])?;
        once.label(pen, y, bar.once.iter().sum(), bar.once.iter().sum())?;
        let Some((ms, ends)) = bar.step else { continue };
        step.bar(pen, y, &[(ms, STEP)])?;
        if let Some((low, high)) = ends {
            let (from, to, middle) = (step.at(low), step.at(high), y + LINE / 2);
            pen.line(&[(from, middle), (to, middle)], INK, 2)?;
            [from, to].iter().try_for_each(|end| pen.line(&[(*end, middle - 4), (*end, middle + 4)], INK, 2))?;
        }
        step.label(pen, y, ms, ends.map_or(ms, |(_, high)| high))?;
    }
    Ok(())
}

/// The area in which the bars of one quantity are drawn.
pub struct Field {
    /// The horizontal axis.
    pub axis: Axis,
    /// The left end, in pixels.
    pub left: i32,
    /// The width, in pixels.
    pub width: i32,
    /// The top of the first bar's line, in pixels.
    pub top: i32,
    /// The bottom of the last bar's line, in pixels.
    pub bottom: i32,
}

impl Field {
    /// The pixel of a value.
    pub fn at(&self, value: f64) -> i32 {
        self.axis.at(value, self.left, self.left + self.width)
    }

    /// Draws the ticks, the line at 0, and the title below.
    ///
    /// # Errors
    /// If the drawing fails, for which text output gives no cause.
    pub fn frame(&self, pen: &Pen, title: &str) -> Result<()> {
        for &tick in &self.axis.ticks {
            let x = self.at(tick);
            pen.line(&[(x, self.top), (x, self.bottom)], GRID, 1)?;
            pen.text(&tick_label(tick), (x, self.bottom + 14), SIZE, HPos::Center)?;
        }
        pen.text(title, (self.left + self.width / 2, self.bottom + 36), SIZE, HPos::Center)?;
        pen.line(&[(self.left, self.top), (self.left, self.bottom)], INK, 1)
    }

    /// Draws a bar of several parts, in the line whose top is `y`.
    ///
    /// # Errors
    /// As [`frame`](Self::frame).
    pub fn bar(&self, pen: &Pen, y: i32, parts: &[(f64, RGBColor)]) -> Result<()> {
        let mut sum = 0.0;
        for (value, colour) in parts {
            let (from, to) = (self.at(sum), self.at(sum + value));
            sum += value;
            if to > from {
                pen.fill((from, y + 4), (to, y + LINE - 4), *colour)?;
                pen.edge((from, y + 4), (to, y + LINE - 4), INK)?;
            }
        }
        Ok(())
    }

    /// Writes the value as a number, to the right of the value `end`.
    ///
    /// # Errors
    /// As [`frame`](Self::frame).
    pub fn label(&self, pen: &Pen, y: i32, value: f64, end: f64) -> Result<()> {
        pen.text(&number(value), (self.at(end) + 6, y + LINE / 2), SIZE, HPos::Left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;
    use crate::report::plots::Figure;
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::record;
    use spattn_eval::records::timing::TimingConditions;

    #[test]
    fn more_bars_than_fit_are_split_and_none_is_lost() {
        let bar = |i: usize| Bar { name: format!("bar{i}."), once: [1.0, 0.0], step: None };
        let block =
            |title: &str, bars: std::ops::Range<usize>| Block { title: title.into(), bars: bars.map(bar).collect() };
        let blocks = [block("one", 0..38), block("two", 38..175), block("three", 175..177)];
        let pages = Drawing { title: "Time", prefill: "", step: "", blocks: &blocks, notes: vec!["note".into()] };
        let pages = pages.pages(99).unwrap().drawn;
        assert!(pages.len() > 3);
        for page in &pages {
            let height: i32 = page.split("height=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
            assert!(height <= MOST_HEIGHT, "{height}");
        }
        for i in 0..177 {
            assert_eq!(pages.concat().matches(&format!("\nbar{i}.\n")).count(), 1, "{i}");
        }
        assert!(!pages[0].contains("\ntwo"), "a block does not begin at the end of a page");
        assert!(pages[1].contains("\ntwo\n") && pages[2].contains("\ntwo (continued)\n"));
        assert!(pages[1].contains(&format!("Time (2 of {})", pages.len())));
    }

    fn drawn(records: &[Record]) -> (Vec<Block>, Figure) {
        let report = Report::new(records, &[]);
        let rows: Vec<&SummaryRow> = report.rows.iter().collect();
        let names = ShownParams::of_rows(rows.iter().copied());
        (blocks(&rows, &report.means, &names), figures(&report.rows, &report.means, 99).unwrap().first.remove(0))
    }

    #[test]
    fn a_bar_is_a_setting_with_what_it_takes_once_and_for_each_token() {
        let of = |task, index_s, steps| Record { index_s, steps, ..record(task, "quest", 0, 1.0) };
        let full = |task| Record { steps: 50, ..record(task, "full", 0, 1.0) };
        // The answers differ in length, but not in the time for each token.
        let records = [
            full("ruler/vt"),
            full("ruler/cwe"),
            of("ruler/vt", 0.25, 50),
            Record { decode_s: 2.0, ..of("ruler/cwe", 0.75, 200) },
        ];
        let (blocks, figure) = drawn(&records);
        assert_eq!(blocks.len(), 1);
        assert_eq!(
            blocks[0].bars,
            [
                Bar { name: "full".into(), once: [1.0, 0.0], step: Some((10.0, None)) },
                Bar { name: "quest".into(), once: [1.0, 0.5], step: Some((10.0, None)) },
            ]
        );
        assert_eq!((figure.file.as_str(), blocks[0].title.as_str()), ("time.svg", "mean over 2 tasks, 4K tokens"));
        for text in ["once per example (s)", "each token after the prefix (ms)", "shared by all methods"] {
            assert!(figure.svg.contains(text), "{text}");
        }
        let own: Vec<Record> = records.into_iter().map(|r| Record { protocol: "prefill".into(), ..r }).collect();
        assert!(drawn(&own).1.svg.contains("by the method itself"));
    }

    #[test]
    fn what_was_timed_otherwise_is_not_drawn() {
        let under = |fidelity| {
            Some(TimingConditions {
                fidelity,
                together: 2,
                latency: None,
                threads: 2,
                simd: "avx2".into(),
                cpu: None,
                gpu: None,
                select_on: None,
                kv: None,
            })
        };
        let records = ["full", "topk", "quest"].map(|method| Record {
            conditions: under(method == "quest").map(Into::into),
            ..record("ruler/vt", method, 0, 1.0)
        });
        let (blocks, figure) = drawn(&records);
        assert_eq!(blocks[0].bars.iter().map(|b| b.name.as_str()).collect::<Vec<_>>(), ["full", "topk"]);
        assert!(figure.title.contains("1 rows timed under other conditions left out"), "{}", figure.title);
    }
}
