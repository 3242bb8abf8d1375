//! Converts panics of other crates' parsers on damaged files into errors.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// A parser panicked; holds the panic's message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is damaged: {0}")]
pub struct Panicked(String);

impl Panicked {
    /// Returns the panic's message alone.
    pub fn said(&self) -> &str {
        &self.0
    }
}

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `read`; converts a panic in it into an error, without printing its
/// message.
///
/// # Errors
/// If it panics.
pub fn contain<T>(read: impl FnOnce() -> T) -> Result<T, Panicked> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !CONTAINED.get() {
                usual(panic);
            }
        }));
    });
    let before = CONTAINED.replace(true);
    // Whatever `read` left half done is dropped with it and never used again.
    let result = catch_unwind(AssertUnwindSafe(read));
    CONTAINED.set(before);
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text =
            text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("its reader failed without a message");
        Panicked(text.replace('\n', " "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_results_pass() {
        let none: Option<u8> = std::hint::black_box(None);
        let error = contain(|| none.expect("a number\nis there")).unwrap_err();
        assert_eq!(error.to_string(), "it is damaged: a number is there");
        assert_eq!(contain(|| 3), Ok(3));
        assert!(!CONTAINED.get());
    }
}
