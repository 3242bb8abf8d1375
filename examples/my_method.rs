//! A user's own sparse attention method in one file, with the whole command line of `spattn`.
//!
//! The context is cut into blocks. Each block stores the mean of its keys; a step attends the blocks whose means have the largest products
//! with the query. `docs/adding-a-method.md` explains this file.
//!
//! ```sh
//! cargo run --release --example my_method -- list methods my_method
//! cargo run --release --example my_method -- eval -t ruler/niah_single_2 -l 1K -n 5 -m 'my_method:block={8,32}' -m quest
//! ```

use std::process::ExitCode;
use std::sync::Arc;

use spattn::attention::methods::MethodEntry;
use spattn::attention::{Budget, HeadPrefix, IndexKey, Method, ParamInfo, Role, SelectedTokens, Selection, Step};
use spattn::cost::Cost;
use spattn::kernels::cpu::Rows;
use spattn::kv::KvError;

fn main() -> ExitCode {
    spattn::cli::main_with(&[MY_METHOD])
}

const MY_METHOD: MethodEntry = MethodEntry {
    name: "my_method",
    role: Role::Method,
    about: "whole blocks by the mean of their keys",
    reference: "an example of this project; the scores are those of MoBA (Lu et al. 2025, arXiv:2502.13189)",
    params: &[
        ParamInfo { key: "block", default: "16", about: "tokens a block" },
        ParamInfo { key: "ratio", default: "0.0625", about: "share of the context read as blocks, above 0 to 1" },
        ParamInfo { key: "k", default: "-", about: "instead of ratio: tokens read as blocks (rounded up to blocks)" },
    ],
    presets: &[],
    build: |params| {
        let block = params.get_positive("block", 16)?;
        let budget = params.budget(Budget::Ratio(0.0625))?;
        Ok(Arc::new(BlockMeans { block, budget }))
    },
};

/// The method with its parameters: one value for all layers, heads and examples.
struct BlockMeans {
    /// Tokens of a block.
    block: usize,
    /// How many tokens may be attended besides the static ones.
    budget: Budget,
}

impl Method for BlockMeans {
    /// Mean keys of one KV head, `[block][d]`.
    type Index = Vec<f32>;
    type State = ();

    /// Runs that differ in their budgets alone share an index.
    fn index_key(&self) -> IndexKey {
        let Self { block, budget: _ } = self;
        IndexKey::new(*block)
    }

    /// The keys may lie in memory, on a device or in a file: they are read in order, whole blocks at a time.
    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Vec<f32>, KvError> {
        let mut means = Vec::new();
        prefix.candidate_keys().each_block(self.block, |keys| {
            means.extend(keys.chunks(self.block * prefix.d).flat_map(|block| mean(block, prefix.d)));
        })?;
        Ok(means)
    }

    fn index_bytes(&self, means: &Vec<f32>) -> usize {
        size_of_val(means.as_slice())
    }

    fn start(&self, _: &Vec<f32>) {}

    /// Each query head of the group selects separately.
    fn select(&self, step: &Step<'_>, means: &Vec<f32>, (): &mut (), cost: &mut Cost) -> Result<Selection, KvError> {
        let scores = step.score_rows(Rows::F32(means), cost);
        cost.aux_bytes += size_of_val(means.as_slice()) as u64;
        let blocks = means.len() / step.d;
        let count = self.budget.blocks(step.context, self.block);
        let of_head = |scores: &[f32]| SelectedTokens::softmax(self.tokens(step, &largest(scores, count)));
        Ok(Selection::PerHead(scores.chunks(blocks).map(of_head).collect()))
    }
}

impl BlockMeans {
    /// The tokens of some blocks, by their positions in the context.
    fn tokens(&self, step: &Step<'_>, blocks: &[usize]) -> Vec<u32> {
        let begin = |block: usize| step.candidates.start + block * self.block;
        let of_block = |block: &usize| begin(*block)..begin(block + 1).min(step.candidates.end);
        blocks.iter().flat_map(of_block).map(|token| token as u32).collect()
    }
}

/// The mean of vectors `[vector][d]`.
fn mean(vectors: &[f32], d: usize) -> Vec<f32> {
    let count = (vectors.len() / d) as f32;
    (0..d).map(|channel| vectors.iter().skip(channel).step_by(d).sum::<f32>() / count).collect()
}

/// Indices of the `count` largest scores; ties by ascending index.
fn largest(scores: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order.truncate(count);
    order
}
