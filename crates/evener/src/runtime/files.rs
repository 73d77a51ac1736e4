//! Reads and writes whole files. Reads are bounded. Secrets are read only if no other user can have
//! read or written them.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Maximum size of a file of secrets, in bytes.
const SECRET_BYTES: u64 = 64 * 1024;
/// Permission bits that a file of secrets must not have. The group may read it.
const FORBIDDEN: u32 = 0o027;

/// Opens a regular file for reading. A pipe may have no writer, and a device may not end, so both
/// are refused. Opening does not block.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
    }
}

/// Reads a regular file.
///
/// # Errors
/// If the file can't be read, is not regular or is larger than `most` bytes.
pub(crate) fn bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let what = format!("it is larger than {} MiB", most >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

/// Error of reading a file of secrets.
pub(crate) enum FilePermissionError {
    Io(io::Error),
    /// Other users may read or change the file. The number is its permissions.
    Open(u32),
}

impl From<io::Error> for FilePermissionError {
    fn from(error: io::Error) -> FilePermissionError {
        FilePermissionError::Io(error)
    }
}

/// Reads a file of secrets.
///
/// # Errors
/// If the file can't be read, or other users can have read or written it.
pub(crate) fn secret(path: &Path) -> Result<String, FilePermissionError> {
    unshared(path, FORBIDDEN, SECRET_BYTES)
}

/// Reads at most `most` bytes of a file that has none of the permissions `forbidden`.
///
/// # Errors
/// If the file can't be read, or has a forbidden permission.
pub(crate) fn unshared(path: &Path, forbidden: u32, most: u64) -> Result<String, FilePermissionError> {
    let file = open_regular(path)?;
    let mode = file.metadata()?.permissions().mode() & 0o777;
    if mode & forbidden != 0 {
        return Err(FilePermissionError::Open(mode));
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Replaces a file atomically: readers see the old contents or the new ones.
///
/// # Errors
/// If the file can't be written. The old contents stay.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = draft_of(path);
    fs::write(&new, bytes)?;
    fs::rename(&new, path)
}

/// Like [`replace`], for a file that only its owner may read. The new contents survive a crash of
/// the host.
///
/// # Errors
/// If the file can't be written. The old contents stay.
pub(crate) fn replace_secret(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = draft_of(path);
    // A draft that a crash has left may be readable by other users.
    let _ = fs::remove_file(&new);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        // A partial file would only fill the disk.
        let _ = fs::remove_file(&new);
    }
    written
}

fn draft_of(path: &Path) -> PathBuf {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    new.into()
}

/// Returns the lines of a text that are neither empty nor comments. Comments begin with `#`.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}
