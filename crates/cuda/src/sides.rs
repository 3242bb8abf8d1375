//! Signatures of keys by random hyperplanes, for a search by inner product: keys of a KV head are lengthened to the norm of the longest one
//! by a further coordinate (Neyshabur and Srebro 2015). Queries are signed in [`maps`](super::maps).

use std::ops::Range;

use cudarc::driver::LaunchConfig;

use super::launch::Cache;
use super::maps::Signatures;
use super::{Buffer, Gpu, GpuError, failed};
use spattn_kernels::GPU_WIDEST;

/// Threads of a block.
const THREADS: usize = 256;
/// Rows of a block that computes norms, one for each warp.
const NORMS: usize = THREADS / 32;
/// Keys of a block that signs, and the most hyperplanes.
const ROWS: usize = 64;
const SIDES: usize = 128;
/// What a key's length is at most before any key was seen, and its value's at least: the bits of doubles, which are ordered as whole numbers.
const NO_LENGTH: u64 = 0;
const NO_NORM: u64 = u64::MAX;

/// Hyperplanes that sign the keys of all KV heads of a layer.
#[derive(Debug, Clone, Copy)]
pub struct KeySides<'a> {
    /// Normals `[bit][d + 1]`, or `[bit][d + 2]` if values count: the coordinates of a key, that of its value, and the one that lengthens.
    pub normals: &'a [f32],
    /// Number of hyperplanes.
    pub bits: usize,
    /// Whether the mean key of the KV head is subtracted from its keys.
    pub is_centred: bool,
    /// If values count, the factor of the logarithm of their norms in a key's further coordinate.
    pub by_values: Option<f64>,
}

impl KeySides<'_> {
    /// Whether the kernels can sign heads of `d` channels.
    pub fn fit(d: usize) -> bool {
        (1..=GPU_WIDEST).contains(&d)
    }

    /// Coordinates of a lengthened key.
    fn width(&self, d: usize) -> usize {
        d + 1 + usize::from(self.by_values.is_some())
    }
}

/// Lengths of the keys of a layer.
struct KeyLengths {
    /// f32 `[kv_head][d]`.
    means: Option<Buffer>,
    /// The coordinate of each key's value, f32 `[kv_head][token]`, if values count.
    further: Option<Buffer>,
    /// f64 `[kv_head][token]`, further coordinate included.
    lengths: Buffer,
    /// Bits of f64 `[kv_head]`.
    longest: Buffer,
}

fn address_of(buffer: Option<&Buffer>) -> u64 {
    buffer.map_or(0, |buffer| buffer.address(0, buffer.bytes()))
}

