//! Memory that the allocator holds though nobody uses it.

/// Gives it back to the system, as far as the allocator can. A file of 100,000 names is several
/// times as large while it is read as what is kept of it, and without this the process would stay
/// at that size.
pub fn give_back() {
    // SAFETY: malloc_trim(3) takes no pointers and may be called at any time by any thread; it
    // touches free memory alone.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
