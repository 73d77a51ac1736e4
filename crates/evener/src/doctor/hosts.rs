//! This host among others, where every host decides.

use super::Finding;
use crate::config::Config;
use crate::control::hosts::Identity;
use crate::network::Network;
use crate::secret;

const CHECK: &str = "hosts";

/// Whether the file names this host, and whether others can know it by the secret.
pub(super) fn look(config: &Config, network: &Network) -> Vec<Finding> {
    let known = match Identity::find(config, network) {
        Ok(None) => return Vec::new(),
        Ok(Some(identity)) => {
            Finding::ok(CHECK, format!("This host is {} ({}).", identity.name, identity.address))
        }
        Err(error) => Finding::fail(CHECK, format!("{error}.")),
    };
    let secret = config.farm.secret_file.as_deref().map(|path| match secret::read(path) {
        Ok(_) => {
            Finding::ok(CHECK, format!("{} is a secret that hosts can know each other by.", path.display()))
        }
        Err(error) => Finding::fail(CHECK, format!("{error}.")),
    });
    [known].into_iter().chain(secret).collect()
}
