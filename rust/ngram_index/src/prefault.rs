//! Reading a whole index into memory, in pieces, so that somebody can watch it and stop it.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memmap2::{Advice, Mmap, MmapMut, UncheckedAdvice};

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::reader::Index;

/// Bytes that are read at a time; a stop waits for one piece at most.
const PIECE_BYTES: usize = 16 << 20;
/// Bytes that the system is asked to start reading at a time: it heeds its read-ahead limit, of 128 KiB unless set
/// otherwise, and no more of each request.
const ANNOUNCED_BYTES: usize = 128 << 10;
/// Distance between bytes that are touched; no larger than a page anywhere.
const TOUCH_BYTES: usize = 4096;

/// How far a reading is. Shared with whoever watches it.
#[derive(Debug, Default)]
pub struct Fill {
    done: AtomicU64,
    total: AtomicU64,
    stopped: AtomicBool,
}

impl Fill {
    /// Bytes read so far, and bytes to read in all; (0, 0) before the file was opened.
    pub fn progress(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    /// Make the reading end soon, with [`Error::Interrupted`].
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    fn begin(&self, total: usize) {
        self.total.store(total as u64, Ordering::Relaxed);
    }

    fn advance(&self, bytes: usize) -> Result<()> {
        self.done.fetch_add(bytes as u64, Ordering::Relaxed);
        if self.stopped.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        Ok(())
    }
}

impl Index {
    /// Open a file and bring all of it to where `backing` wants it, reporting to `fill`.
    pub fn load(path: &Path, backing: Backing, fill: &Fill) -> Result<Self> {
        let mut index = Self::open(path, Backing::Mmap)?;
        index.bytes.fill(path, backing, fill)?;
        Ok(index)
    }
}

/// Read a mapped file completely, and enter its pages into the page table.
pub(crate) fn populate(map: &Mmap, path: &Path, fill: &Fill) -> Result<()> {
    let read = |error| Error::io("read", path, error);
    read_pieces(map, path, fill, |_, _| Ok(()))?;
    // Pages that are evicted later are read one by one again.
    map.advise(Advice::Random).map_err(read)
}

/// A private copy of a mapped file, on huge pages where the system gives them.
pub(crate) fn copy(map: &Mmap, path: &Path, fill: &Fill) -> Result<Mmap> {
    let mut own = MmapMut::map_anon(map.len()).map_err(|error| Error::io("get memory for a copy of", path, error))?;
    #[cfg(target_os = "linux")]
    {
        // Refused where the kernel was built without huge pages; the copy is as good with small ones.
        let _ = own.advise(Advice::HugePage);
    }
    read_pieces(map, path, fill, |start, length| {
        own[start..start + length].copy_from_slice(&map[start..start + length]);
        // SAFETY: the map is shared and of a file, so pages that are let go are read from the file again when used.
        unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, length) }
    })?;
    own.make_read_only().map_err(|error| Error::io("protect the copy of", path, error))
}

/// Read a map in pieces, the next one announced while one is read; `done(start, length)` follows each.
fn read_pieces(
    map: &Mmap,
    path: &Path,
    fill: &Fill,
    mut done: impl FnMut(usize, usize) -> io::Result<()>,
) -> Result<()> {
    let read = |error| Error::io("read", path, error);
    fill.begin(map.len());
    // Maps are opened for random access, for which the system reads single pages.
    map.advise(Advice::Sequential).map_err(read)?;
    announce(map, 0).map_err(read)?;
    for start in (0..map.len()).step_by(PIECE_BYTES) {
        announce(map, start + PIECE_BYTES).map_err(read)?;
        let length = PIECE_BYTES.min(map.len() - start);
        read_piece(map, start, length).map_err(read)?;
        done(start, length).map_err(read)?;
        fill.advance(length)?;
    }
    Ok(())
}

