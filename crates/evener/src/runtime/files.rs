//! Files that are read whole: with bounds, and secrets only where others can't have touched them;
//! and files that are written whole.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A file of secrets with more is none.
const SECRET_BYTES: u64 = 64 * 1024;
/// The permissions that others than the owner and the group's readers may have on a file of
/// secrets: none.
const FORBIDDEN: u32 = 0o027;

/// Opens a file that ends: neither a pipe, which may have no writer, nor a device. Opening doesn't
/// wait either.
///
/// # Errors
/// When there is no such file, or it can't be read.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
    }
}

/// Reads a file that ends, of `most` bytes at the most.
///
/// # Errors
/// When it can't be read, doesn't end or is larger.
pub(crate) fn bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(most + 1).read_to_end(&mut bytes)?;
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
    unshared(path, FORBIDDEN, SECRET_BYTES)
}

/// Reads at most `most` bytes of a file of which nobody has one of the permissions `forbidden`.
///
/// # Errors
/// When it can't be read, or somebody has such a permission.
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

/// Writes a file anew: whoever reads it finds all that was there before, or all of this.
///
/// # Errors
/// When it can't be written; the file is as it was then.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = draft_of(path);
    fs::write(&new, bytes)?;
    fs::rename(&new, path)
}

/// The same of a file that its owner alone may read, and that outlives a crash of the host.
///
/// # Errors
/// When it can't be written; the file is as it was then.
pub(crate) fn replace_secret(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = draft_of(path);
    // One that a crash has left may be anybody's to read.
    let _ = fs::remove_file(&new);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        // A part of it would only fill the disk.
        let _ = fs::remove_file(&new);
    }
    written
}

fn draft_of(path: &Path) -> PathBuf {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    new.into()
}

/// The lines of a text that say something: those that begin with `#` are comments.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}
