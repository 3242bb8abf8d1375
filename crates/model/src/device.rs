//! Devices for a model: the processor's cores, one GPU, or several.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use spattn_base::error::UsageError;

/// A device to compute on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Device {
    /// The processor's cores.
    #[default]
    Cpu,
    /// One NVIDIA GPU, or several GPUs, each of which holds consecutive layers of the model.
    Cuda(Gpus),
    /// All GPUs of the machine, each with whole copies of the model, which run different examples in parallel.
    EachGpu(CopiesPerGpu),
}

/// The number of copies of a model on a GPU. A small model leaves most of a GPU idle: its kernels are short, and those of several copies
/// overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopiesPerGpu(u8);

/// The most copies of a model on a GPU.
pub const MOST_COPIES: usize = 16;

impl CopiesPerGpu {
    /// One copy.
    pub const ONE: Self = Self(1);

    /// `count` copies; `None` if that is 0 or more than [`MOST_COPIES`].
    pub fn new(count: usize) -> Option<Self> {
        let count = u8::try_from(count).ok()?;
        (1..=MOST_COPIES).contains(&usize::from(count)).then_some(Self(count))
    }

    /// The number of copies.
    pub fn count(self) -> usize {
        self.0.into()
    }
}

/// GPU numbers of the driver, in the order in which the GPUs hold a model's layers; at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gpus {
    /// Entries from `count` on are zero.
    ordinals: [u16; MOST_GPUS],
    count: usize,
}

/// The most GPUs that can share a model's layers.
pub const MOST_GPUS: usize = 16;

impl Gpus {
    /// GPUs in this order. Only tests may name a device twice; user input is checked when it is parsed.
    ///
    /// # Panics
    /// If `numbers` is empty, has more than [`MOST_GPUS`] entries, or has a number above 65,535.
    pub fn in_order(numbers: &[usize]) -> Self {
        assert!((1..=MOST_GPUS).contains(&numbers.len()), "{} GPUs, not 1 to {MOST_GPUS}", numbers.len());
        let mut ordinals = [0; MOST_GPUS];
        for (ordinal, number) in ordinals.iter_mut().zip(numbers) {
            *ordinal = u16::try_from(*number).expect("numbers of GPUs are at most 65,535");
        }
        Self { ordinals, count: numbers.len() }
    }

    /// The GPU numbers, in order.
    pub fn ordinals(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.ordinals[..self.count].iter().map(|ordinal| usize::from(*ordinal))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::EachGpu(CopiesPerGpu::ONE) => f.write_str("cuda:all"),
            Self::EachGpu(copies) => write!(f, "cuda:all:{}", copies.count()),
            Self::Cuda(_) if *self == Self::cuda(0) => f.write_str("cuda"),
            Self::Cuda(gpus) => {
                let numbers: Vec<String> = gpus.ordinals().map(|ordinal| ordinal.to_string()).collect();
                write!(f, "cuda:{}", numbers.join(","))
            }
        }
    }
}

impl FromStr for Device {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        let device = match text.split_once(':') {
            None if text == "cpu" => return Ok(Self::Cpu),
            None if text == "cuda" => Self::cuda(0),
            Some(("cuda", "all")) => Self::EachGpu(CopiesPerGpu::ONE),
            Some(("cuda", numbers)) if numbers.starts_with("all:") => Self::EachGpu(parse_copies(text, numbers)?),
            Some(("cuda", numbers)) => Self::Cuda(parse_gpus(text, numbers)?),
            _ => {
                return Err(UsageError::new(format!("unknown device `{text}`"))
                    .hint("write cpu, cuda, or cuda:1 for the second GPU"));
            }
        };
        match cfg!(feature = "cuda") {
            true => Ok(device),
            false => Err(UsageError::new("this build computes on the CPU only")
                .hint("use --device cpu, or build with --features cuda")),
        }
    }
}

/// Parses the number of copies that follows `all:` in a device name.
fn parse_copies(device: &str, numbers: &str) -> Result<CopiesPerGpu, UsageError> {
    let count = numbers.trim_start_matches("all:");
    count.parse().ok().and_then(CopiesPerGpu::new).ok_or_else(|| {
        UsageError::new(format!("device `{device}`: `{count}` is not a number of copies from 1 to {MOST_COPIES}"))
            .hint("write cuda:all:4 for four copies of the model on each GPU")
    })
}

