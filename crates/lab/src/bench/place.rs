//! The device that a benchmark runs on: what happens between turns, and the device's limits.

use anyhow::Result;

#[cfg(feature = "cuda")]
use std::sync::Arc;

#[cfg(feature = "cuda")]
use super::gpu::OnGpu;
use super::row::Roof;
use super::turns::{Between, Flood};
use spattn_attention::kv::Tier;
use spattn_model::device::Device;

/// The processor, or a GPU.
pub(super) enum Place {
    /// The processor.
    Cpu(Flood),
    /// A GPU.
    #[cfg(feature = "cuda")]
    Gpu(Arc<OnGpu>),
}

impl Place {
    /// Opens a device.
    ///
    /// # Errors
    /// If it cannot be used, or there are several.
    pub fn open(device: Device) -> Result<Self> {
        match device.of_one_gpu()?.ordinals().as_slice() {
            [] => Ok(Self::Cpu(Flood::new())),
            #[cfg(feature = "cuda")]
            [ordinal, ..] => Ok(Self::Gpu(Arc::new(OnGpu::open(*ordinal)?))),
            #[cfg(not(feature = "cuda"))]
            _ => anyhow::bail!("this build computes on the CPU only"),
        }
    }

    /// The name in rows: `cpu`, or the GPU's name.
    pub fn name(&self) -> String {
        match self {
            Self::Cpu(_) => "cpu".to_owned(),
            #[cfg(feature = "cuda")]
            Self::Gpu(gpu) => gpu.name.clone(),
        }
    }

    /// Also evicts the contents of the host's caches between turns, because the host attends something for a GPU.
    pub fn flood_host(&self) {
        match self {
            Self::Cpu(_) => {}
            #[cfg(feature = "cuda")]
            Self::Gpu(gpu) => gpu.flood_host(),
        }
    }

    /// The throughput that plain code reaches here, with keys and values in `tier`.
    ///
    /// # Errors
    /// If a device fails.
    pub fn roof(&mut self, tier: Tier) -> Result<Roof> {
        match (self, tier) {
            (Self::Cpu(flood), _) => Ok(flood.roof()),
            #[cfg(feature = "cuda")]
            (Self::Gpu(gpu), tier) => gpu.roof(tier),
        }
    }
}

impl Between for Place {
    fn before_turn(&mut self) -> Result<()> {
        match self {
            Self::Cpu(flood) => flood.before_turn(),
            #[cfg(feature = "cuda")]
            Self::Gpu(gpu) => gpu.flood(),
        }
    }

    fn after_round(&mut self) -> Result<()> {
        match self {
            Self::Cpu(flood) => flood.after_round(),
            #[cfg(feature = "cuda")]
            Self::Gpu(_) => Ok(()),
        }
    }
}
