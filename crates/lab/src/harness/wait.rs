//! Waiting with a timeout: tests assert results, never speed.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const POLL: Duration = Duration::from_millis(50);

/// Long timeout, which only failures reach. A TCP whose segments were lost for five seconds may be
/// silent for thirteen more, and hosts that restart one after another lose segments more than once.
pub const LONG: Duration = Duration::from_secs(60);

/// Polls a value until it is right. After the timeout the last value is the error.
pub fn for_value<T>(
    timeout: Duration,
    mut value: impl FnMut() -> Result<T>,
    right: impl Fn(&T) -> bool,
) -> Result<Result<T, T>> {
    let deadline = Instant::now() + timeout;
    loop {
        let now = value()?;
        if right(&now) {
            return Ok(Ok(now));
        }
        if Instant::now() > deadline {
            return Ok(Err(now));
        }
        thread::sleep(POLL);
    }
}

/// Waits until a condition holds; `what` describes it.
pub fn until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    match for_value(LONG, &mut holds, |held| *held)? {
        Ok(_) => Ok(()),
        Err(_) => bail!("After {LONG:?} it is still not so: {what}"),
    }
}