/// Parses the GPUs that follow the colon in a device name.
fn parse_gpus(device: &str, numbers: &str) -> Result<Gpus, UsageError> {
    let wrong = |what: String, hint: &str| Err(UsageError::new(format!("device `{device}`{what}")).hint(hint));
    if numbers.is_empty() {
        return wrong(" names no GPU".to_owned(), "write cuda:0, cuda:0,1 for two GPUs, or cuda:all");
    }
    let mut ordinals: Vec<usize> = Vec::new();
    for number in numbers.split(',') {
        let Ok(ordinal) = number.parse::<u16>() else {
            return wrong(format!(": `{number}` is not the number of a GPU"), "write cuda:0");
        };
        if ordinals.contains(&usize::from(ordinal)) {
            return wrong(format!(" names GPU {ordinal} twice"), "name each GPU once, as in cuda:0,1");
        }
        ordinals.push(ordinal.into());
    }
    match ordinals.len() {
        1..=MOST_GPUS => Ok(Gpus::in_order(&ordinals)),
        count => wrong(
            format!(" names {count} GPUs"),
            &format!("a model's layers are divided among at most {MOST_GPUS} of them: name fewer"),
        ),
    }
}

impl Device {
    /// The GPU with this number.
    ///
    /// # Panics
    /// If the number is above 65,535.
    pub const fn cuda(ordinal: usize) -> Self {
        assert!(ordinal <= u16::MAX as usize, "numbers of GPUs are at most 65,535");
        let mut ordinals = [0; MOST_GPUS];
        ordinals[0] = ordinal as u16;
        Self::Cuda(Gpus { ordinals, count: 1 })
    }

    /// The device of each whole copy of a model. If GPUs hold several copies, the first copies of all GPUs come first.
    ///
    /// # Errors
    /// For [`EachGpu`](Self::EachGpu), if the driver lists no GPUs or there is no driver.
    pub fn copies(self) -> Result<Vec<Self>, UsageError> {
        let Self::EachGpu(per_gpu) = self else { return Ok(vec![self]) };
        let none = |why: &str| UsageError::new(format!("device `{self}`: {why}")).hint("use --device cpu");
        match gpu_count() {
            Ok(0) => Err(none("the driver lists no GPU")),
            Ok(count) => Ok((0..per_gpu.count()).flat_map(|_| (0..count).map(Self::cuda)).collect()),
            Err(why) => Err(none(&why)),
        }
    }

    /// The number of copies of a model on a GPU; 1 for a processor.
    pub fn copies_per_gpu(self) -> usize {
        match self {
            Self::Cpu | Self::Cuda(_) => 1,
            Self::EachGpu(copies) => copies.count(),
        }
    }

    /// The same device with only one copy on each GPU.
    pub fn with_one_copy_per_gpu(self) -> Self {
        match self {
            Self::EachGpu(_) => Self::EachGpu(CopiesPerGpu::ONE),
            Self::Cpu | Self::Cuda(_) => self,
        }
    }

    /// The device of one copy of the model, for work that copies do not share.
    pub fn first_copy(self) -> Self {
        match self {
            Self::Cpu | Self::Cuda(_) => self,
            Self::EachGpu(_) => Self::cuda(0),
        }
    }

    /// The same device, for a command that reads one text after the other, so that copies of a model have nothing to share.
    ///
    /// # Errors
    /// For [`EachGpu`](Self::EachGpu).
    pub fn of_one_copy(self) -> Result<Self, UsageError> {
        match self {
            Self::Cpu | Self::Cuda(_) => Ok(self),
            Self::EachGpu(_) => Err(UsageError::new(format!(
                "device `{self}`: only the examples of a run are shared out among copies of the model"
            ))
            .hint("write cuda, or cuda:0,1 to divide the model's layers among GPUs")),
        }
    }

    /// The same device, for a command that computes with single layers.
    ///
    /// # Errors
    /// If it names several GPUs.
    pub fn of_one_gpu(self) -> Result<Self, UsageError> {
        match self {
            Self::Cuda(gpus) if gpus.ordinals().len() > 1 => {
                Err(UsageError::new(format!("device `{self}`: this command computes on one GPU")).hint("write cuda:0"))
            }
            _ => self.of_one_copy(),
        }
    }

    /// The GPUs that share the layers of a copy of the model, in order; none for the processor's cores.
    pub fn ordinals(self) -> Vec<usize> {
        match self {
            Self::Cpu | Self::EachGpu(_) => Vec::new(),
            Self::Cuda(gpus) => gpus.ordinals().collect(),
        }
    }

