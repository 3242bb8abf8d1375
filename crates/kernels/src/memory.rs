//! How memory is laid out for reads at places far apart.

/// Asks the system to back `memory` by large pages, before it is written to for the first time: each read of a row far from the
/// last one then finds its page sooner. Changes nothing but times; does nothing for little memory, and where the system has
/// no such pages or does not give them.
pub fn in_large_pages<T>(memory: &mut [T]) {
    #[cfg(target_os = "linux")]
    {
        /// Of a large page, of which there must be some to be worth it.
        const LARGE: usize = 2 << 20;
        let bytes = size_of_val(memory);
        if bytes < 2 * LARGE {
            return;
        }
        let start = memory.as_mut_ptr().cast::<u8>();
        let before = start.align_offset(LARGE);
        if before >= bytes {
            return;
        }
        let inside = (bytes - before) / LARGE * LARGE;
        // SAFETY: the range lies within `memory`, which is borrowed exclusively, and this advice leaves what is in it as it is.
        // Where it is refused, nothing has changed.
        let _ = unsafe { rustix::mm::madvise(start.add(before).cast(), inside, rustix::mm::Advice::LinuxHugepage) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

/// Whether large pages were asked for what is in the middle of `memory`: the system says so of each mapping. For tests of what is
/// built on this.
#[doc(hidden)]
#[cfg(target_os = "linux")]
pub fn is_asked_for<T>(memory: &[T]) -> bool {
    let middle = memory.as_ptr().addr() + size_of_val(memory) / 2;
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    let mut within = false;
    for line in std::fs::read_to_string("/proc/self/smaps").unwrap_or_default().lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let ends = range.and_then(|(first, end)| Some(address(first)?..address(end)?));
        within = ends.map_or(within, |ends| ends.contains(&middle));
        if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| within) {
            return flags.split(' ').any(|flag| flag == "hg");
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::in_large_pages;

    #[test]
    fn what_is_in_memory_stays_there() {
        for count in [0, 1, 5 << 20, (7 << 20) + 3] {
            let number = |i: usize| (i as u32).wrapping_mul(2_654_435_761);
            let mut numbers: Vec<u32> = (0..count).map(number).collect();
            in_large_pages(&mut numbers);
            assert!(numbers.iter().enumerate().all(|(i, x)| *x == number(i)));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_system_is_asked_for_large_pages() {
        let mut numbers = vec![0u8; 64 << 20];
        assert!(!super::is_asked_for(&numbers), "not yet");
        in_large_pages(&mut numbers);
        assert!(super::is_asked_for(&numbers));
    }
}
