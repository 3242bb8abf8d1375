//! Launches that are recorded once and replayed as a CUDA graph: launching hundreds of small kernels one by one takes the host longer than
//! the kernels run.

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph};

use super::{Gpu, GpuError, failed};

/// Recorded launches with their arguments.
pub struct Recording {
    graph: CudaGraph,
    context: Arc<CudaContext>,
}

impl Drop for Recording {
    fn drop(&mut self) {
        // The graph is destroyed in its own context; the thread may have used another one last.
        self.context.record_err(self.context.bind_to_thread());
    }
}

// SAFETY: a graph may be used from any thread, by one at a time; `replay` borrows it mutably.
unsafe impl Send for Recording {}

impl Gpu {
    /// Records the kernels that `launch` enqueues, instead of running them. It may only launch kernels: copying, allocating and waiting are
    /// errors.
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
        Ok(Recording { graph, context: self.context.clone() })
    }

    /// Launches the recorded kernels. Callers ensure that every buffer whose address was recorded still exists, and is long enough for the
    /// indices and counts in the buffers, as with kernels that are launched one by one.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn replay(&self, recording: &mut Recording) -> Result<(), GpuError> {
        recording.graph.launch().map_err(failed("launching what was recorded"))
    }
}
