//! Whether the user, or a scheduler, told the process to stop. Code that waits for something that may never come
//! checks it.
//!
//! Signals raise the flag; loops over examples have flags of their own, which they pass on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Returns the flag, for signals to raise.
pub fn flag() -> Arc<AtomicBool> {
    STOP.clone()
}

/// Whether the process was told to stop.
pub fn is_raised() -> bool {
    STOP.load(Ordering::Relaxed)
}
