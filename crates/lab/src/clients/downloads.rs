//! Downloads of one page by several clients, with the number of bytes that each client lacks at
//! any time.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use anyhow::Result;

use super::partial_reader::Reader;
use crate::network::host::Host;

/// Expected length of a response's head in bytes, until the head has arrived.
const HEAD: u64 = 250;

/// Running downloads. Dropping the value ends them.
#[derive(Debug)]
pub struct Downloads {
    all: Vec<Download>,
    /// Handles that end a reader which waits for more.
    ends: Vec<TcpStream>,
    threads: Vec<JoinHandle<Result<()>>>,
}

#[derive(Debug)]
struct Download {
    client: SocketAddr,
    lacks: Arc<AtomicU64>,
}

impl Downloads {
    /// Connects all clients, and then sends their requests for a page of this length.
    ///
    /// # Errors
    /// Fails if a connection is refused.
    pub fn start(from: &Host, to: SocketAddr, count: usize, path: &str, length: usize) -> Result<Downloads> {
        let readers = (0..count).map(|_| Reader::connect(from, to)).collect::<Result<Vec<_>>>()?;
        let mut downloads = Downloads { all: Vec::new(), ends: Vec::new(), threads: Vec::new() };
        for mut reader in readers {
            let lacks = Arc::new(AtomicU64::new(length as u64 + HEAD));
            downloads.all.push(Download { client: reader.address()?, lacks: Arc::clone(&lacks) });
            downloads.ends.push(reader.end()?);
            let path = path.to_owned();
            downloads.threads.push(thread::spawn(move || {
                reader.get(&path)?;
                reader.read_to(1)?;
                while reader.lacks()? > 0 {
                    lacks.store(reader.lacks()?, Relaxed);
                    reader.read_some(u64::MAX)?;
                }
                lacks.store(0, Relaxed);
                Ok(())
            }));
        }
        Ok(downloads)
    }

    /// Addresses and ports of the clients.
    pub fn clients(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.all.iter().map(|one| one.client)
    }

    /// Number of bytes that each client lacks.
    pub fn lacks(&self) -> Vec<u64> {
        self.all.iter().map(|one| one.lacks.load(Relaxed)).collect()
    }
}

impl Drop for Downloads {
    fn drop(&mut self) {
        for end in &self.ends {
            let _ = end.shutdown(Shutdown::Both);
        }
        // those that had not ended fail now
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
