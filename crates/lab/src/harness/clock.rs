//! Time of a measurement.

use std::process::Command;

use anyhow::{Context, Result};

/// Current time in UTC, as date(1) prints it: `2026-01-31 12:00`.
pub fn utc_now() -> Result<String> {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M"]).output();
    let output = output.context("date did not start")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