    /// Checks that these GPUs exist, and that each of them gets at least one of a model's `layers`.
    ///
    /// # Errors
    /// One line with what is wrong. A missing driver is not an error here; opening a GPU reports it.
    pub fn check(self, layers: usize) -> Result<(), UsageError> {
        let ordinals = self.ordinals();
        if ordinals.len() > layers.max(1) {
            let what = format!("device `{self}`: the model has {layers} layers, too few for {} GPUs", ordinals.len());
            return Err(UsageError::new(what).hint(format!("name at most {layers}")));
        }
        if ordinals.is_empty() {
            return Ok(());
        }
        let Ok(count) = gpu_count() else { return Ok(()) };
        match ordinals.into_iter().find(|ordinal| *ordinal >= count) {
            None => Ok(()),
            Some(ordinal) => Err(UsageError::new(format!(
                "device `{self}`: there is no GPU number {ordinal}: the driver lists {count}, counted from 0"
            ))
            .hint("`spattn doctor` lists them")),
        }
    }
}

/// The number of GPUs that the driver lists, or why it lists none.
#[cfg(feature = "cuda")]
fn gpu_count() -> Result<usize, String> {
    spattn_cuda::count().map_err(|error| error.to_string())
}

#[cfg(not(feature = "cuda"))]
fn gpu_count() -> Result<usize, String> {
    Err("this build computes on the CPU only".to_owned())
}

/// Bytes of a GPU's memory that were free when the program first asked for that GPU, before it loaded weights; `None` if unknown.
pub fn free_bytes(ordinal: usize) -> Option<u64> {
    static FREE: Mutex<BTreeMap<usize, Option<u64>>> = Mutex::new(BTreeMap::new());
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    *free.entry(ordinal).or_insert_with(|| free_bytes_now(ordinal))
}

#[cfg(feature = "cuda")]
fn free_bytes_now(ordinal: usize) -> Option<u64> {
    spattn_cuda::free_bytes(ordinal).ok()
}

#[cfg(not(feature = "cuda"))]
fn free_bytes_now(_: usize) -> Option<u64> {
    None
}

/// Where a model is to be loaded, and for which context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The device that computes.
    pub device: Device,
    /// Tokens of the longest context, as far as known: several GPUs divide the layers by the size of the weights and of the KV cache for so
    /// many tokens.
    pub tokens: usize,
}

impl From<Device> for Placement {
    fn from(device: Device) -> Self {
        Self { device, tokens: 0 }
    }
}

/// A GPU that this build can use.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GpuDevice {
    /// Its name for `--device`.
    pub device: String,
    /// Its product name.
    pub name: String,
    /// Its compute capability.
    pub capability: String,
    /// Bytes of its memory in total.
    pub memory_bytes: usize,
    /// Bytes of its memory that are free now.
    pub free_bytes: usize,
    /// The newest CUDA that the driver supports.
    pub driver: String,
    /// Bytes per second of a copy within its memory, counting both reads and writes; measured now.
    pub copy_bytes_per_s: f64,
}

/// How data moves between two GPUs, in both directions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GpuLink {
    /// The two GPUs, by their names for `--device`.
    pub between: [String; 2],
    /// The path, or why there is none.
    pub how: String,
}

/// Information about the GPUs that this build can use.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuDevices {
    /// All GPUs.
    pub devices: Vec<GpuDevice>,
    /// All pairs of GPUs.
    pub links: Vec<GpuLink>,
}

/// The GPUs that this build can use, or why it can use none.
///
/// # Errors
/// One line: no driver, a driver or device that is too old, or a build without the feature.
#[cfg(feature = "cuda")]
pub fn gpus() -> Result<GpuDevices, String> {
    use spattn_cuda::{Gpu, GpuError, count};
    let name = |gpu: &Gpu| Device::cuda(gpu.ordinal()).to_string();
    let describe = |gpu: &Gpu| -> Result<GpuDevice, GpuError> {
        let info = gpu.info()?;
        Ok(GpuDevice {
            device: name(gpu),
            name: info.name,
            capability: format!("{}.{}", info.capability.0, info.capability.1),
            memory_bytes: info.memory,
            free_bytes: info.free,
            driver: info.driver,
            copy_bytes_per_s: gpu.copy_bandwidth()?,
        })
    };
    let link = |one: &Gpu, other: &Gpu| GpuLink {
        between: [name(one), name(other)],
        how: one.link(other).map_or_else(|error| error.to_string(), |link| link.to_string()),
    };
    let all = || -> Result<GpuDevices, GpuError> {
        let opened = (0..count()?).map(Gpu::open).collect::<Result<Vec<_>, _>>()?;
        let devices = opened.iter().map(describe).collect::<Result<_, _>>()?;
        let pairs =
            opened.iter().enumerate().flat_map(|(at, one)| opened[at + 1..].iter().map(move |other| (one, other)));
        Ok(GpuDevices { devices, links: pairs.map(|(one, other)| link(one, other)).collect() })
    };
    all().map_err(|error| error.to_string())
}

