//! `affinity` of a service: its clients return to the servers of their former connections.

use evener_core::farm::{ClientAffinity, Method, Placement};
use toml::Spanned;

use super::keys::tables::service as keys;
use super::problems::Problem;
use super::section::Section;
use super::values;

/// Names of the IP versions, with their address lengths in bits.
const VERSIONS: [(&str, u8); 2] = [("IPv4", 32), ("IPv6", 128)];
/// Default prefix lengths of one client, of IPv4 and of IPv6. An IPv6 host changes its addresses
/// within its network (RFC 8981).
const PREFIX_LENS: [u8; 2] = [32, 64];

/// Reads the affinity of a service with this policy. `None` if it has none.
pub(super) fn read(
    section: &Section<'_>,
    method: Method,
    placement: Placement,
    policy: &str,
) -> Option<ClientAffinity> {
    let prefix_lens = prefix_lens(section);
    let time = section.time(&keys::AFFINITY)?;
    let refused = match placement {
        Placement::EveryHost => Some("with placement \"every-host\" no host knows the clients of the others"),
        Placement::Director if method.hands_over() => {
            Some("with method \"handoff\" the request selects the server")
        }
        Placement::Director => None,
    };
    if let Some(why) = refused.filter(|_| policy != "hash") {
        let help = "write policy = \"hash\", which needs no memory of clients, or remove `affinity`";
        section.problem(Problem::new(
            time.span(),
            format!("{why}, so `affinity` is only for policy \"hash\""),
            help,
        ));
    }
    Some(ClientAffinity { time_ms: time.into_inner(), prefix_lens })
}

/// Reads `affinity_mask`: a prefix length of IPv4, and one of IPv6.
fn prefix_lens(section: &Section<'_>) -> [u8; 2] {
    let mut lens = PREFIX_LENS;
    let mut written = section.one_or_list(&keys::AFFINITY_MASK, values::count::<u8>(1..=128)).into_iter();
    for (len, (version, most)) in lens.iter_mut().zip(VERSIONS) {
        let Some(one) = written.next() else { break };
        if *one.get_ref() > most {
            let message = format!("a prefix of {version} has at most {most} bits, not {}", one.get_ref());
            section.problem(Problem::new(one.span(), message, HELP));
        }
        *len = one.into_inner();
    }
    if let Some(third) = written.next() {
        let message = "`affinity_mask` has two numbers: of IPv4 and of IPv6";
        section.problem(Problem::new(Spanned::span(&third), message, HELP));
    }
    lens
}

const HELP: &str = "write for example affinity_mask = [24, 56]: first for IPv4, then for IPv6";
