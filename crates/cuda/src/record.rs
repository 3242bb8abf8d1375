//! Launches that are recorded once and launched again at once, as a CUDA graph: what the host takes to launch hundreds of
//! small kernels is longer than what they take.

use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

use super::{Gpu, GpuError, failed};

/// Recorded launches, with the addresses and numbers that they had.
pub struct Recording {
    graph: CudaGraph,
}

// SAFETY: a graph may be used from any thread, one at a time; launching takes it mutably.
unsafe impl Send for Recording {}

impl Gpu {
    /// Records the kernels that `launch` asks for, instead of running them. It may only launch kernels: copies and new memory
    /// end in an error, and so does waiting.
    ///
    /// # Errors
    /// Those of `launch`, and [`GpuError`].
    pub fn record<E: From<GpuError>>(&self, launch: impl FnOnce() -> Result<(), E>) -> Result<Recording, E> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(failed("recording launches"))?;
        let launched = launch();
        let graph = self.stream.end_capture(CUgraphInstantiate_flags(0)).map_err(failed("recording launches"));
        launched?;
        let what = "recording launches";
        let graph = graph?.ok_or_else(|| GpuError::Failed { what, why: "nothing was launched".to_owned() })?;
        Ok(Recording { graph })
    }

    /// Launches what was recorded. Callers see to it that every buffer whose address was recorded is there still, and long
    /// enough for what lists and numbers within them say, as they do where kernels are launched one by one.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn replay(&self, recording: &mut Recording) -> Result<(), GpuError> {
        recording.graph.launch().map_err(failed("launching what was recorded"))
    }
}
