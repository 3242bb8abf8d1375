//! Memory layout for reads at distant addresses, and for reads of whole vectors.

use std::ops::{Deref, DerefMut};

/// Number of bytes of a cache line.
const LINE: usize = 64;

/// Numbers that begin at a cache line. Rows of whole lines then span no further line, of which only a part would be used: an allocator begins
/// large memory a few bytes behind a page.
#[derive(Debug)]
pub struct AlignedVec<T> {
    /// Up to a line of further numbers, and those behind the last.
    memory: Vec<T>,
    begin: usize,
    len: usize,
}

impl<T: Copy + Default> AlignedVec<T> {
    /// `len` numbers of `zeros`, which makes a vector of so many zeros.
    pub fn zeros(len: usize, zeros: impl FnOnce(usize) -> Vec<T>) -> Self {
        let spare = if len == 0 { 0 } else { LINE / size_of::<T>() };
        let memory = zeros(len + spare);
        let begin = memory.as_ptr().align_offset(LINE).min(spare);
        assert!(begin + len <= memory.len(), "the vector is shorter than asked for");
        Self { memory, begin, len }
    }

    /// How many numbers fit into the memory.
    pub fn capacity(&self) -> usize {
        self.memory.len() - self.begin
    }

    /// Sets the number of numbers; those that are added are any that were written there before, or zeros.
    ///
    /// # Panics
    /// If they are more than [fit](Self::capacity).
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} numbers do not fit");
        self.len = len;
    }
}

impl<T> Deref for AlignedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.memory[self.begin..][..self.len]
    }
}

impl<T> DerefMut for AlignedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.begin..][..self.len]
    }
}

impl<T: Copy + Default> Clone for AlignedVec<T> {
    fn clone(&self) -> Self {
        let mut copy = Self::zeros(self.len, |len| vec![T::default(); len]);
        copy.copy_from_slice(self);
        copy
    }
}

/// Advises the operating system to back `memory` with large pages, which makes random reads faster. Call it before the memory is first
/// written. This is only a hint: it does nothing for little memory, or where the system has no large pages.
pub fn in_large_pages<T>(memory: &mut [T]) {
    #[cfg(target_os = "linux")]
    {
        /// Number of bytes in a large page. Memory of fewer than two large pages is left unchanged.
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
        // SAFETY: the range lies within `memory`, which is borrowed exclusively, and this advice does not change its contents. If the
        // advice is refused, nothing changes.
        let _ = unsafe { rustix::mm::madvise(start.add(before).cast(), inside, rustix::mm::Advice::LinuxHugepage) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

/// Moves bytes within their own memory so that they start at a cache line. Returns their start; the bytes before it are zero.
///
/// Reading a vector that spans two lines takes twice as long.
pub fn begin_with_line(bytes: &mut Vec<u8>) -> usize {
    let len = bytes.len();
    bytes.reserve_exact(LINE - 1);
    let first = bytes.as_ptr().align_offset(LINE).min(LINE - 1);
    bytes.resize(first + len, 0);
    bytes.copy_within(..len, first);
    bytes[..first].fill(0);
    first
}

/// Whether large pages were requested for the mapping that holds the middle of `memory`. For tests.
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
    use super::{AlignedVec, LINE, begin_with_line, in_large_pages};

    #[test]
    fn what_is_in_memory_stays_there() {
        for count in [0, 1, 5 << 20, (7 << 20) + 3] {
            let number = |i: usize| (i as u32).wrapping_mul(2_654_435_761);
            let mut numbers: Vec<u32> = (0..count).map(number).collect();
            in_large_pages(&mut numbers);
            assert!(numbers.iter().enumerate().all(|(i, x)| *x == number(i)));
        }
    }

    #[test]
    fn aligned_numbers_begin_at_a_line_and_are_kept() {
        for len in [0, 1, 31, 32, 33, 1000, 1 << 20] {
            let mut numbers = AlignedVec::zeros(len, |len| vec![0u16; len]);
            assert!(numbers.len() == len && numbers.iter().all(|x| *x == 0));
            numbers.iter_mut().enumerate().for_each(|(i, x)| *x = (i * 7 + 1) as u16);
            let copy = numbers.clone();
            numbers.set_len(len / 2);
            for (numbers, len) in [(&numbers, len / 2), (&copy, len)] {
                assert!(len == 0 || numbers.as_ptr().addr() % LINE == 0, "{len}");
                assert!(numbers.len() == len && numbers.iter().enumerate().all(|(i, x)| *x == (i * 7 + 1) as u16));
            }
            numbers.set_len(len);
            assert!(numbers.capacity() >= len && *numbers == *copy);
        }
    }

    #[test]
    #[should_panic(expected = "do not fit")]
    fn aligned_numbers_are_no_more_than_fit() {
        let mut numbers = AlignedVec::zeros(4, |len| vec![0u32; len]);
        numbers.set_len(numbers.capacity() + 1);
    }

    #[test]
    fn bytes_are_moved_to_the_beginning_of_a_line() {
        for len in [0, 1, 63, 64, 1000, 1 << 20] {
            let byte = |i: usize| (i * 7 + 1) as u8;
            let mut bytes: Vec<u8> = (0..len).map(byte).collect();
            let first = begin_with_line(&mut bytes);
            assert_eq!((bytes.len(), bytes[first..].as_ptr().addr() % 64), (first + len, 0));
            assert!(bytes[first..].iter().enumerate().all(|(i, x)| *x == byte(i)));
            assert!(bytes[..first].iter().all(|x| *x == 0));
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
