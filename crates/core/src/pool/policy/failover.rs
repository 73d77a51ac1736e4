//! Failover: all clients use one server, and the next server once it fails.

use super::{NamePolicy, Policy, Selection};

/// Selects the first working server, in the order of the file or of configured ranks.
pub static FAILOVER: Policy = Policy {
    name: "failover",
    about: "the first working server, in the order of the file or of ranks; for standby servers",
    needs: &[],
    packets: None,
    redirect: None,
    names: Some(NamePolicy { draw: Selection::Failover, weighing: None }),
};
