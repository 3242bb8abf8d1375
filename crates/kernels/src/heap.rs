//! How the program ends when the operating system has no more memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;

/// The system's allocator, for the program's `#[global_allocator]`. If memory runs out, the program prints one line and ends with
/// exit status 1, as it does if a disk is full; the standard library would abort it. Predictable shortages are rejected earlier
/// ([`memory::check`](spattn_base::memory::check)); this handles the others.
#[derive(Debug)]
pub struct OrEnd;

// SAFETY: all calls are forwarded unchanged to the system's allocator. A null pointer is never returned: the program ends instead.
unsafe impl GlobalAlloc for OrEnd {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`, which is that of `System`.
        there(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is that of `System`.
        there(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `realloc`, which is that of `System`; `memory` came from `System`.
        there(unsafe { System.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, which is that of `System`; `memory` came from `System`.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn there(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() {
        end(bytes);
    }
    memory
}

/// Ends the program. Nothing here allocates memory or takes a lock that may be held.
#[cold]
fn end(bytes: usize) -> ! {
    let mut line = [0; 256];
    let size = line.len();
    let mut rest = &mut line[..];
    let _ = rest.write_all(b"error: out of memory: ");
    let _ = match bytes {
        0..1_000_000 => rest.write_all(b"less than 1 MB more cannot be allocated"),
        _ => write!(rest, "{} MB more cannot be allocated", bytes / 1_000_000),
    };
    let _ = rest.write_all(
        b"\n  hint: use a shorter --length, fewer methods or fewer --threads, or raise the limit on memory; records are kept\n",
    );
    let written = size - rest.len();
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    let _ = rustix::io::write(std::io::stderr(), &line[..written]);
    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    let _ = std::io::stderr().write_all(&line[..written]);
    signal_hook::low_level::exit(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_had_is_the_systems() {
        let layout = Layout::array::<u64>(1000).unwrap();
        // SAFETY: the layout is not empty, and each block is freed once, with its current layout.
        unsafe {
            let zeros = OrEnd.alloc_zeroed(layout);
            assert!((0..8000).all(|i| *zeros.add(i) == 0));
            zeros.write(7);
            let longer = OrEnd.realloc(zeros, layout, 16_000);
            assert_eq!(*longer, 7);
            OrEnd.dealloc(longer, Layout::array::<u64>(2000).unwrap());
            let other = OrEnd.alloc(layout);
            assert!(!other.is_null() && other.addr().is_multiple_of(layout.align()));
            OrEnd.dealloc(other, layout);
        }
    }
}
