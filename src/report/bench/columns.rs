//! The columns that the terminal's tables and the page share, and times as text.

use super::scene::Scene;
use crate::report::format::{distinct, number, setting_name, tokens};
use spattn_lab::bench::{Bench, BenchRow};

/// A column of measured values.
pub struct BenchColumn {
    /// Heading, with the unit where there is one.
    pub heading: &'static str,
    /// What it means.
    pub about: &'static str,
    /// The cell of a row; empty if the row has no such value.
    pub cell: fn(&BenchRow) -> String,
    /// Whether the column is shown for these rows.
    is_shown: fn(&[&BenchRow]) -> bool,
}

const ALWAYS: fn(&[&BenchRow]) -> bool = |_| true;

/// In reading order: under which conditions where rows differ in them, what was achieved, and what it is made of.
const ALL: [BenchColumn; 21] = [
    BenchColumn {
        heading: "dtype",
        about: "storage type of keys and values",
        cell: |r| r.dtype.clone(),
        is_shown: |rows| differ(rows, |r| &r.dtype),
    },
    BenchColumn {
        heading: "threads",
        about: "threads of the processor",
        cell: |r| r.threads.to_string(),
        is_shown: |rows| differ(rows, |r| &r.threads),
    },
    BenchColumn {
        heading: "density",
        about: "tokens attended over tokens in context",
        cell: |r| number(r.density),
        is_shown: ALWAYS,
    },
    BenchColumn { heading: "time", about: "median with its 95 % interval", cell: time, is_shown: ALWAYS },
    BenchColumn {
        heading: "×full",
        about: "speed-up over full",
        cell: |r| optional(r.speedup_vs_full),
        is_shown: ALWAYS,
    },
    BenchColumn {
        heading: "GB/s",
        about: "bytes read and written a second",
        cell: |r| if r.bytes > 0 { number(r.gbps) } else { String::new() },
        is_shown: ALWAYS,
    },
    BenchColumn {
        heading: "bandwidth %",
        about: "GB/s as a share of the read bandwidth",
        cell: |r| percent(r.bandwidth_share),
        is_shown: ALWAYS,
    },
    BenchColumn {
        heading: "limit %",
        about: "time to read the selected keys and values and the index at the read bandwidth, as a share of the time",
        cell: |r| percent(r.limit_share),
        is_shown: ALWAYS,
    },
    BenchColumn {
        heading: "bus GB/s",
        about: "bytes a second over the bus: keys and values of host memory, and what goes to a host that attends and comes back",
        cell: |r| optional(r.bus_gbps),
        is_shown: |rows| any(rows, |r| r.bus_gbps),
    },
    BenchColumn {
        heading: "link %",
        about: "bus GB/s as a share of what a copy from pinned host memory to the GPU reaches",
        cell: |r| percent(r.link_share),
        is_shown: |rows| any(rows, |r| r.link_share),
    },
    BenchColumn {
        heading: "host GB/s",
        about: "bytes that the host reads a second of what it selects and attends for a GPU",
        cell: |r| optional(r.host_gbps),
        is_shown: |rows| any(rows, |r| r.host_gbps),
    },
    BenchColumn {
        heading: "host %",
        about: "host GB/s as a share of what the host's threads read of a large buffer",
        cell: |r| percent(r.host_share),
        is_shown: |rows| any(rows, |r| r.host_share),
    },
    BenchColumn {
        heading: "score",
        about: "scoring of candidates, a part of select",
        cell: |r| r.score_us.map_or(String::new(), duration),
        is_shown: |rows| any(rows, |r| r.score_us),
    },
    BenchColumn {
        heading: "pick",
        about: "choice of tokens by score, the other part of select",
        cell: |r| r.pick_us.map_or(String::new(), duration),
        is_shown: |rows| any(rows, |r| r.pick_us),
    },
    BenchColumn {
        heading: "select",
        about: "selection of the tokens to attend",
        cell: |r| r.select_us.map_or(String::new(), duration),
        is_shown: |rows| any(rows, |r| r.select_us),
    },
    BenchColumn {
        heading: "attend",
        about: "attention to the selected tokens",
        cell: |r| r.attend_us.map_or(String::new(), duration),
        is_shown: |rows| any(rows, |r| r.attend_us),
    },
    BenchColumn {
        heading: "weights",
        about: "all other work of a step",
        cell: |r| r.weights_us.map_or(String::new(), duration),
        is_shown: |rows| any(rows, |r| r.weights_us),
    },
    BenchColumn {
        heading: "index",
        about: "building the index, once",
        cell: |r| r.index_ms.map_or(String::new(), |ms| duration(1e3 * ms)),
        is_shown: |rows| any(rows, |r| r.index_ms),
    },
    BenchColumn {
        heading: "aux bits",
        about: "memory of the index per token and KV head",
        cell: |r| optional(r.aux_bits),
        is_shown: |rows| any(rows, |r| r.aux_bits),
    },
    BenchColumn {
        heading: "aux MB",
        about: "memory of the whole index",
        cell: |r| optional(r.aux_bytes.map(|bytes| bytes as f64 / 1e6)),
        is_shown: |rows| rows.iter().any(|r| r.aux_bytes.is_some()),
    },
    BenchColumn {
        heading: "GFLOP/s",
        about: "operations a second",
        cell: |r| if r.flops > 0 { number(r.gflops) } else { String::new() },
        // The only rate if bytes are not counted.
        is_shown: |rows| rows.iter().any(|r| r.flops > 0) && rows.iter().all(|r| r.bytes == 0),
    },
];

