//! Files that are read whole: with bounds, and secrets only where others can't have touched them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A file of secrets with more is none.
const SECRET_BYTES: u64 = 64 * 1024;
/// The permissions that others than the owner and the group's readers may have on a file of
/// secrets: none.
const FORBIDDEN: u32 = 0o027;

/// Looks whether a file ends: it is neither a pipe that nobody writes to nor a device.
///
/// # Errors
/// When it doesn't, or isn't there.
pub(crate) fn ends(path: &Path) -> io::Result<()> {
    match fs::metadata(path)?.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
    }
}

/// Reads a file that ends, of `most` bytes at the most.
///
/// # Errors
/// When it can't be read, doesn't end or is larger.
pub(crate) fn bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    ends(path)?;
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let what = format!("it is larger than {} MiB", most >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

/// Why secrets are not read.
pub(crate) enum FilePermissionError {
    /// The system's answer.
    Io(io::Error),
    /// Others may read or change them; the file's permissions.
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
/// When it can't be read, or others than its owner could have read or written it.
pub(crate) fn secret(path: &Path) -> Result<String, FilePermissionError> {
    let file = File::open(path)?;
    let mode = file.metadata()?.permissions().mode() & 0o777;
    if mode & FORBIDDEN != 0 {
        return Err(FilePermissionError::Open(mode));
    }
    let mut bytes = Vec::new();
    file.take(SECRET_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The lines of a text that say something: those that begin with `#` are comments.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}
