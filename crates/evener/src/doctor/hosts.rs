//! Checks this host's identity in an every-host farm, and the farm's secret.

use evener_core::director::Identity;

use crate::config::Config;
use crate::io::network::Network;
use crate::runtime::secret;
use crate::views::Finding;

const CHECK: &str = "hosts";

/// Checks that the file names this host, and that the secret can be read.
pub(super) fn check_hosts(config: &Config, network: &Network) -> Vec<Finding> {
    let known = match Identity::find(&config.description(), network) {
        Ok(None) => None,
        Ok(Some(identity)) => {
            Some(Finding::ok(CHECK, format!("This host is {} ({}).", identity.name, identity.address)))
        }
        Err(error) => Some(Finding::fail(CHECK, format!("{error}."))),
    };
    let needed = known.is_some() || config.hands_over();
    let secret = config.farm.secret_file.as_deref().filter(|_| needed).map(|path| match secret::read(path) {
        Ok(_) => Finding::ok(
            "secret",
            format!("{} is a secret that the hosts of a farm can know each other by.", path.display()),
        ),
        Err(error) => Finding::fail("secret", format!("{error}.")),
    });
    known.into_iter().chain(secret).collect()
}
