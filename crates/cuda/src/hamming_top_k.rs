//! Selects the tokens whose signatures are nearest to those of queries in one launch, without writing scores.

use cudarc::driver::LaunchConfig;

use super::host_device_vec::HostDeviceVec;
use super::maps::{Signatures, TieOrder};
use super::scores::Reduction;
use super::token_lists::TokenLists;
use super::{Buffer, Gpu, GpuError, failed};

/// Threads of a block, bytes of shared memory before those for its tokens, and the least bytes for distances: lists are staged there too.
const THREADS: u32 = 512;
const SHARED: usize = 18 << 10;
const LEAST_CELLS: usize = 16 << 10;
/// The number of a block's tokens is a multiple of this.
const CHUNK: usize = 128;
/// How many blocks may compute a list together.
const CLUSTERS: [usize; 3] = [8, 4, 2];
/// The most words of the signatures of all heads of a list: with more, writing and reading scores is faster.
const MOST_WORDS: usize = 8;

/// How a list is computed: number of blocks, tokens of each, bytes of shared memory for distances, and in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LaunchPlan {
    cluster: usize,
    chunk: usize,
    cells: usize,
    shared: usize,
}

impl LaunchPlan {
    /// Plans `lists` lists of `tokens` tokens, each of which takes `bytes` bytes, on `processors` multiprocessors with `most` bytes of
    /// shared memory. Takes the most blocks for a list that the multiprocessors suffice for, or more if two would not fit on one; returns
    /// `None` if not even one block fits.
    fn new(lists: usize, tokens: usize, bytes: usize, processors: usize, most: usize) -> Option<Self> {
        let of = |cluster: usize| {
            let chunk = tokens.div_ceil(cluster).next_multiple_of(CHUNK);
            let cells = LEAST_CELLS.max(chunk * bytes);
            Self { cluster, chunk, cells, shared: SHARED + chunk / 4 + cells }
        };
        let least = CLUSTERS.into_iter().find(|cluster| lists * cluster <= processors).unwrap_or(CLUSTERS[2]);
        let larger = || CLUSTERS.into_iter().rev().filter(|cluster| *cluster >= least).map(of);
        larger().find(|plan| 2 * plan.shared <= most).or_else(|| larger().find(|plan| plan.shared <= most))
    }
}

/// A prepared selection of the nearest tokens.
#[derive(Debug, Clone, Copy)]
pub struct Nearest<'a> {
    keys: Signatures<'a>,
    plan: LaunchPlan,
    kind: &'static str,
    /// Heads of a list, lists of a row, and how many consecutive lists have the same keys.
    of_list: usize,
    of_row: usize,
    sharing: usize,
}

impl<'a> Nearest<'a> {
    /// Prepares a selection for `rows` rows of `heads` query heads among keys with signatures. Returns `None` if no kernel supports it,
    /// or if writing scores is faster.
    ///
    /// # Panics
    /// If the numbers of heads, KV heads and nets do not match.
    pub fn new(
        gpu: &Gpu,
        (rows, heads): (usize, usize),
        keys: Signatures<'a>,
        reduction: Option<Reduction>,
    ) -> Option<Self> {
        let Signatures { kv_heads, nets, words, tokens, .. } = keys;
        assert!(heads.is_multiple_of(kv_heads), "{heads} query heads are no multiple of {kv_heads} KV heads");
        let group = heads / kv_heads;
        assert!(nets == 1 || nets == group, "{nets} hash networks for a GQA group of {group} query heads");
        let (of_list, of_row, sharing) = match reduction {
            None => (1, heads, group / nets),
            Some(Reduction::Sum) if nets == 1 => (group, kv_heads, 1),
            Some(_) => return None,
        };
        let (kind, cell) = match (words, of_list) {
            (1, 1) => ("one", size_of::<u8>()),
            (1, 3 | 4) => ("four", size_of::<u8>()),
            _ => ("any", size_of::<u16>()),
        };
        if !gpu.is_hopper || rows == 0 || tokens == 0 || words * of_list > MOST_WORDS {
            return None;
        }
        let plan = LaunchPlan::new(rows * of_row, tokens, cell, gpu.processors(), gpu.most_shared)?;
        Some(Self { keys, plan, kind, of_list, of_row, sharing })
    }
}

