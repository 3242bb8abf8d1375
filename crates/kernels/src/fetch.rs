//! Prefetching: requests memory before it is read.

/// Number of bytes in a cache line.
const LINE: usize = 64;

/// Prefetches `items`, so that reads at many distant addresses wait for memory together, not one after the other. This is only a hint; it
/// does nothing on processors other than x86-64.
#[inline(always)]
pub fn ask_for<T>(items: &[T]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let first = items.as_ptr().cast::<i8>();
        // `items` may start in the middle of a cache line.
        let before = first.addr() % LINE;
        for byte in (0..size_of_val(items) + before).step_by(LINE) {
            // SAFETY: a prefetch accesses no memory, whatever the address, and every x86-64 processor has the instruction.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(byte).wrapping_sub(before)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (items, LINE);
}

#[cfg(test)]
mod tests {
    use super::ask_for;

    #[test]
    fn whatever_is_asked_for_stays_what_it_is() {
        let numbers: Vec<u16> = (0..1000).collect();
        for (first, last) in [(0, 0), (0, 1), (3, 40), (999, 1000), (0, 1000)] {
            ask_for(&numbers[first..last]);
        }
        ask_for(&[(); 3]);
        assert_eq!(numbers, (0..1000).collect::<Vec<u16>>());
    }
}
