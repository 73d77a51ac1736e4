//! CGI program (RFC 3875) for dynamic workloads: uses a set time of the processor, and writes a
//! reply of the length that the path ends with, `/cgi/5125?cpu_us=2000`.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Pattern of all files; this program has nothing else of the library, so that it starts quickly.
const PATTERN: &[u8] = include_bytes!("../servers/pattern.txt");

fn main() -> ExitCode {
    match reply() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn reply() -> io::Result<()> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let path = variable("PATH_INFO");
    let wanted = path.rsplit('/').next().and_then(|len| len.parse::<usize>().ok());
    let cpu_us = variable("QUERY_STRING").strip_prefix("cpu_us=").and_then(|time| time.parse().ok());
    let mut out = io::stdout().lock();
    let Some(len) = wanted else {
        return out.write_all(b"Status: 404 Not Found\r\nContent-Type: text/plain\r\n\r\nno length\n");
    };
    work(Duration::from_micros(cpu_us.unwrap_or_default()))?;
    out.write_all(b"Content-Type: text/plain\r\n\r\n")?;
    let mut left = len;
    let block = PATTERN.repeat(256);
    while left > 0 {
        let part = left.min(block.len());
        out.write_all(block.get(..part).unwrap_or_default())?;
        left -= part;
    }
    out.flush()
}

/// Uses the processor until this process has had so much of it, its start included.
fn work(time: Duration) -> io::Result<()> {
    while Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?) < time {
        std::hint::black_box(PATTERN.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte)));
    }
    Ok(())
}