impl Gpu {
    /// Selects the tokens whose signatures are nearest to those of queries, `[row][head][word]`, in ascending order: those with the
    /// largest scores that [`score_signatures`](Self::score_signatures) would write, the earlier among equals. `chosen` has the number to
    /// select for each row of `lists`; the first key is that of token `first`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small, or tie-breaking could reach the next distance.
    pub fn nearest_signatures(
        &self,
        nearest: Nearest<'_>,
        queries: &Buffer,
        ties: TieOrder,
        (chosen, first): (&HostDeviceVec<u32>, usize),
        lists: &mut TokenLists,
    ) -> Result<(), GpuError> {
        let Nearest { keys, plan: LaunchPlan { cluster, chunk, cells, shared }, kind, of_list, of_row, sharing } =
            nearest;
        let Signatures { buffer, kv_heads, nets, words, tokens } = keys;
        let rows = chosen.numbers().len();
        let most = chosen.numbers().iter().max().map_or(0, |most| (*most as usize).min(tokens));
        lists.assert_room([rows, of_row], most, first + tokens);
        let highest = ((1u64 << ties.levels) - 1) as f64 * f64::from(ties.unit);
        assert!(
            of_list as f64 * highest < 1.0,
            "tie-breaking adds up to {highest} for each of {of_list} heads, which must be below 1 in all"
        );
        let from = queries.address(0, 4 * rows * of_row * of_list * words);
        let of_keys = buffer.address(0, Signatures::bytes_of(kv_heads * nets, words, tokens));
        let function =
            self.with_shared("hamming_top_hopper", &format!("hamming_top_{kind}_{cluster}"), shared as u32)?;
        let ([to, counts], numbers) = (lists.addresses(0), chosen.address(0..rows));
        let (stride, columns) = (Signatures::stride(tokens) as u64, tokens as u32);
        let [chunk, cells] = [chunk, cells].map(|n| n as u32);
        let (first, most) = (first as u32, lists.most() as u32);
        let prices = of_list.div_ceil(2);
        let [words, of_list, prices, sharing] = [words, of_list, prices, sharing].map(|n| n as i32);
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&words).arg(&of_list).arg(&prices).arg(&sharing).arg(&of_keys).arg(&stride);
        launch
            .arg(&columns)
            .arg(&chunk)
            .arg(&cells)
            .arg(&ties)
            .arg(&numbers)
            .arg(&first)
            .arg(&to)
            .arg(&most)
            .arg(&counts);
        let grid = ((cluster * of_row) as u32, rows as u32, 1);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: shared as u32 };
        // SAFETY: the signatures of queries and keys, numbers and lists are as long as checked above, and the plan is for these keys.
        unsafe { launch.launch(grid) }.map_err(failed("looking for the nearest signatures"))
    }
}

#[cfg(test)]
mod tests {
    use super::LaunchPlan;

    #[test]
    fn lists_are_found_by_as_many_blocks_as_there_are_processors_and_by_more_where_two_do_not_fit() {
        let clusters = |lists: usize, tokens: usize| {
            LaunchPlan::new(lists, tokens, 1, 132, 227 << 10).map(|plan| (plan.cluster, plan.chunk))
        };
        // Eight lists of one sequence; those of two, four and eight sequences; and eight sequences with lists for all heads.
        let of_lists = [8, 16, 32, 64, 256].map(|lists| clusters(lists, 131_072));
        assert_eq!(of_lists, [(8, 16_384), (8, 16_384), (4, 32_768), (2, 65_536), (2, 65_536)].map(Some));
        // Two blocks of a quarter of 524,288 tokens do not fit on a multiprocessor; of 2M tokens, not even one block of an eighth fits.
        assert_eq!(clusters(64, 524_288), Some((8, 65_536)));
        assert_eq!(clusters(64, 1_048_576), Some((8, 131_072)));
        assert_eq!(clusters(64, 2_097_152), None);
        assert_eq!(clusters(8, 5), Some((8, 128)));
    }
}
