//! Checks that the parts that this daemon set up in the kernel are still there.

use evener_dataplane::installed::Part;

use super::executor::Executor;
use super::interfaces::forwarded;

impl Executor {
    /// Checks the parts that this daemon set up in the kernel, and restores missing ones. The
    /// result belongs to the next published state.
    pub(super) fn restore(&mut self) {
        if self.is_idle() {
            return;
        }
        let Some(engine) = self.engine.here() else {
            self.engine.restores_later = true;
            return;
        };
        let mut found = engine.restore();
        found.extend(self.settings.forward(&forwarded(&self.director, engine)));
        let parts = engine.installed();
        let mut installed = self.showing.installed().clone();
        for event in installed.record_missing(found) {
            self.bus.publish(event);
        }
        installed.parts = parts;
        installed.parts.extend(self.settings.changed().map(Part::Setting));
        if installed != *self.showing.installed() {
            self.showing.set_installed(installed);
        }
    }
}
