//! Names: a query's bytes in, an answer's bytes out (RFC 1034, RFC 1035, RFC 2308, RFC 4592, RFC
//! 6891).
//!
//! Zones are data that somebody has read ([`Zone`]); names whose addresses depend on how servers
//! are stand in them ([`AddressPool`]). [`Catalog`] is all of it at one moment, immutable but for
//! counts and turns, so that many threads answer by it at once; an answer allocates nothing.

mod address_pool;
mod answer;
mod cookie;
mod edns;
mod file_ranks;
mod limit;
mod model;
mod name;
mod paths;
mod period;
mod query;
mod servers;
mod snapshot;
mod svcb;
mod table;
#[cfg(test)]
mod tests;
mod wire;
mod zone;

pub use crate::pool::policy::Selection;
pub use address_pool::{Address, AddressPool, EmptyPool, NameSettings};
pub use answer::{Catalog, DnsRequest, EncodedResponse, ResponseOutcome, Transport};
pub use edns::UDP_MAX;
pub use file_ranks::{BadRanks, FileRanks, RanksChange, read_ranks};
pub use limit::{Limit, LimitExceeded, RateBucket, SharedBudget};
pub use model::{AddressesFrom, BalancedName};
pub use name::{Name, NameError};
pub use paths::{MeasuredPath, PathChange, PathMode, PathOrder, PathProber, PathProbing};
pub use period::{Period, PeriodStep};
pub use servers::{OwnServer, ServerList};
pub use snapshot::{AddressSnapshot, LoadSnapshot, NameSnapshot};
pub use table::SharedList;
pub use wire::{Rcode, rtype};
pub use zone::{Lookup, RecordError, RrSet, Zone, is_of_signing};