impl Gpu {
    /// Signs the keys of some tokens, into [`Signatures`] of one net for each KV head. Zero values count as the shortest other value of their
    /// KV head.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If heads are wider than the kernels support, or there are not as many normals.
    pub fn sign_key_sides(
        &self,
        cache: &Cache<'_>,
        tokens: Range<usize>,
        sides: &KeySides<'_>,
    ) -> Result<Buffer, GpuError> {
        let (d, kv_heads, count, width) = (cache.d, cache.kv_heads, tokens.len(), sides.width(cache.d));
        assert!(
            KeySides::fit(d) && sides.normals.len() == sides.bits * width && tokens.end <= cache.capacity,
            "the kernel does not support {} numbers of {} hyperplanes for keys of {d} channels, or tokens {tokens:?} of {}",
            sides.normals.len(),
            sides.bits,
            cache.capacity
        );
        let words = sides.bits.div_ceil(32);
        let out = self.alloc(Signatures::bytes_of(kv_heads, words, count))?;
        if count == 0 {
            return Ok(out);
        }
        let normals = self.upload(sides.normals)?;
        let KeyLengths { means, further, lengths, longest } = self.key_lengths(cache, tokens.clone(), sides)?;
        let shared = 4 * (ROWS * width + SIDES.min(sides.bits) * (width + 1)) as u32;
        let function = self.with_shared("maps", &format!("sign_lengthened_{}", cache.storage.name()), shared)?;
        let (from, head_stride, stride) =
            (cache.key(0, tokens.start), cache.head_stride(), Signatures::stride(count) as u64);
        let [means, further, lengths, longest, normals, to] =
            [means.as_ref(), further.as_ref(), Some(&lengths), Some(&longest), Some(&normals), Some(&out)]
                .map(address_of);
        let (rows, channels, bits) = (count as u32, d as i32, sides.bits as i32);
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&head_stride).arg(&rows).arg(&channels).arg(&means).arg(&further).arg(&lengths);
        launch.arg(&longest).arg(&normals).arg(&bits).arg(&to).arg(&stride);
        let grid = (count.div_ceil(ROWS) as u32, kv_heads as u32, sides.bits.div_ceil(SIDES) as u32);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: shared };
        // SAFETY: keys, hyperplanes and signatures are as long as checked and made above, lengths as `key_lengths` made them.
        unsafe { launch.launch(grid) }.map_err(failed("computing signatures of keys"))?;
        // Wait for the upload, which reads the caller's memory.
        self.synchronize()?;
        Ok(out)
    }

    fn key_lengths(
        &self,
        cache: &Cache<'_>,
        tokens: Range<usize>,
        sides: &KeySides<'_>,
    ) -> Result<KeyLengths, GpuError> {
        let (kv_heads, count) = (cache.kv_heads, tokens.len());
        let doubles = || self.alloc(8 * kv_heads * count);
        let means = sides.is_centred.then(|| self.mean_keys(cache, tokens.clone())).transpose()?;
        let of_keys = doubles()?;
        let (ignored, longest) = (self.upload(&vec![NO_NORM; kv_heads])?, self.upload(&vec![NO_LENGTH; kv_heads])?);
        self.squared_norms(cache, cache.key(0, tokens.start), count, means.as_ref(), [&of_keys, &ignored])?;
        let (mut of_values, mut further) = (None, None);
        let shortest = self.upload(&vec![NO_NORM; kv_heads])?;
        if sides.by_values.is_some() {
            let norms = doubles()?;
            self.squared_norms(cache, cache.value(0, tokens.start), count, None, [&norms, &shortest])?;
            (of_values, further) = (Some(norms), Some(self.alloc(4 * kv_heads * count)?));
        }
        let lengths = doubles()?;
        let function = self.function("maps", "lengths_of_keys")?;
        let (rows, divisor) = (count as u32, sides.by_values.unwrap_or(0.0));
        let [keys, values, least, to_further, to, most] =
            [Some(&of_keys), of_values.as_ref(), Some(&shortest), further.as_ref(), Some(&lengths), Some(&longest)]
                .map(address_of);
        let mut launch = self.launch(&function);
        launch.arg(&keys).arg(&values).arg(&rows).arg(&least).arg(&divisor).arg(&to_further).arg(&to).arg(&most);
        let grid = (count.div_ceil(THREADS) as u32, kv_heads as u32, 1);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: all buffers are as long as made above.
        unsafe { launch.launch(grid) }.map_err(failed("computing the lengths of keys"))?;
        // Wait for the uploads, whose memory ends here.
        self.synchronize()?;
        Ok(KeyLengths { means, further, lengths, longest })
    }

    /// Writes the squared norms of the rows of all KV heads from address `from` on, as f64 `[kv_head][row]`, and the least of each KV head
    /// that is not zero.
    fn squared_norms(
        &self,
        cache: &Cache<'_>,
        from: u64,
        rows: usize,
        means: Option<&Buffer>,
        [norms, least]: [&Buffer; 2],
    ) -> Result<(), GpuError> {
        let function = self.function("maps", &format!("squared_norms_{}", cache.storage.name()))?;
        let (stride, count, d) = (cache.head_stride(), rows as u32, cache.d as i32);
        let [means, norms, least] = [means, Some(norms), Some(least)].map(address_of);
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&stride).arg(&count).arg(&d).arg(&means).arg(&norms).arg(&least);
        let grid = (rows.div_ceil(NORMS) as u32, cache.kv_heads as u32, 1);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the rows lie in the cache, as `sign_key_sides` checked, and the buffers are as long as `key_lengths` made them.
        unsafe { launch.launch(grid) }.map_err(failed("computing norms"))
    }
}
