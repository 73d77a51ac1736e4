//! State of the parts that this daemon has set up in the kernel.

use std::collections::BTreeMap;

use evener_dataplane::installed::{MissingPart, Part};

use crate::events::DaemonEvent;

/// Parts that are set up, and the missing ones among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Installed {
    pub(crate) parts: Vec<Part>,
    /// Missing parts that can't be restored, with the error.
    pub(crate) missing: BTreeMap<Part, String>,
}

impl Installed {
    /// Records missing parts. Returns an event for each part that was restored or has a new error.
    pub(crate) fn record_missing(&mut self, found: Vec<MissingPart>) -> Vec<DaemonEvent> {
        let before = std::mem::take(&mut self.missing);
        let mut news = Vec::new();
        for MissingPart { part, restored } in found {
            match restored.map_err(|error| error.to_string()) {
                Ok(()) => news.push(DaemonEvent::Restored { part }),
                Err(error) => {
                    if before.get(&part) != Some(&error) {
                        news.push(DaemonEvent::Missing { part: part.clone(), error: error.clone() });
                    }
                    self.missing.insert(part, error);
                }
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use evener_dataplane::EngineError;

    use super::*;

    #[test]
    fn a_part_that_stays_missing_is_news_once() {
        let missing = || {
            let error = EngineError::Host("no room".to_owned());
            vec![MissingPart { part: Part::Guard, restored: Err(error) }]
        };
        let mut installed = Installed::default();
        assert!(matches!(
            &installed.record_missing(missing())[..],
            [DaemonEvent::Missing { part: Part::Guard, .. }]
        ));
        assert!(installed.record_missing(missing()).is_empty());
        assert_eq!(installed.missing.len(), 1);
        let there_again = vec![MissingPart { part: Part::Guard, restored: Ok(()) }];
        assert!(matches!(
            &installed.record_missing(there_again)[..],
            [DaemonEvent::Restored { part: Part::Guard }]
        ));
        assert!(installed.missing.is_empty());
    }
}
