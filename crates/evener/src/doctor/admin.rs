//! Checks access to the admin address.

use crate::config::AdminConfig;
use crate::runtime::token;
use crate::views::Finding;

const CHECK: &str = "admin";

pub(super) fn check_admin(admin: &AdminConfig) -> Option<Finding> {
    let listen = admin.listen?;
    Some(match (&admin.token_file, listen.ip().is_loopback()) {
        (Some(file), _) => match token::check(file) {
            Ok(()) => Finding::ok(CHECK, format!("{listen} requires a token.")),
            Err(error) => Finding::fail(CHECK, format!("{error}.")),
        },
        (None, true) => Finding::ok(CHECK, format!("{listen} is for this host's own users.")),
        (None, false) => Finding::warn(
            CHECK,
            format!(
                "{listen} is not a loopback address: without `token_file` in [admin] only /healthz and /ready are answered there."
            ),
        ),
    })
}
