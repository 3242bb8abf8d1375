//! Marks errors of a shared prefill, so that no single method is blamed for them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context, Result, anyhow};

/// Added to the error if a shared prompt could not be read: no method is at fault, and reading it again for another method would fail too.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the prefill failed")]
struct Unread;

/// Runs a reading that methods share. `is_of_none` says that it runs no method's code, so that even a panic is no method's fault. Gathering
/// prompt statistics, in contrast, is done for certain methods.
///
/// # Errors
/// The errors of `read`, which [`is_of_no_method`] recognises.
pub(crate) fn shared<T>(is_of_none: bool, read: impl FnOnce() -> Result<T>) -> Result<T> {
    if !is_of_none {
        return read().context(Unread);
    }
    // Nothing incomplete is reused, because `read` owns everything that it changes.
    let read = catch_unwind(AssertUnwindSafe(read));
    read.unwrap_or_else(|panic| Err(fault(&*panic))).context(Unread)
}

/// Whether an error is about a shared prompt, so that no method is at fault.
pub(crate) fn is_of_no_method(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Unread>().is_some()
}

/// Converts a panic into an error.
pub(crate) fn fault(panic: &(dyn Any + Send)) -> anyhow::Error {
    anyhow!("internal error (panic): {}", said(panic))
}

/// The message of a panic.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_model::engine::NotFinite;

    #[test]
    fn errors_of_reading_are_known_again_whatever_is_said_about_them() {
        let broken = || -> Result<()> { Err(NotFinite::Logits { position: 3 }.into()) };
        let error = shared(false, broken).context("example 3").unwrap_err();
        assert!(is_of_no_method(&error));
        assert!(format!("{error:#}").starts_with("example 3: the prefill failed: the logits are NaN"), "{error:#}");
        assert!(!is_of_no_method(&anyhow!("a step failed")));
    }

    #[test]
    fn a_panic_is_of_no_method_only_where_none_was_at_work() {
        let panics = || -> Result<()> { panic!("no room") };
        let error = shared(true, panics).unwrap_err();
        assert!(
            is_of_no_method(&error) && format!("{error:#}").contains("internal error (panic): no room"),
            "{error:#}"
        );
        assert!(catch_unwind(|| shared(false, panics)).is_err(), "it goes on to where methods are told apart");
    }

    #[test]
    fn panics_say_what_they_can() {
        let of = [said(&"why"), said(&"how".to_owned()), said(&7)];
        assert_eq!(of, ["why", "how", "no message"]);
    }
}
