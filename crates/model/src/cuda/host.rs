//! What the host reads from the device: numbers of every storage type, and chunks of a prompt.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;

use super::kv::{DevicePrefix, storage};
use spattn_attention::calibration::DeviceChunk;
use spattn_attention::kv::{DeviceFailure, KvDtype, LayerKv};
use spattn_cuda::{Buffer, Gpu, GpuError, LayerRule, Plain, RowMatrix, Rows, Storage, may_deal};

/// Numbers of one storage type in host memory.
pub(super) enum Numbers {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Numbers {
    pub(super) fn narrow(numbers: Vec<f32>, storage: Storage) -> Self {
        match storage {
            Storage::F32 => Self::F32(numbers),
            Storage::F16 => Self::F16(numbers.par_iter().map(|x| f16::from_f32(*x)).collect()),
            Storage::Bf16 => Self::Bf16(numbers.par_iter().map(|x| bf16::from_f32(*x)).collect()),
        }
    }

    pub(super) fn upload_to(&self, gpu: &Gpu, buffer: &mut Buffer, offset: usize) -> Result<(), GpuError> {
        match self {
            Self::F32(numbers) => gpu.upload_to(buffer, offset, numbers),
            Self::F16(numbers) => gpu.upload_to(buffer, offset, numbers),
            Self::Bf16(numbers) => gpu.upload_to(buffer, offset, numbers),
        }
    }
}

/// Downloads `count` numbers of `storage` after the first `skip` of a buffer, as f32.
pub(super) fn download_wide(
    gpu: &Gpu,
    buffer: &Buffer,
    skip: usize,
    count: usize,
    storage: Storage,
) -> Result<Vec<f32>, GpuError> {
    /// The number of values that one thread widens at a time.
    const PIECE: usize = 1 << 16;
    let (mut wide, offset) = (vec![0.0; count], skip * storage.bytes());
    match storage {
        Storage::F32 => gpu.download(buffer, offset, &mut wide)?,
        Storage::F16 => {
            let mut numbers = vec![f16::ZERO; count];
            gpu.download(buffer, offset, &mut numbers)?;
            let pieces = wide.par_chunks_mut(PIECE).zip(numbers.par_chunks(PIECE));
            pieces.for_each(|(wide, numbers)| numbers.convert_to_f32_slice(wide));
        }
        Storage::Bf16 => {
            let mut numbers = vec![bf16::ZERO; count];
            gpu.download(buffer, offset, &mut numbers)?;
            let pieces = wide.par_chunks_mut(PIECE).zip(numbers.par_chunks(PIECE));
            pieces.for_each(|(wide, numbers)| numbers.convert_to_f32_slice(wide));
        }
    }
    Ok(wide)
}

/// Host memory for the chunks that the host reads, reused because the first write to new memory is slow.
#[derive(Default)]
pub(super) struct HostWorkspace {
    /// Rows in the storage type.
    f16: Vec<f16>,
    bf16: Vec<bf16>,
    f32: Vec<f32>,
    queries: Vec<f32>,
    kv: Option<LayerKv>,
}

/// Downloads rows of `stride` numbers after the first `skip` of a buffer, and widens the first `width` of each.
fn download_rows<T: Plain>(
    gpu: &Gpu,
    (buffer, skip): (&Buffer, usize),
    (rows, stride): (usize, usize),
    spare: &mut Vec<T>,
    (out, width): (&mut [f32], usize),
    widen: impl Fn(&mut [f32], &[T]) + Sync,
) -> Result<(), GpuError> {
    spare.resize(rows * stride, T::default());
    gpu.download(buffer, skip * size_of::<T>(), spare)?;
    match may_deal() {
        true => {
            let pairs = out.par_chunks_exact_mut(width).zip(spare.par_chunks_exact(stride));
            pairs.for_each(|(out, row)| widen(out, &row[..width]));
        }
        false => {
            let pairs = out.chunks_exact_mut(width).zip(spare.chunks_exact(stride));
            pairs.for_each(|(out, row)| widen(out, &row[..width]));
        }
    }
    Ok(())
}

/// The most rows that are gathered at a time, so that this takes little of the GPU's memory.
const GATHERED: usize = 256;

/// A chunk of a prompt that the host may read.
pub(super) struct HostView<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) qkv: &'a Buffer,
    /// The layer's input, in f32, with rows of `hidden` numbers.
    pub(super) x: &'a Buffer,
    pub(super) hidden: usize,
    pub(super) rows: usize,
    /// The width of a row of queries, and that of a row of queries, keys and values.
    pub(super) widths: (usize, usize),
    pub(super) prefix: &'a DevicePrefix,
    pub(super) layer: usize,
    pub(super) end: usize,
    /// The factor of the logits.
    pub(super) scale: f32,
    /// What the layer's attention has beyond a softmax of scaled products.
    pub(super) rule: LayerRule<'a>,
    pub(super) queries: OnceLock<Vec<f32>>,
    pub(super) kv: OnceLock<LayerKv>,
    /// The host memory to reuse.
    pub(super) workspace: Mutex<&'a mut HostWorkspace>,
    /// The buffer for the chunk's attention output, unused until the chunk is attended.
    pub(super) attended: Mutex<&'a mut Buffer>,
    /// The logarithm of each row's sum of exponentials, computed when first needed.
    pub(super) log_sums: OnceLock<Buffer>,
}