/// The GPUs that this build can use, or why it can use none.
///
/// # Errors
/// Always: this build has no GPU code.
#[cfg(not(feature = "cuda"))]
pub fn gpus() -> Result<GpuDevices, String> {
    Err("this build computes on the CPU only (build with --features cuda)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        assert_eq!("cpu".parse::<Device>().unwrap(), Device::Cpu);
        let several = Device::Cuda(Gpus::in_order(&[2, 0, 11]));
        let (one, four) = (CopiesPerGpu::ONE, CopiesPerGpu::new(4).unwrap());
        let devices = [Device::cuda(0), Device::cuda(2), several, Device::EachGpu(one), Device::EachGpu(four)];
        let written = ["cuda", "cuda:2", "cuda:2,0,11", "cuda:all", "cuda:all:4"];
        assert_eq!(devices.map(|device| device.to_string()), written);
        let many = format!("cuda:{}", (0..17).map(|i| i.to_string()).collect::<Vec<_>>().join(","));
        for (wrong, said) in [
            ("", "unknown device"),
            ("gpu", "unknown device"),
            ("cpu:0", "unknown device"),
            ("cuda:", "names no GPU"),
            ("cuda:x", "`x` is not the number"),
            ("cuda:-1", "`-1` is not the number"),
            ("cuda:0,", "`` is not the number"),
            ("cuda:0,all", "`all` is not the number"),
            ("cuda:65536", "`65536` is not the number"),
            ("cuda:all:0", "`0` is not a number of copies"),
            ("cuda:all:17", "`17` is not a number of copies from 1 to 16"),
            ("cuda:all:", "`` is not a number of copies"),
            ("cuda:all4", "`all4` is not the number"),
            ("cuda:1,0,1", "names GPU 1 twice"),
            (many.as_str(), "names 17 GPUs"),
        ] {
            let error = wrong.parse::<Device>().unwrap_err();
            assert!(error.what.contains(said) && error.hint.is_some(), "{wrong}: {error}");
        }
        let hint = "gpu".parse::<Device>().unwrap_err().hint.unwrap();
        assert!(hint.contains("cuda") && hint.contains("cpu"), "{hint}");
        for device in devices {
            match device.to_string().parse::<Device>() {
                Ok(read) => assert_eq!(read, device),
                Err(error) => assert!(!cfg!(feature = "cuda") && error.to_string().contains("CPU only"), "{error}"),
            }
        }
    }

    #[test]
    fn each_gpu_gets_a_layer() {
        let three = Device::Cuda(Gpus::in_order(&[0, 1, 2]));
        let error = three.check(2).unwrap_err();
        assert!(error.what.contains("2 layers") && error.hint.unwrap().contains("at most 2"), "{}", error.what);
        assert!(Device::Cpu.check(0).is_ok());
        assert_eq!((three.ordinals(), Device::Cpu.ordinals()), (vec![0, 1, 2], Vec::new()));
        assert!(three.of_one_copy().is_ok() && three.of_one_gpu().is_err() && Device::cuda(3).of_one_gpu().is_ok());
        let each = Device::EachGpu(CopiesPerGpu::new(2).unwrap());
        assert!(each.of_one_copy().is_err() && each.of_one_gpu().is_err());
        assert_eq!([each, three, Device::Cpu].map(Device::copies_per_gpu), [2, 1, 1]);
        assert_eq!(each.with_one_copy_per_gpu(), Device::EachGpu(CopiesPerGpu::ONE));
        assert_eq!([each.first_copy(), three.first_copy()], [Device::cuda(0), three]);
        assert_eq!(Device::Cpu.copies().unwrap(), [Device::Cpu]);
    }
}
