//! Launches of the tree search on a GPU.

use std::ops::Range;

use super::Hip;
use super::search::Offset;
use crate::backend::active::{Built, CudaForm, DeviceLayer, DeviceScratch, DeviceStep, DeviceWorkspace, MaskLaunch};
use crate::backend::index::PrefixStatsView;
use spattn_cuda::{Cache, GpuError, Sampling, SearchedKeys, TokenListLayout, Tree, TreeTails, TreeWorkspace};

impl Hip {
    fn tree(&self, tokens: Range<usize>) -> Tree {
        Tree {
            tokens,
            size: self.key_block,
            stride: self.search.key_stride,
            last: self.search.key_offset == Offset::Last,
            representative: self.search.representative.0,
        }
    }
}

impl CudaForm for Hip {
    /// Nothing: keys are searched where the cache holds them.
    type Index = ();

    fn build_all(&self, _: &DeviceLayer<'_>, _: &PrefixStatsView<'_>) -> Result<Built<()>, GpuError> {
        Ok(Built::default())
    }

    fn select_all(
        &self,
        step: &DeviceStep<'_>,
        (): &(),
        to: &mut DeviceWorkspace,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError> {
        let (gpu, cache, candidates) = (step.prefix.gpu, &step.prefix.cache, step.prefix.candidates.clone());
        let lists = self.count_lists(step.queries.heads, cache.kv_heads);
        let ends = step.ends.map_or_else(|| vec![candidates.end; step.budget_units.len()], <[usize]>::to_vec);
        let longest = ends.iter().max().map_or(0, |end| end - candidates.start);
        let most = step.budget_units.iter().max().map_or(0, |keep| *keep as usize * self.key_block).min(longest);
        to.lists.resize(gpu, TokenListLayout::new(lists, most).counted(), ends)?;
        to.budget_units.set(gpu, step.budget_units.to_vec())?;
        let (tree, workspace): (_, &mut TreeWorkspace) = (self.tree(candidates), scratch.own.of());
        let keys: Vec<Cache<'_>> = step.runs.iter().map(|run| run.tail).collect();
        let tails = step.ends.map(|ends| TreeTails { prefix_tokens: step.prefix_tokens, ends, keys: &keys });
        let keys = SearchedKeys { prefix: cache, tails, cached: step.keys };
        gpu.search_tree(&step.queries, &keys, &tree, &to.budget_units, &mut to.lists, workspace)
    }
}

impl MaskLaunch for Hip {
    fn search(&self) -> (Tree, Sampling) {
        (self.tree(0..0), Sampling { stride: self.query_stride, last: self.query_offset == Offset::Last })
    }
}
