//! How much of a memory map is in memory.

use std::io;

use crate::error::{Error, Result};
use crate::reader::Index;

/// Pages asked about at a time.
const PAGES: usize = 1 << 16;

/// Bytes of a page.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: has no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// The whole pages that hold `bytes`: the address of the first one, and how many.
pub(crate) fn pages_of(bytes: &[u8]) -> (usize, usize) {
    let page = page_bytes();
    let start = bytes.as_ptr().addr() / page * page;
    let end = bytes.as_ptr().addr() + bytes.len();
    (start, (end - start).div_ceil(page))
}

/// For each of `count` pages from the address `start` on, in order: call `each` with its number and whether it is in
/// memory. For a mapped file that means the page cache, whichever process read it; the system answers "yes" for all
/// pages of a file that this user may not write.
pub(crate) fn for_each_page(start: usize, count: usize, mut each: impl FnMut(usize, bool)) -> io::Result<()> {
    let page = page_bytes();
    let mut present = vec![0_u8; PAGES.min(count)];
    for first in (0..count).step_by(PAGES) {
        let length = PAGES.min(count - first);
        let address = std::ptr::without_provenance_mut::<libc::c_void>(start + first * page);
        // SAFETY: `present` has room for a byte a page; mincore does not access the pages, and it refuses an address
        // that is not mapped.
        let answer = unsafe { libc::mincore(address, length * page, present.as_mut_ptr().cast()) };
        if answer != 0 {
            return Err(io::Error::last_os_error());
        }
        for (i, value) in present[..length].iter().enumerate() {
            each(first + i, value & 1 == 1);
        }
    }
    Ok(())
}

impl Index {
    /// How many of its bytes are in memory, to the page, whichever process read them.
    pub fn resident_bytes(&self) -> Result<u64> {
        resident_bytes(self.bytes.get()).map_err(|source| Error::io("find the pages of", self.path(), source))
    }
}

/// How many of these bytes are in memory, to the page.
pub(crate) fn resident_bytes(bytes: &[u8]) -> io::Result<u64> {
    if bytes.is_empty() {
        return Ok(0);
    }
    let (start, count) = pages_of(bytes);
    let mut pages = 0_u64;
    for_each_page(start, count, |_, present| pages += u64::from(present))?;
    Ok((pages * page_bytes() as u64).min(bytes.len() as u64))
}