/// The columns for the rows of a scene.
pub fn columns(rows: &[&BenchRow]) -> Vec<&'static BenchColumn> {
    ALL.iter().filter(|column| (column.is_shown)(rows)).collect()
}

/// What the columns of all scenes mean: one line for the columns that every scene has, and one for the others if there are any.
pub fn legend(scenes: &[Scene]) -> Vec<String> {
    let is_known = |column: &&BenchColumn| scenes.iter().any(|scene| (column.is_shown)(&scene.rows));
    // The usual ones need no row that has them.
    let (usual, others): (Vec<&BenchColumn>, Vec<&BenchColumn>) =
        ALL.iter().filter(is_known).partition(|column| (column.is_shown)(&[]));
    let line = |columns: &[&BenchColumn]| {
        columns.iter().map(|column| format!("{}: {}", column.heading, column.about)).collect::<Vec<_>>().join("; ")
    };
    [usual, others].iter().filter(|columns| !columns.is_empty()).map(|columns| line(columns)).collect()
}

fn differ<T: PartialEq + ?Sized>(rows: &[&BenchRow], of: fn(&BenchRow) -> &T) -> bool {
    rows.windows(2).any(|pair| of(pair[0]) != of(pair[1]))
}

fn any(rows: &[&BenchRow], of: fn(&BenchRow) -> Option<f64>) -> bool {
    rows.iter().any(|row| of(row).is_some())
}

fn optional(x: Option<f64>) -> String {
    x.map_or(String::new(), number)
}

fn percent(share: Option<f64>) -> String {
    optional(share.map(|share| 100.0 * share))
}

/// A method's name in tables and figures. Peers are marked as such.
pub fn method_name(row: &BenchRow) -> String {
    if row.peer { format!("{} (peer)", row.method) } else { row.method.clone() }
}

// ---- times ----

/// Name and microseconds of each unit, the longest first.
const UNITS: [(&str, f64); 3] = [("s", 1e6), ("ms", 1e3), ("µs", 1.0)];

/// The unit in which a time has one to three digits before the decimal point, if there is one.
fn unit(us: f64) -> (&'static str, f64) {
    // A time that would round to 1000 is shown as 1 of the next unit.
    UNITS.into_iter().find(|(_, length)| us >= 0.9995 * length).unwrap_or(UNITS[2])
}

/// Microseconds in a readable unit, with about three digits.
pub fn duration(us: f64) -> String {
    let (name, length) = unit(us);
    format!("{} {name}", number(us / length))
}

/// The median with its interval, both in the median's unit.
fn time(row: &BenchRow) -> String {
    let (_, length) = unit(row.time_us);
    let median = duration(row.time_us);
    match row.time_low_us.zip(row.time_high_us) {
        Some((low, high)) => format!("{median} [{} {}]", number(low / length), number(high / length)),
        None => median,
    }
}

// ---- text around the tables ----

/// The machine's limits, in one line.
pub fn roof_line(bench: &Bench) -> String {
    let (bytes, flops) = (number(bench.roof.read_gbps), number(bench.roof.peak_gflops));
    if bench.rows.iter().any(|row| row.device != "cpu") {
        let of_device = format!(
            "a copy reads and writes {bytes} GB/s, and a large matrix product in bf16 computes {flops} GFLOP/s"
        );
        let of_link = bench.roof.link_gbps.map_or(String::new(), |[to, back]| {
            format!(
                "; copies between pinned host memory and the GPU reach {} GB/s, and {} back",
                number(to),
                number(back)
            )
        });
        let of_host =
            bench.roof.host_gbps.map_or(String::new(), |gbps| format!("; the host reads {} GB/s", number(gbps)));
        return of_device + &of_link + &of_host;
    }
    let operations = match bench.roof.is_tiled {
        true => "bf16 tile products from the L1 cache",
        false => "multiply-adds in registers",
    };
    format!("the read bandwidth is {bytes} GB/s, and {operations} reach {flops} GFLOP/s")
}

