//! What the host sees of the device: numbers of all storage types, and chunks of a prompt.

use std::sync::OnceLock;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;

use super::kv::DevicePrefix;
use super::storage;
use crate::attention::calibration::DeviceChunk;
use crate::kernels::cuda::{Buffer, Gpu, GpuError, Storage};
use crate::kv::LayerKv;

/// Numbers of a storage type on the host.
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

/// Downloads `count` numbers of `storage` behind the first `skip` of a buffer, as f32.
pub(super) fn download_wide(
    gpu: &Gpu,
    buffer: &Buffer,
    skip: usize,
    count: usize,
    storage: Storage,
) -> Result<Vec<f32>, GpuError> {
    /// Numbers that one thread widens at a time.
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

/// A chunk of a prompt that the host may look at.
pub(super) struct HostView<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) qkv: &'a Buffer,
    pub(super) rows: usize,
    /// Numbers in a row of queries, and in one of queries, keys and values.
    pub(super) widths: (usize, usize),
    pub(super) prefix: &'a DevicePrefix,
    pub(super) layer: usize,
    pub(super) end: usize,
    pub(super) queries: OnceLock<Vec<f32>>,
    pub(super) kv: OnceLock<LayerKv>,
    /// Why something could not be shown: then zeros were, and nothing that follows from them may be used.
    pub(super) failure: OnceLock<GpuError>,
}

impl DeviceChunk for HostView<'_> {
    fn queries(&self) -> &[f32] {
        self.queries.get_or_init(|| self.last_queries(self.rows))
    }

    fn last_queries(&self, count: usize) -> Vec<f32> {
        let storage = storage(self.prefix.shape.dtype);
        let (width, stacked) = self.widths;
        let skip = (self.rows - count) * stacked;
        let rows = download_wide(self.gpu, self.qkv, skip, count * stacked, storage);
        let rows = rows.unwrap_or_else(|failure| {
            // The first is what matters.
            let _ = self.failure.set(failure);
            vec![0.0; count * stacked]
        });
        rows.chunks_exact(stacked).flat_map(|row| &row[..width]).copied().collect()
    }

    fn kv(&self) -> &LayerKv {
        self.kv.get_or_init(|| {
            self.prefix.copy_tokens(self.layer, self.end).unwrap_or_else(|failure| {
                let _ = self.failure.set(failure);
                LayerKv::zeros(self.prefix.shape, self.end)
            })
        })
    }
}
