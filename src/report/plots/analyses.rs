//! Draws what `spattn analyze` found: lines in panels, and shades by layer and
//! head.

use anyhow::Result;

use super::axis::{Axis, tick_label};
use super::chart::{self, Chart, ChartPanel, ChartPoint, Data, LARGE, SMALL};
use super::grid::{self, Deeper, Grid, Scale};
use super::{Figure, as_file_name, looks, paged};
use crate::report::format::distinct;
use spattn_lab::analyze::findings::{Cells, Drawing, Lines, Map};

/// The pages of a drawing as figures; empty if there is nothing to draw.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn figure(drawing: &Drawing) -> Result<Vec<Figure>> {
    let (name, title, pages) = match drawing {
        Drawing::Lines(lines) => (&lines.name, &lines.title, of_lines(lines)?),
        Drawing::Map(map) => (&map.name, &map.title, of_map(map)?),
    };
    Ok(paged(&format!("{}.svg", as_file_name(name)), title, pages))
}

fn of_lines(lines: &Lines) -> Result<Vec<String>> {
    let names: Vec<&String> =
        distinct(lines.panels.iter().flat_map(|panel| panel.series.iter().map(|series| &series.0)));
    let all = || lines.panels.iter().flat_map(|panel| panel.series.iter().flat_map(|series| &series.1));
    let xs: Vec<f64> = all().map(|point| point.x).collect();
    if xs.is_empty() {
        return Ok(Vec::new());
    }
    let x_axis = || if lines.log_x { Axis::of_rates(xs.iter().copied()) } else { Axis::of_values(&xs) };
    let panel = |panel: &spattn_lab::analyze::findings::Panel| {
        let points = || panel.series.iter().flat_map(|series| &series.1);
        let ends = points().flat_map(|point| point.ends.map_or([point.y; 2], |(low, high)| [low, high]));
        let ys: Vec<f64> = points().map(|point| point.y).chain(ends).collect();
        let data = names.iter().map(|name| {
            let points = panel.series.iter().filter(|series| series.0 == **name).flat_map(|series| &series.1);
            let points: Vec<ChartPoint> = points.map(|p| ChartPoint { x: p.x, y: p.y, ends: p.ends }).collect();
            Data { line: (0..points.len()).collect(), points }
        });
        ChartPanel {
            title: panel.title.clone(),
            x: x_axis(),
            y: if lines.log_y { Axis::of_rates(ys.iter().copied()) } else { Axis::of_values(&ys) },
            level: None,
            focus: None,
            labels: Vec::new(),
            data: data.collect(),
        }
    };
    let texts: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    let looks = looks::of_names(&texts);
    let chart = Chart {
        title: lines.title.clone(),
        x_label: lines.x_label.clone(),
        y_label: lines.y_label.clone(),
        x_tick: tick_label,
        y_tick: small_tick,
        least_panel: if names.len() > 3 { LARGE } else { SMALL },
        has_roles: true,
        has_level: false,
        notes: Vec::new(),
        panels: lines.panels.iter().map(panel).collect(),
        series: texts.iter().map(|name| (*name).to_owned()).zip(looks).collect(),
    };
    Ok(chart::pages(&[chart], usize::MAX)?.drawn)
}

/// The label of a tick that may be far below 1.
fn small_tick(tick: f64) -> String {
    if tick != 0.0 && tick.abs() < 1e-3 { format!("{tick:.0e}") } else { tick_label(tick) }
}

fn of_map(map: &Map) -> Result<Vec<String>> {
    let cells = || map.panels.iter().flat_map(|panel| &panel.1);
    let (layers, heads) = (distinct(cells().map(|cell| cell.0)), distinct(cells().map(|cell| cell.1)));
    if layers.is_empty() {
        return Ok(Vec::new());
    }
    let ordered = |mut numbers: Vec<usize>| {
        numbers.sort_unstable();
        numbers
    };
    let (layers, heads) = (ordered(layers), ordered(heads));
    let names = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect();
    let place = |(layer, head, value): &(usize, usize, f64)| {
        (layers.partition_point(|l| l < layer), heads.partition_point(|h| h < head), *value)
    };
    let panel = |(title, cells): &(String, Cells)| grid::GridPanel {
        title: title.clone(),
        cells: cells.iter().map(place).collect(),
    };
    let grid = Grid {
        title: map.title.clone(),
        x_label: "query head".to_owned(),
        y_label: "layer".to_owned(),
        columns: names(&heads),
        lines: names(&layers),
        panels: map.panels.iter().map(panel).collect(),
        scale: Scale::up_to(&map.label, cells().map(|cell| cell.2), Deeper::More),
        notes: Vec::new(),
    };
    Ok(grid.pages(usize::MAX)?.drawn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_lab::analyze::findings::{Panel, Point};

    #[test]
    fn lines_below_zero_and_maps_of_some_layers_are_drawn() {
        let series =
            vec![("cos".to_owned(), vec![Point::at(0.0, -0.5), Point { x: 3.0, y: 0.25, ends: Some((-0.75, 0.5)) }])];
        let lines = Lines { name: "a b".into(), panels: vec![Panel { title: "p".into(), series }], ..Lines::default() };
        let drawn = figure(&Drawing::Lines(lines)).unwrap().remove(0);
        assert_eq!(drawn.file, "a-b.svg");
        for text in ["\ncos\n", "\n-0.6\n", "\n0.2\n", "\np\n"] {
            assert!(drawn.svg.contains(text), "{text} is missing in\n{}", drawn.svg);
        }
        let map =
            |cells| Map { name: "m".into(), title: "t".into(), label: "x".into(), panels: vec![("q".into(), cells)] };
        let drawn = figure(&Drawing::Map(map(vec![(3, 1, 0.25), (7, 0, 0.5)]))).unwrap().remove(0);
        for text in ["\n3\n", "\n7\n", "\n0.25\n", "\nq\n"] {
            assert!(drawn.svg.contains(text), "{text} is missing in\n{}", drawn.svg);
        }
        assert_eq!(figure(&Drawing::Map(map(vec![]))).unwrap(), []);
        assert_eq!(figure(&Drawing::Lines(Lines::default())).unwrap(), []);
    }
}
