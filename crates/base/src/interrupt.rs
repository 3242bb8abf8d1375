//! Whether the user, or a scheduler, told the process to stop. Who waits for something that may never come looks here.
//!
//! The program makes signals raise the flag; loops over examples have flags of their own, which they hand on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// The flag, to be raised by signals.
pub fn flag() -> Arc<AtomicBool> {
    STOP.clone()
}

/// Whether the process was told to stop.
pub fn is_raised() -> bool {
    STOP.load(Ordering::Relaxed)
}
