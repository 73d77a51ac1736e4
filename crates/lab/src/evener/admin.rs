//! API on the admin socket, for tests with more requests than commands could send.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;

use super::Evener;
use crate::network::host::Host;

/// Admin socket of a host's daemon. As a file it is usable from any namespace.
#[derive(Clone, Debug)]
pub struct AdminSocket(PathBuf);

impl AdminSocket {
    /// Returns the socket of the daemon on this host.
    pub fn of(host: &Host) -> Result<AdminSocket> {
        Ok(AdminSocket(PathBuf::from(format!("/run/evener/net-{}/admin.sock", host.netns().inode()?))))
    }

    /// Sends a request and returns the body of the response, which must have status 200. The daemon
    /// closes each connection after one response.
    pub fn request(&self, method: &str, path: &str, body: &str) -> Result<String> {
        let mut stream = UnixStream::connect(&self.0).context("No daemon answers")?;
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all((head + body).as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").context("There is no answer")?;
        ensure!(head.starts_with("HTTP/1.1 200"), "{method} {path}: {head}: {body}");
        Ok(body.to_owned())
    }

    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let body = self.request("GET", path, "")?;
        serde_json::from_str(&body).with_context(|| format!("GET {path} returned: {body}"))
    }
}

impl Evener {
    pub fn admin_socket(&self) -> Result<AdminSocket> {
        AdminSocket::of(&self.host)
    }
}
