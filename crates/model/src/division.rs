//! Which layers of a model each of several GPUs holds, and the memory that a part of a model takes.

use std::ops::Range;

use super::device::{self, Device};
use super::dimensions::Dimensions;
use super::layers::{self, MatrixSizes};
use spattn_base::error::UsageError;
use spattn_base::memory::{product, sum};

/// The layers on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuShare {
    /// The number of the GPU, as the driver counts.
    pub ordinal: usize,
    /// Bytes of its memory that were [free](device::free_bytes), if known.
    pub free: Option<u64>,
    /// The layers.
    pub layers: Range<usize>,
}

impl Dimensions {
    /// Divides the layers among GPUs, so that weights and the KV cache of `tokens` tokens take about the same share of each GPU's free
    /// memory: the largest share is as small as whole layers allow. Each GPU gets at least one layer. On a processor, there is nothing to
    /// divide.
    ///
    /// # Errors
    /// Those of [`Device::check`].
    pub fn divide(&self, device: Device, tokens: usize) -> Result<Vec<GpuShare>, UsageError> {
        device.check(self.config().layers)?;
        let ordinals = device.ordinals();
        if ordinals.is_empty() {
            return Ok(Vec::new());
        }
        let free: Vec<Option<u64>> = ordinals.iter().map(|ordinal| device::free_bytes(*ordinal)).collect();
        // If the memory of one GPU is unknown, all are treated alike.
        let rooms: Vec<f64> = match free.iter().copied().collect::<Option<Vec<u64>>>() {
            Some(free) => free.into_iter().map(|bytes| bytes.max(1) as f64).collect(),
            None => vec![1.0; ordinals.len()],
        };
        let sizes = self.matrix_bytes();
        let load = |layers: &Range<usize>| {
            sum([self.bytes_of_part(&sizes, layers), product([tokens, self.kv_bytes_per_token_of(layers)])]) as f64
        };
        let divided = divided(self.config().layers, &rooms, load);
        let shares = ordinals.into_iter().zip(free).zip(divided);
        Ok(shares.map(|((ordinal, free), layers)| GpuShare { ordinal, free, layers }).collect())
    }

    /// Bytes of the weight matrices of a part of a model: its layers, the embedding table if it begins the model, and the output matrix if
    /// it ends it. A table that serves as both is counted once.
    pub fn weight_bytes_of(&self, part: &Range<usize>) -> usize {
        self.bytes_of_part(&self.matrix_bytes(), part)
    }