/// Notes for the reader: the benchmark's own, and which times vary much.
pub fn notes(bench: &Bench) -> Vec<String> {
    bench.notes.iter().cloned().chain(scattered(bench)).collect()
}

/// The interquartile range over the median from which a time counts as varying much.
const SCATTER: f64 = 0.1;

/// A note that names some of the rows whose times vary much; `None` if there are none.
fn scattered(bench: &Bench) -> Option<String> {
    const MOST_NAMED: usize = 6;
    let rows: Vec<&BenchRow> = bench.rows.iter().filter(|row| row.spread > SCATTER).collect();
    let ops = distinct(bench.rows.iter().map(|row| row.op.as_str())).len();
    let batches = distinct(bench.rows.iter().map(|row| row.batch)).len();
    let shapes = distinct(bench.rows.iter().map(|row| row.shape.as_str())).len();
    let name = |row: &&BenchRow| {
        let parts = [
            (ops > 1).then(|| row.op.clone()),
            (shapes > 1).then(|| row.shape.clone()),
            Some(setting_name(&method_name(row), &row.all_params())),
            Some(format!("at {}", tokens(row.context))),
            (batches > 1).then(|| format!("batch {}", row.batch)),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    let mut named: Vec<String> = rows.iter().take(MOST_NAMED).map(name).collect();
    if rows.len() > MOST_NAMED {
        named.push(format!("and {} more", rows.len() - MOST_NAMED));
    }
    let named = named.join(", ");
    match rows.len() {
        0 => None,
        1 => Some(format!("the time of 1 row varies by more than 10 %: {named}")),
        n => Some(format!("the times of {n} rows vary by more than 10 %: {named}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{bench, full, peer, sparse};
    use super::*;

    #[test]
    fn what_a_place_reaches_is_said_in_its_words() {
        let mut both = bench(vec![full(4096), peer(4096)]);
        assert!(
            roof_line(&both).starts_with("the read bandwidth is 20.0 GB/s, and multiply-adds"),
            "{}",
            roof_line(&both)
        );
        both.rows.iter_mut().for_each(|row| row.device = "NVIDIA H200".into());
        assert!(roof_line(&both).starts_with("a copy reads and writes 20.0 GB/s"), "{}", roof_line(&both));
        assert!(!roof_line(&both).contains("pinned"));
        both.roof.link_gbps = Some([55.0, 53.0]);
        let line = roof_line(&both);
        assert!(
            line.ends_with("copies between pinned host memory and the GPU reach 55.0 GB/s, and 53.0 back"),
            "{line}"
        );
        both.roof.host_gbps = Some(210.0);
        assert!(roof_line(&both).ends_with("and 53.0 back; the host reads 210 GB/s"), "{}", roof_line(&both));
    }

    #[test]
    fn times_have_the_unit_that_reads_best() {
        let shown = [0.5, 12.34, 999.4, 999.6, 1e3, 25_600.0, 2_500_000.0, 1e9].map(duration);
        assert_eq!(shown, ["0.500 µs", "12.3 µs", "999 µs", "1.00 ms", "1.00 ms", "25.6 ms", "2.50 s", "1000 s"]);
        let row = BenchRow { time_us: 1000.0, time_low_us: Some(990.0), time_high_us: Some(1040.0), ..full(4096) };
        assert_eq!(time(&row), "1.00 ms [0.990 1.04]");
    }

    #[test]
    fn what_scatters_is_named() {
        let loose = |row: BenchRow| BenchRow { spread: 0.11, ..row };
        let edge = BenchRow { spread: 0.1, ..sparse("topk", 0.05, 4096) };
        assert_eq!(notes(&bench(vec![full(4096), edge])), Vec::<String>::new());
        let two = notes(&bench(vec![loose(sparse("quest", 0.05, 4096)), full(4096), loose(peer(1000))]));
        let said =
            "the times of 2 rows vary by more than 10 %: quest density=0.05 at 4K, torch_sdpa_bf16 (peer) at 1000";
        assert_eq!(two, [said]);
        let many = notes(&bench((1..=8).map(|i| loose(full(1024 * i))).collect()));
        assert!(many[0].starts_with("the times of 8 rows") && many[0].ends_with("full at 6K, and 2 more"), "{many:?}");
    }
}
