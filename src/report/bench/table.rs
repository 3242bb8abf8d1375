//! The tables on the terminal.

use super::columns::{columns, legend, method_name, notes, roof_line};
use super::scene::{Scene, scenes};
use crate::report::format::tokens;
use crate::report::table::{grouped, lines};
use spattn_lab::bench::Bench;

/// The number of leading text columns.
const TEXT_COLUMNS: usize = 2;

/// Renders the machine's limits, then an aligned table for each operation, shape, device and batch, then the meaning of the columns
/// and notes. In a table, each context has a line above its rows.
///
/// If there are no rows, the text says so.
pub fn table(bench: &Bench) -> String {
    let mut text = String::new();
    if bench.rows.is_empty() {
        text.push_str("no results\n");
    } else {
        let scenes = scenes(bench);
        text.push_str(&(roof_line(bench) + "\n"));
        text.extend(scenes.iter().map(one_table));
        text.push('\n');
        text.extend(legend(&scenes).into_iter().map(|line| line + "\n"));
    }
    text.extend(notes(bench).into_iter().map(|note| format!("note: {note}\n")));
    text
}

fn one_table(scene: &Scene) -> String {
    let columns = columns(&scene.rows);
    // A heading longer than its numbers is broken into two lines.
    let headings = columns.iter().map(|column| match column.heading {
        "bandwidth %" => "band-\nwidth %".to_owned(),
        heading => heading.replace(' ', "\n"),
    });
    let headings = ["method", "params"].into_iter().map(str::to_owned).chain(headings).collect();
    let contexts: Vec<_> = scene.contexts().into_iter().map(|context| (context, scene.at(context))).collect();
    let rows = contexts.iter().flat_map(|(_, rows)| rows).map(|row| {
        let name = [method_name(row), row.all_params()];
        name.into_iter().chain(columns.iter().map(|column| (column.cell)(row))).collect()
    });
    let lines = lines(headings, rows.collect(), TEXT_COLUMNS);
    let groups: Vec<_> =
        contexts.iter().map(|(context, rows)| (format!("{} tokens\n", tokens(*context)), rows.len())).collect();
    format!("\n{}: {}\n\n{}", scene.title(), scene.conditions(), grouped(&lines, &groups))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{bench, full, peer, sparse};
    use super::*;
    use spattn_lab::bench::BenchRow;

    #[test]
    fn a_table_says_what_was_measured() {
        let quest = BenchRow {
            time_us: 12_345.0,
            time_low_us: Some(12_100.0),
            time_high_us: Some(12_500.0),
            speedup_vs_full: Some(3.25),
            bytes: 8,
            gbps: 14.5,
            bandwidth_share: Some(0.725),
            limit_share: Some(0.61),
            ..sparse("quest", 0.05, 8192)
        };
        let mut bench = bench(vec![full(4096), full(8192), quest, peer(8192)]);
        bench.notes.push("keys are drawn at random".into());
        let text = table(&bench);
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..3],
            [
                "the read bandwidth is 20.0 GB/s, and multiply-adds in registers reach 200 GFLOP/s",
                "",
                "attention, llama3-8b, batch 1, cpu: f32, 2 threads, 1 layer",
            ]
        );
        assert_eq!(squeezed(lines[4]), "method params density time ×full GB/s band- limit", "{text}");
        let body = lines.iter().position(|line| line.starts_with('─')).unwrap() + 1;
        let shown: Vec<String> = lines[body..].iter().map(|line| squeezed(line)).collect();
        assert_eq!(
            shown[..7],
            [
                "4K tokens",
                "full 1.00 100 µs 1.00",
                "",
                "8K tokens",
                "full 1.00 100 µs 1.00",
                "quest density=0.05 0.0500 12.3 ms [12.1 12.5] 3.25 14.5 72.5 61.0",
                "torch_sdpa_bf16 (peer) 1.00 100 µs",
            ],
            "{text}"
        );
        assert!(shown[8].starts_with("density: tokens attended over tokens in context; time: median"), "{text}");
        assert_eq!(shown[9..], ["note: keys are drawn at random"], "no further columns, no further legend");
        let heading = lines[4];
        let ends = |line: &str, part: &str| line[..line.find(part).unwrap() + part.len()].chars().count();
        assert_eq!(ends(heading, "density"), ends(lines[body + 5], "0.0500"), "numbers are to the right:\n{text}");
    }

    #[test]
    fn parts_and_indexes_have_columns_where_they_are_known() {
        let plain = table(&bench(vec![full(4096)]));
        let parts = BenchRow {
            score_us: Some(10.0),
            pick_us: Some(4.0),
            select_us: Some(15.0),
            attend_us: Some(80.0),
            weights_us: Some(5.0),
            ..sparse("quest", 0.05, 4096)
        };
        let index = BenchRow {
            op: "index".into(),
            index_ms: Some(2500.0),
            aux_bits: Some(32.0),
            aux_bytes: Some(4_500_000),
            ..full(4096)
        };
        let text = table(&bench(vec![full(4096), parts, index]));
        let headings = |text: &str| -> Vec<Vec<String>> {
            let heading = text.lines().filter(|line| line.starts_with("method"));
            heading.map(|line| line.split_whitespace().skip(8).map(str::to_owned).collect()).collect()
        };
        assert_eq!(headings(&plain), [Vec::<String>::new()], "{plain}");
        assert_eq!(
            headings(&text),
            [vec!["score", "pick", "select", "attend", "weights"], vec!["index", "aux", "aux"]],
            "{text}"
        );
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
        let quest: Vec<&str> = line("quest").split_whitespace().collect();
        assert_eq!(
            quest[3..],
            ["100", "µs", "10.0", "µs", "4.00", "µs", "15.0", "µs", "80.0", "µs", "5.00", "µs"],
            "{text}"
        );
        assert!(
            text.contains("2.50 s") && text.contains("4.50") && text.contains("\nindex, llama3-8b, batch 1, cpu: f32"),
            "{text}"
        );
        assert!(text.contains("; index: building the index, once; aux bits: ") && !plain.contains("score: "), "{text}");
    }

    #[test]
    fn nothing_is_said_to_be_nothing() {
        assert_eq!(table(&bench(vec![])), "no results\n");
        let left_out = Bench { notes: vec!["left out: hip.".to_owned()], ..bench(vec![]) };
        assert_eq!(table(&left_out), "no results\nnote: left out: hip.\n", "why there are none");
    }
}
