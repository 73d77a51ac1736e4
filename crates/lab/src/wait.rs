//! Waiting with an end: a test asserts what happens, never how fast.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const POLL: Duration = Duration::from_millis(50);

/// Generous: only what never happens takes so long. A TCP whose segments were lost for five seconds
/// may be silent for thirteen more, and hosts that restart one after another lose them more than
/// once.
pub const LONG: Duration = Duration::from_secs(60);

/// Asks for a value until it is right; if it never is, the last one is the error.
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

/// Waits until something holds; `what` says what that is.
pub fn until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    match for_value(LONG, &mut holds, |held| *held)? {
        Ok(_) => Ok(()),
        Err(_) => bail!("After {LONG:?} it is still not so: {what}"),
    }
}