/// Have the system start reading the piece from `start` on.
fn announce(map: &Mmap, start: usize) -> io::Result<()> {
    let end = map.len().min(start + PIECE_BYTES);
    for at in (start..end).step_by(ANNOUNCED_BYTES) {
        map.advise_range(Advice::WillNeed, at, ANNOUNCED_BYTES.min(end - at))?;
    }
    Ok(())
}

/// Wait until a piece is in memory. An unreadable file is an error here, not a signal.
fn read_piece(map: &Mmap, start: usize, length: usize) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    match map.advise_range(Advice::PopulateRead, start, length) {
        // Kernels before 5.14 do not know it.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
        done => return done,
    }
    let mut sum = 0_u8;
    for page in map[start..start + length].chunks(TOUCH_BYTES) {
        sum = sum.wrapping_add(page[0]);
    }
    std::hint::black_box(sum);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// A file of a few pieces and a rest, and its bytes.
    fn file(folder: &Path) -> (std::path::PathBuf, Vec<u8>) {
        let bytes: Vec<u8> = (0..2 * PIECE_BYTES + 12_345).map(|i| (i / 7) as u8).collect();
        let path = folder.join("some.bytes");
        std::fs::write(&path, &bytes).unwrap();
        (path, bytes)
    }

    fn map(path: &Path) -> Mmap {
        // SAFETY: nobody writes to the file of this test.
        unsafe { Mmap::map(&std::fs::File::open(path).unwrap()) }.unwrap()
    }

    #[test]
    fn copies_equal_the_file_and_progress_ends_at_its_length() {
        let folder = tempfile::tempdir().unwrap();
        let (path, bytes) = file(folder.path());
        let fill = Fill::default();
        assert_eq!(fill.progress(), (0, 0));
        assert_eq!(copy(&map(&path), &path, &fill).unwrap()[..], bytes[..]);
        assert_eq!(fill.progress(), (bytes.len() as u64, bytes.len() as u64));
    }

    #[test]
    fn all_of_a_populated_map_is_resident() {
        let folder = tempfile::tempdir().unwrap();
        let (path, bytes) = file(folder.path());
        let (map, fill) = (map(&path), Fill::default());
        populate(&map, &path, &fill).unwrap();
        assert_eq!(fill.progress().0, bytes.len() as u64);
        assert_eq!(crate::residency::resident_bytes(&map).unwrap(), bytes.len() as u64);
    }

    #[test]
    fn a_stopped_one_ends_after_a_piece() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = file(folder.path());
        for backing in [populate_only, copy_only] {
            let fill = Fill::default();
            fill.stop();
            assert!(matches!(backing(&map(&path), &path, &fill), Err(Error::Interrupted)));
            assert_eq!(fill.progress().0, PIECE_BYTES as u64);
        }
    }

    #[test]
    fn a_file_is_read_in_large_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let (path, bytes) = file(folder.path());
        for backing in [populate_only, copy_only] {
            // Out of the page cache, where the file system can.
            let opened = std::fs::File::open(&path).unwrap();
            opened.sync_all().unwrap();
            // SAFETY: takes no pointers.
            unsafe { libc::posix_fadvise(opened.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
            let map = map(&path);
            map.advise(Advice::Random).unwrap();
            let before = waits();
            backing(&map, &path, &Fill::default()).unwrap();
            // A page at a time would be a wait for each.
            assert!(waits() - before < bytes.len() as i64 / 4096 / 8);
        }
    }

    /// How often this thread has waited for the disk to read a page.
    fn waits() -> i64 {
        // SAFETY: plain numbers, for which zeros are valid, and which the call only writes.
        let mut usage = unsafe { std::mem::zeroed::<libc::rusage>() };
        // SAFETY: the pointer is valid for the call.
        assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
        usage.ru_majflt
    }

    fn populate_only(map: &Mmap, path: &Path, fill: &Fill) -> Result<()> {
        populate(map, path, fill)
    }

    fn copy_only(map: &Mmap, path: &Path, fill: &Fill) -> Result<()> {
        copy(map, path, fill).map(drop)
    }
}
