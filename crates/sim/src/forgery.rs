//! Datagrams that no host should take for what they seem to be.

use evener_core::node::association::Numbers;
use evener_core::node::peers::wire::{Body, Datagram};
use evener_core::node::secret::Key;

use crate::farms::KEY;

/// The error in a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgery {
    /// It is of another farm, and says that its sender's servers are down.
    Farm,
    /// It ends too early.
    Cut,
    /// A byte is another.
    Changed,
    /// It was heard already.
    Twice,
    /// It is of another version of the protocol: authentic, and its sender lives.
    Version,
    /// It is of another life of its sender, which is authentic too.
    Life,
}

impl Forgery {
    pub(crate) const ALL: [Forgery; 6] =
        [Forgery::Farm, Forgery::Cut, Forgery::Changed, Forgery::Twice, Forgery::Version, Forgery::Life];

    /// Whether nothing may come of it at all.
    pub(crate) fn is_nothing(self) -> bool {
        !matches!(self, Forgery::Version | Forgery::Life)
    }

    /// The datagram with that fault, cut or changed at a byte.
    pub(crate) fn make(self, bytes: &[u8], at: usize) -> Vec<u8> {
        let at = at % bytes.len().max(1);
        let mut changed = bytes.to_vec();
        match self {
            Forgery::Twice => {}
            Forgery::Cut => changed.truncate(at),
            Forgery::Changed => {
                changed.iter_mut().skip(at).take(1).for_each(|byte| *byte = byte.wrapping_add(1))
            }
            Forgery::Farm => changed = rewritten(bytes, Key([8; 32]), falsify),
            Forgery::Version => {
                changed = rewritten(bytes, KEY, |heard| {
                    heard.numbers.sequence += 1;
                    heard.body = Body::Foreign { version: u8::MAX };
                });
            }
            Forgery::Life => {
                changed = rewritten(bytes, KEY, |heard| {
                    heard.numbers = Numbers { incarnation: 1 << 40, sequence: 1 }
                });
            }
        }
        changed
    }
}

/// The same datagram with a right tag, as far as it can be read.
pub(crate) fn sealed(bytes: &[u8]) -> Vec<u8> {
    match Datagram::read(bytes, &Key([8; 32])) {
        Ok(heard) => heard.write(&KEY),
        Err(_) => bytes.to_vec(),
    }
}

/// The next of its sender's, which takes no part in anything.
fn falsify(heard: &mut Datagram) {
    heard.numbers.sequence += 1;
    if let Body::Report(report) = &mut heard.body {
        (report.up, report.owned) = (0, 0);
    }
}

fn rewritten(bytes: &[u8], key: Key, change: impl Fn(&mut Datagram)) -> Vec<u8> {
    let Ok(mut heard) = Datagram::read(bytes, &KEY) else { return bytes.to_vec() };
    change(&mut heard);
    heard.write(&key)
}
