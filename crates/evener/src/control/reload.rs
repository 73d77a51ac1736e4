//! Another configuration for a running daemon: all of it, or nothing.

use std::io::IsTerminal;

use super::telling::open_log;
use super::{Daemon, display, now_ms};
use crate::config::{self, Config};
use crate::network::Network;

impl Daemon {
    /// Reads the file again. What is wrong with it changes nothing and is returned in words.
    pub(super) async fn reload(&mut self) -> Result<String, String> {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Reloading]);
        let done = self.try_reload().await;
        match &done {
            Ok(_) => {
                self.about.reloads += 1;
                self.about.reload_error = None;
            }
            Err(error) => {
                self.about.reloads_refused += 1;
                self.about.reload_error = Some(error.clone());
                // Whoever has moved the log aside waits for that, whatever is wrong with the file.
                if let Err(error) = self.director.reopen_log() {
                    tracing::warn!("{error}; it goes on where it was");
                }
            }
        }
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        done
    }

    async fn try_reload(&mut self) -> Result<String, String> {
        let unchanged = "nothing was changed";
        let config = config::load(&self.config_path).map_err(|problems| {
            let colour = std::io::stderr().is_terminal();
            format!("{unchanged}: the file has errors\n{}", problems.render(colour))
        })?;
        let network = Network::read().await.map_err(|error| format!("{unchanged}: {error}"))?;
        let interfaces = network
            .pick_interfaces(&config.engine.interfaces, &config.services)
            .map_err(|error| format!("{unchanged}: {error}"))?;
        self.director.still_this_host(&config, &network).map_err(|error| format!("{unchanged}: {error}"))?;
        self.director.hands_over_still(&config).map_err(|error| format!("{unchanged}: {error}"))?;
        let log = open_log(&config).map_err(|error| format!("{unchanged}: {error}"))?;
        let later = needs_restart(&self.director.config, &config);
        let before = (self.director.config.clone(), self.director.interfaces.clone());
        self.director.network = network;
        if let Err(error) = self.director.reconfigure(config, interfaces, now_ms()) {
            // What the engine refused is taken back whole.
            let (config, interfaces) = before;
            let back = self.director.reconfigure(config, interfaces, now_ms());
            let back =
                back.err().map_or_else(String::new, |error| format!("; and going back failed: {error}"));
            return Err(format!("{unchanged}: {error}{back}"));
        }
        self.director.warn_of_host();
        if let Some(resident) = &mut self.resident {
            resident.look(&self.director.config, &self.director.network).await;
        }
        self.follow_network();
        self.neighbours.announce(&self.director.announced());
        let path = display(&self.config_path);
        self.director
            .tell_to(log)
            .map_err(|error| format!("{path} is in force, but for its log: {error}"))?;
        tracing::info!(file = path, "reloaded");
        Ok(match later {
            Some(later) => format!("{path} is in force, but for {later}: restart the daemon for that"),
            None => format!("{path} is in force"),
        })
    }
}

/// What a running daemon can't change.
fn needs_restart(old: &Config, new: &Config) -> Option<&'static str> {
    let engine = |config: &Config| {
        let engine = &config.engine;
        (engine.kind, engine.xdp_mode, engine.sessions_max, engine.sessions6_max, engine.threads)
    };
    match (engine(old) != engine(new), old.admin != new.admin) {
        (true, true) => Some("the engine's settings and the admin address"),
        (true, false) => Some("the engine's settings"),
        (false, true) => Some("the admin address"),
        (false, false) => None,
    }
}
