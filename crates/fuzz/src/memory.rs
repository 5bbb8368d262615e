//! Allocator that counts, so that an input which takes unbounded memory fails.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes at which an allocation fails, which ends the process.
const MAX_HELD: usize = 3 << 30;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

struct CountingAllocator;

/// Returns the result and the largest number of bytes held meanwhile, by all threads, beyond those
/// held before.
pub(crate) fn measured<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = work();
    (result, PEAK.load(Relaxed).saturating_sub(before))
}

impl CountingAllocator {
    /// Counts an allocation. Returns false if there must not be another.
    fn take(bytes: usize) -> bool {
        let held = HELD.fetch_add(bytes, Relaxed) + bytes;
        if held > MAX_HELD {
            HELD.fetch_sub(bytes, Relaxed);
            return false;
        }
        PEAK.fetch_max(held, Relaxed);
        true
    }
}

// SAFETY: all work is the system's.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !Self::take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps to the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !Self::take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps to the contract, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps to the contract, which is the same.
        unsafe { System.dealloc(memory, layout) }
    }
}
