//! A pool of workspaces that heads reuse from step to step; it grows to the largest number of heads that worked at
//! once.

use std::sync::{Mutex, PoisonError};

/// Workspaces that are not in use.
pub(crate) struct Workspaces<T> {
    free: Mutex<Vec<T>>,
}

impl<T> Workspaces<T> {
    /// An empty pool.
    pub fn new() -> Self {
        Self { free: Mutex::new(Vec::new()) }
    }

    /// Runs `work` in a free workspace, or in a new one, and returns it to the pool unless `work` panics.
    pub fn with<R>(&self, make: impl FnOnce() -> T, work: impl FnOnce(&mut T) -> R) -> R {
        let free = || self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = free().pop();
        let mut own = taken.unwrap_or_else(make);
        let done = work(&mut own);
        free().push(own);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_made_for_each_that_works_at_once_and_used_again() {
        let (workspaces, made) = (Workspaces::new(), Mutex::new(0));
        let make = || {
            *made.lock().unwrap() += 1;
            Vec::new()
        };
        for i in 0..5 {
            workspaces.with(make, |own| own.push(i));
        }
        workspaces.with(make, |outer: &mut Vec<i32>| {
            assert_eq!(*outer, [0, 1, 2, 3, 4], "what others left");
            workspaces.with(make, |inner| assert!(inner.is_empty(), "another one"));
        });
        assert_eq!(*made.lock().unwrap(), 2);
    }
}
