//! Measures when the device reaches marked points of its work.

use std::time::Duration;

use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUevent_flags;

use super::{Gpu, GpuError, failed};

/// Marks in the order of the stream. Events are reused after [`clear`](Self::clear).
#[derive(Debug, Default)]
pub struct Timeline {
    events: Vec<CudaEvent>,
    marks: usize,
}

impl Timeline {
    /// Removes all marks.
    pub fn clear(&mut self) {
        self.marks = 0;
    }

    /// Returns the times between marks. Waits until the device has reached the last one.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn spans(&self) -> Result<Vec<Duration>, GpuError> {
        let span = |pair: &[CudaEvent]| {
            let ms = pair[0].elapsed_ms(&pair[1]).map_err(failed("measuring times"))?;
            Ok(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
        };
        self.events[..self.marks].windows(2).map(span).collect()
    }
}

impl Gpu {
    /// Adds a mark after all work that is enqueued so far.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn mark(&self, timeline: &mut Timeline) -> Result<(), GpuError> {
        if timeline.marks == timeline.events.len() {
            let event =
                self.context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(failed("measuring times"))?;
            timeline.events.push(event);
        }
        timeline.events[timeline.marks].record(&self.stream).map_err(failed("measuring times"))?;
        timeline.marks += 1;
        Ok(())
    }
}
