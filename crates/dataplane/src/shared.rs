//! Memory shared with the kernel, with other processes or with a file, as slices of plain values.

use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use evener_core::path::sessions::Bucket;
use memmap2::{MmapOptions, MmapRaw};

/// Types for memory that others change at any time.
///
/// # Safety
/// Every bit pattern must be a value, and every field an atomic, so that changes made elsewhere are
/// no data race.
pub(crate) unsafe trait Plain {}

// SAFETY: an atomic integer is valid for every bit pattern.
unsafe impl Plain for AtomicU64 {}
// SAFETY: as above.
unsafe impl Plain for AtomicU32 {}
// SAFETY: as above.
unsafe impl Plain for AtomicU16 {}
// SAFETY: repr(C) of AtomicU64 only (asserted in core by its size).
unsafe impl<const N: usize> Plain for Bucket<N> {}

/// Shared mapping of `len` values of `T`.
#[derive(Debug)]
pub(crate) struct Shared<T: Plain> {
    map: MmapRaw,
    len: usize,
    kind: PhantomData<T>,
}

impl<T: Plain> Shared<T> {
    /// Maps `len` values from the start of a file or of a BPF array map.
    pub(crate) fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Self::map_at(fd, 0, len)
    }

    /// Maps `len` values at `offset` bytes, which must be a multiple of the page size.
    pub(crate) fn map_at(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::InvalidInput)?;
        let map = MmapOptions::new().len(bytes).offset(offset).map_raw(fd.as_raw_fd())?;
        assert_eq!(map.as_ptr() as usize % align_of::<T>(), 0, "mappings begin at a page");
        Ok(Shared { map, len, kind: PhantomData })
    }
}

impl<T: Plain> Deref for Shared<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping is `len * size_of::<T>()` bytes long, aligned (asserted above) and
        // lives as long as `self`. `Plain` guarantees that any bits are a value and that others may
        // change them.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.len) }
    }
}
