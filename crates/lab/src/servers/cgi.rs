//! Dynamic pages: a program that a web server forks and executes for each request.

use std::path::PathBuf;

use anyhow::Result;

use crate::evener;

/// Folder of the pages; the rest of a path is the reply's length.
pub const FOLDER: &str = "cgi/";

/// Returns the program, which is built together with this one.
pub fn program() -> Result<PathBuf> {
    evener::beside("evener-lab-cgi")
}
