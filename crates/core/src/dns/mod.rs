//! DNS server: decodes queries and encodes answers (RFC 1034, RFC 1035, RFC 2308, RFC 4592, RFC
//! 6891).
//!
//! A [`Zone`] is parsed data. An [`AddressPool`] is a name whose addresses depend on the state of
//! servers. A [`Catalog`] contains all zones and pools at one time. It is immutable except for
//! counters and turns, so many threads answer from it at once. An answer allocates no memory.
//!
//! Sequence of calls: first zones and pools, then [`Catalog::new`] once, then [`Catalog::answer`]
//! for each query; when pools change, [`Catalog::with`] returns the next catalog.
//!
//! ```
//! use std::sync::Arc;
//!
//! use evener_core::dns::{Catalog, DnsRequest, Name, Rcode, Transport, Zone, rtype};
//! use evener_core::path::seed::Seed;
//!
//! let (apex, host) = (Name::parse("example.com")?, Name::parse("ns.example.com")?);
//! let numbers = [1_u32, 3_600, 600, 604_800, 60].map(u32::to_be_bytes).concat();
//! let soa = [host.as_wire(), host.as_wire(), &numbers].concat();
//! let records = [
//!     (apex.clone(), rtype::SOA, 300, soa),
//!     (apex.clone(), rtype::NS, 300, host.as_wire().to_vec()),
//!     (host.clone(), rtype::A, 300, vec![192, 0, 2, 53]),
//! ];
//! let zone = Zone::new(apex, records).map_err(|errors| format!("{errors:?}"))?;
//! let catalog = Catalog::new([Arc::new(zone)], [], Seed(1, 2), "ns1");
//!
//! let mut query = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
//! query.extend(host.as_wire());
//! query.extend([rtype::A.to_be_bytes(), [0, 1]].concat());
//! let request = DnsRequest {
//!     bytes: &query,
//!     client: "203.0.113.7".parse()?,
//!     transport: Transport::Udp,
//!     now_s: 0,
//!     now_ms: 0,
//!     turn: 0,
//! };
//! let mut answer = [0; 512];
//! let response = catalog.answer(&request, None, &mut answer).ok_or("a query has an answer")?;
//! assert_eq!(response.outcome.rcode, Rcode::NoError);
//! assert!(answer[..response.len].ends_with(&[192, 0, 2, 53]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address_pool;
mod answer;
mod cookie;
mod counts;
mod edns;
mod file_ranks;
mod limit;
mod model;
mod name;
mod path_probes;
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
pub use counts::AddressCounts;
pub use edns::UDP_MAX;
pub use file_ranks::{BadRanks, FileRanks, RanksChange, read_ranks};
pub use limit::{Limit, LimitExceeded, RateBucket, SharedBudget};
pub use model::{AddressesFrom, BalancedName};
pub use name::{Name, NameError};
pub use path_probes::{MeasuredPath, PathChange, PathMode, PathOrder, PathProber, PathProbing};
pub use servers::{OwnServer, ServerList};
pub use snapshot::{AddressSnapshot, LoadSnapshot, NameSnapshot};
pub use table::SharedList;
pub use wire::{Rcode, rtype};
pub use zone::{Lookup, RecordError, RrSet, Zone, is_of_signing};