impl<'a> HostView<'a> {
    /// Returns the host memory of the copies to the workspace, for the next chunk.
    pub(super) fn close(self) {
        let workspace = self.workspace.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(queries) = self.queries.into_inner() {
            workspace.queries = queries;
        }
        if let Some(kv) = self.kv.into_inner() {
            workspace.kv = Some(kv);
        }
    }

    fn workspace(&self) -> MutexGuard<'_, &'a mut HostWorkspace> {
        self.workspace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Downloads the queries of some tokens of the chunk, which are numbered from its first.
    fn try_queries_of(&self, tokens: &[u32]) -> Result<Vec<f32>, GpuError> {
        let (Some(first), stride) = (tokens.first(), self.widths.1) else { return Ok(Vec::new()) };
        let follows = |pair: &[u32]| pair[0] + 1 == pair[1];
        if tokens.windows(2).all(follows) {
            return self.copy_queries((self.qkv, *first as usize), tokens.len(), Vec::new());
        }
        let storage = storage(self.prefix.shape.dtype);
        let mut gathered = self.gpu.alloc(tokens.len().min(GATHERED) * stride * storage.bytes())?;
        let mut queries = Vec::with_capacity(tokens.len() * self.widths.0);
        for some in tokens.chunks(GATHERED) {
            let rows = RowMatrix { numbers: self.qkv, storage, rows: self.rows, width: stride };
            self.gpu.gather_rows(rows, &self.gpu.upload(some)?, (0, some.len()), &mut gathered)?;
            queries.extend(self.copy_queries((&gathered, 0), some.len(), Vec::new())?);
        }
        Ok(queries)
    }

    /// Downloads the queries of `count` rows of a buffer, from row `first` on.
    fn copy_queries(
        &self,
        (buffer, first): (&Buffer, usize),
        count: usize,
        mut queries: Vec<f32>,
    ) -> Result<Vec<f32>, GpuError> {
        let (width, stride) = self.widths;
        queries.resize(count * width, 0.0);
        let from = (buffer, first * stride);
        let (shape, to) = ((count, stride), (&mut queries[..], width));
        let mut workspace = self.workspace();
        let HostWorkspace { f16, bf16, f32, .. } = &mut **workspace;
        match self.prefix.shape.dtype {
            KvDtype::F32 => download_rows(self.gpu, from, shape, f32, to, |to, row| to.copy_from_slice(row))?,
            KvDtype::F16 => download_rows(self.gpu, from, shape, f16, to, |to, row| row.convert_to_f32_slice(to))?,
            KvDtype::Bf16 => download_rows(self.gpu, from, shape, bf16, to, |to, row| row.convert_to_f32_slice(to))?,
        }
        Ok(queries)
    }

    fn rows(&self) -> Rows<'_> {
        let (width, stride) = self.widths;
        let heads = width / self.prefix.shape.d;
        Rows {
            queries: self.qkv,
            skip: 0,
            stride,
            count: self.rows,
            heads,
            first: self.end - self.rows,
            scale: self.scale,
            rule: self.rule,
        }
    }

    /// Attends the chunk only to get the rows' sums.
    fn sum_rows(&self) -> Result<Buffer, GpuError> {
        let rows = self.rows();
        let mut log_sums = self.gpu.alloc(size_of::<f32>() * rows.heads * rows.count)?;
        let mut attended = self.attended.lock().unwrap_or_else(PoisonError::into_inner);
        self.gpu.prefill_attention_and_sums(&rows, &self.prefix.cache(self.layer), &mut attended, &mut log_sums)?;
        Ok(log_sums)
    }

    fn try_add_attention_mass(&self, positions: Range<usize>, mass: &mut [f32]) -> Result<(), GpuError> {
        let rows = self.rows();
        let log_sums = match self.log_sums.get() {
            Some(log_sums) => log_sums,
            None => {
                let log_sums = self.sum_rows()?;
                self.log_sums.get_or_init(|| log_sums)
            }
        };
        let range = positions.start - rows.first..positions.end - rows.first;
        let mut there = self.gpu.upload(mass)?;
        self.gpu.add_attention_mass(&rows, &self.prefix.cache(self.layer), log_sums, range, &mut there)?;
        self.gpu.download(&there, 0, mass)
    }
}

impl DeviceChunk for HostView<'_> {
    fn queries(&self) -> Result<&[f32], DeviceFailure> {
        if let Some(queries) = self.queries.get() {
            return Ok(queries);
        }
        let spare = std::mem::take(&mut self.workspace().queries);
        let queries = self.copy_queries((self.qkv, 0), self.rows, spare)?;
        Ok(self.queries.get_or_init(|| queries))
    }

    fn input(&self) -> Result<Vec<f32>, DeviceFailure> {
        let mut input = vec![0.0; self.rows * self.hidden];
        self.gpu.download(self.x, 0, &mut input)?;
        Ok(input)
    }

    fn add_attention_mass(&self, positions: Range<usize>, mass: &mut [f32]) -> Result<(), DeviceFailure> {
        Ok(self.try_add_attention_mass(positions, mass)?)
    }

    fn queries_of(&self, tokens: &[u32]) -> Result<Vec<f32>, DeviceFailure> {
        Ok(self.try_queries_of(tokens)?)
    }

    fn kv(&self) -> Result<&LayerKv, DeviceFailure> {
        if let Some(kv) = self.kv.get() {
            return Ok(kv);
        }
        let spare = self.workspace().kv.take().unwrap_or_else(|| LayerKv::zeros(self.prefix.shape, 0));
        let kv = self.prefix.copy_tokens(self.layer, self.end, spare)?;
        Ok(self.kv.get_or_init(|| kv))
    }
}
