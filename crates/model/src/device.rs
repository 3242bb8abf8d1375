//! Where a model computes: the processor's cores, or a GPU.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use serde::Serialize;

use spattn_base::error::UsageError;

/// A place to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Device {
    /// The processor's cores.
    #[default]
    Cpu,
    /// An NVIDIA GPU, as the driver numbers them.
    Cuda(usize),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(0) => f.write_str("cuda"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FromStr for Device {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        let ordinal = match text.split_once(':') {
            None if text == "cpu" => return Ok(Self::Cpu),
            None if text == "cuda" => Some(0),
            Some(("cuda", ordinal)) => Some(ordinal.parse().map_err(|_| {
                UsageError::new(format!("device `{text}`: `{ordinal}` is not the number of a GPU")).hint("write cuda:0")
            })?),
            _ => None,
        };
        let ordinal = ordinal.ok_or_else(|| {
            UsageError::new(format!("unknown device `{text}`")).hint("write cpu, cuda, or cuda:1 for the second GPU")
        })?;
        match cfg!(feature = "cuda") {
            true => Ok(Self::Cuda(ordinal)),
            false => Err(UsageError::new("this build computes on the CPU only")
                .hint("use --device cpu, or build with --features cuda")),
        }
    }
}

impl Device {
    /// Bytes of its memory that were free when the program first asked, before any weights were there; `None` for the
    /// processor's cores, and where nobody can say.
    pub fn free_bytes(self) -> Option<u64> {
        static FREE: OnceLock<Option<u64>> = OnceLock::new();
        match self {
            Self::Cpu => None,
            // A program uses one device.
            Self::Cuda(ordinal) => *FREE.get_or_init(|| free_bytes(ordinal)),
        }
    }
}

#[cfg(feature = "cuda")]
fn free_bytes(ordinal: usize) -> Option<u64> {
    spattn_cuda::free_bytes(ordinal).ok()
}

#[cfg(not(feature = "cuda"))]
fn free_bytes(_: usize) -> Option<u64> {
    None
}

/// A GPU that this build can use.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GpuDevice {
    /// As `--device` names it.
    pub device: String,
    /// What it is called.
    pub name: String,
    /// Its compute capability.
    pub capability: String,
    /// Bytes of its memory.
    pub memory_bytes: usize,
    /// Bytes that are free now.
    pub free_bytes: usize,
    /// The newest CUDA that the driver supports.
    pub driver: String,
    /// Bytes a second that a copy within it moves, read and written both counted; measured now.
    pub copy_bytes_per_s: f64,
}

/// The GPUs that this build can use, or why it can use none.
///
/// # Errors
/// One line: no driver, one too old, a device too old, a build without the feature.
#[cfg(feature = "cuda")]
pub fn gpus() -> Result<Vec<GpuDevice>, String> {
    use spattn_cuda::{Gpu, GpuError, count};
    let describe = |ordinal: usize| -> Result<GpuDevice, GpuError> {
        let gpu = Gpu::open(ordinal)?;
        let info = gpu.info()?;
        Ok(GpuDevice {
            device: Device::Cuda(ordinal).to_string(),
            name: info.name,
            capability: format!("{}.{}", info.capability.0, info.capability.1),
            memory_bytes: info.memory,
            free_bytes: info.free,
            driver: info.driver,
            copy_bytes_per_s: gpu.copy_bandwidth()?,
        })
    };
    let found = count().and_then(|count| (0..count).map(describe).collect::<Result<Vec<_>, _>>());
    found.map_err(|error| error.to_string())
}

/// The GPUs that this build can use, or why it can use none.
///
/// # Errors
/// This build has no code for them.
#[cfg(not(feature = "cuda"))]
pub fn gpus() -> Result<Vec<GpuDevice>, String> {
    Err("this build computes on the CPU only (build with --features cuda)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        assert_eq!("cpu".parse::<Device>().unwrap(), Device::Cpu);
        assert_eq!((Device::Cuda(0).to_string(), Device::Cuda(2).to_string()), ("cuda".into(), "cuda:2".into()));
        for wrong in ["", "gpu", "cpu:0", "cuda:", "cuda:x", "cuda:-1"] {
            assert!(wrong.parse::<Device>().is_err(), "{wrong}");
        }
        let hint = "gpu".parse::<Device>().unwrap_err().hint.unwrap();
        assert!(hint.contains("cuda") && hint.contains("cpu"), "{hint}");
        for device in [Device::Cuda(0), Device::Cuda(2)] {
            match device.to_string().parse::<Device>() {
                Ok(read) => assert_eq!(read, device),
                Err(error) => assert!(!cfg!(feature = "cuda") && error.to_string().contains("CPU only"), "{error}"),
            }
        }
    }
}
