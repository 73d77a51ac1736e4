//! Large uploads and downloads, compared byte by byte.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

use crate::farm::Farm;
use crate::network::host::Host;

/// Timeout of a transfer in seconds. If every tenth packet is lost, one in twenty thousand
/// connections loses its SYN or SYN-ACK six times in a row. Its handshake then takes 63 s, if the
/// timeout starts at 1 s and doubles (RFC 6298, section 5.5).
const LIMIT_S: &str = "140";

/// Uploads a file of `len` random bytes to one of the servers and downloads it from one of them,
/// both through `service`. Fails if a transfer hangs, breaks or changes a byte.
pub fn there_and_back(farm: &Farm, client: &Host, service: SocketAddr, len: usize) -> Result<()> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("{}-{}", client.name(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let original = noise(len, name.len() as u64 + len as u64);
    let file = client.file(&format!("{name}.upload"));
    crate::network::host::write(&file, &original)?;
    let address = format!("http://{service}/upload/{name}");
    let limit = ["--max-time", LIMIT_S];
    client
        .curl(&[&limit[..], &["--upload-file", &file.to_string_lossy(), &address]].concat())
        .with_context(|| format!("The upload of {len} bytes failed"))?;
    let stored = farm.page(&format!("upload/{name}"));
    same(&original, &fs::read(&stored)?).context("The upload was changed on its way")?;
    let back = client.file(&format!("{name}.download"));
    client
        .curl(&[&limit[..], &["--output", &back.to_string_lossy(), &address]].concat())
        .with_context(|| format!("The download of {len} bytes failed"))?;
    same(&original, &fs::read(&back)?).context("The download was changed on its way")?;
    [file, stored, back].into_iter().try_for_each(|path| Ok(fs::remove_file(path)?))
}

impl Farm {
    /// Returns the path of the file that every web server of the farm serves at `path`.
    pub fn page(&self, path: &str) -> PathBuf {
        self.router().files.join("pages").join(path)
    }
}

fn same(sent: &[u8], found: &[u8]) -> Result<()> {
    if let Some(at) = sent.iter().zip(found).position(|(sent, found)| sent != found) {
        bail!("Byte {at} of {} differs", sent.len());
    }
    if sent.len() != found.len() {
        bail!("{} bytes were sent, and {} came", sent.len(), found.len());
    }
    Ok(())
}

/// Returns random bytes (xorshift, Marsaglia 2003), which make misplaced bytes visible.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let mut bytes: Vec<u8> = words.take(len.div_ceil(8)).flatten().collect();
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_found() {
        let bytes = noise(1001, 5);
        assert_eq!(bytes.len(), 1001);
        assert!(same(&bytes, &bytes).is_ok());
        assert!(same(&bytes, &bytes[..1000]).is_err());
        let mut other = bytes.clone();
        other[700] ^= 1;
        assert!(same(&bytes, &other).is_err_and(|error| error.to_string().contains("700")));
    }
}