    fn bytes_of_part(&self, sizes: &MatrixSizes, part: &Range<usize>) -> usize {
        let MatrixSizes { embedding, head, layers } = sizes;
        let (begins, ends) = (part.start == 0, part.end == layers.len());
        let has_table = begins || ends && self.config().tie_word_embeddings;
        let ends_of_model = [has_table.then_some(embedding), ends.then_some(head)].into_iter().flatten();
        layers[part.clone()].iter().chain(ends_of_model).fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Bytes of the keys and values of one token in some layers.
    pub fn kv_bytes_per_token_of(&self, layers: &Range<usize>) -> usize {
        // All layers take the same amount.
        product([self.kv_bytes_per_token() / self.config().layers.max(1), layers.len()])
    }

    /// Bytes of the weight matrices in memory, part by part.
    fn matrix_bytes(&self) -> MatrixSizes {
        if let Some(blocks) = self.blocks() {
            return blocks.sizes.clone();
        }
        let bytes = |numbers: usize| self.weight_dtype().bytes_of(numbers);
        let MatrixSizes { embedding, head, layers } = layers::matrix_sizes(self.config());
        MatrixSizes { embedding: bytes(embedding), head: bytes(head), layers: layers.into_iter().map(bytes).collect() }
    }
}

/// Divides layers among places, each with some room: consecutive layers in the order of the places, at least one each, such that the
/// largest ratio of load to room is as small as possible. `load` is the load of a range of layers.
fn divided(layers: usize, rooms: &[f64], load: impl Fn(&Range<usize>) -> f64) -> Vec<Range<usize>> {
    assert!((1..=layers).contains(&rooms.len()), "{layers} layers cannot be divided among {} places", rooms.len());
    // By number of places and of layers: the smallest possible maximum, and where the last place begins.
    let mut best = vec![vec![(f64::INFINITY, 0); layers + 1]; rooms.len() + 1];
    best[0][0].0 = 0.0;
    for (places, room) in rooms.iter().enumerate() {
        for end in places + 1..=layers {
            for begin in places..end {
                let share = best[places][begin].0.max(load(&(begin..end)) / room);
                if share < best[places + 1][end].0 {
                    best[places + 1][end] = (share, begin);
                }
            }
        }
    }
    let mut parts = Vec::with_capacity(rooms.len());
    let mut end = layers;
    for places in (1..=rooms.len()).rev() {
        let (_, begin) = best[places][end];
        parts.push(begin..end);
        end = begin;
    }
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelConfig;
    use crate::source::ModelSource;
    use crate::tensors::Weights;
    use spattn_attention::kv::KvDtype;
    use spattn_kernels::quantised::BlockType;

    fn config_of(shape: &str) -> ModelConfig {
        let texts = ModelSource::parse(&format!("random:{shape}")).unwrap().resolve_texts().unwrap();
        texts.config().unwrap()
    }

    /// The smallest maximum over all divisions, found by trying each of them.
    fn smallest(costs: &[f64], rooms: &[f64]) -> f64 {
        let [room, rest @ ..] = rooms else { return if costs.is_empty() { 0.0 } else { f64::INFINITY } };
        let first = |count: usize| {
            let own = costs[..count].iter().sum::<f64>() / room;
            own.max(smallest(&costs[count..], rest))
        };
        (1..=costs.len()).map(first).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn no_other_way_to_divide_has_a_smaller_maximum() {
        let costs = [5.0, 1.0, 1.0, 4.0, 2.0, 2.0, 7.0, 1.0];
        for rooms in [&[1.0][..], &[1.0, 1.0], &[3.0, 1.0], &[1.0, 2.0, 1.0], &[1.0; 8]] {
            let load = |layers: &Range<usize>| costs[layers.clone()].iter().sum::<f64>();
            let parts = divided(costs.len(), rooms, load);
            assert!(parts.iter().all(|part| !part.is_empty()), "{parts:?}");
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{parts:?}");
            assert_eq!((parts[0].start, parts[parts.len() - 1].end, parts.len()), (0, costs.len(), rooms.len()));
            let most = parts.iter().zip(rooms).map(|(part, room)| load(part) / room).fold(0.0, f64::max);
            assert_eq!(most, smallest(&costs, rooms), "{rooms:?}: {parts:?}");
        }
    }

    #[test]
    #[should_panic(expected = "2 layers cannot be divided among 3 places")]
    fn a_place_without_a_layer_is_none() {
        divided(2, &[1.0; 3], |_| 1.0);
    }

    #[test]
    fn parts_take_what_the_model_takes_and_a_shared_table_is_on_both_ends() {
        for (shape, is_tied) in [("llama-3.1-70b", false), ("llama-3.2-1b", true), ("qwen3-30b-a3b", false)] {
            let config = config_of(shape);
            assert_eq!(config.tie_word_embeddings, is_tied, "{shape}");
            let plain = Dimensions::new(&config, KvDtype::Bf16);
            let blocks = plain.clone().keeping_blocks(&Weights::random_in(1, BlockType::Q4K));
            for dimensions in [&plain, &blocks] {
                let layers = config.layers;
                assert_eq!(dimensions.weight_bytes_of(&(0..layers)), dimensions.weight_bytes(), "{shape}");
                let of = |part: Range<usize>| dimensions.weight_bytes_of(&part);
                let table = dimensions.matrix_bytes().embedding;
                let apart = of(0..3) + of(3..layers - 1) + of(layers - 1..layers);
                assert_eq!(apart, dimensions.weight_bytes() + if is_tied { table } else { 0 }, "{shape}");
                assert!(table > 0 && of(0..3) > table && of(3..5) < of(0..3), "{shape}");
            }
        }
    }

    #[test]
    fn long_contexts_even_out_what_the_ends_of_a_model_take() {
        let dimensions = Dimensions::new(&config_of("llama-3.2-1b"), KvDtype::Bf16);
        // A table of 0.5 GB at both ends, and layers of 0.12 GB: two halves.
        let parts = |tokens| {
            let load = |part: &Range<usize>| {
                (dimensions.weight_bytes_of(part) + tokens * dimensions.kv_bytes_per_token_of(part)) as f64
            };
            divided(16, &[3.0, 1.0], load)
        };
        // A GPU with a third of the other's memory: its table takes much of it, until keys and values take most.
        let (short, long) = (parts(0)[1].len(), parts(10_000_000)[1].len());
        assert!(short < long && long == 4, "{short} of 16 layers, then {long}");
    }
}
