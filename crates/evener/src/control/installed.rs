//! Holding the kernel against what this daemon has set up there.

use evener_dataplane::installed::Part;

use super::executor::Executor;
use super::interfaces::forwarded;

impl Executor {
    /// Holds the kernel against what was set up there, and puts back what is missing. The result is
    /// shown with all that is published next.
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
