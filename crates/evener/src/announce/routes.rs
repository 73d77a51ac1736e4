//! Host routes in the kernel's routing tables (rtnetlink(7)).

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt;
use nix::errno::Errno;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::{Error, Handle, RouteMessageBuilder};

/// Protocol of routes that the kernel itself adds, such as those to its own IPv6 addresses.
const BY_KERNEL: u8 = 2;

/// A route to one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HostRoute {
    pub(super) address: IpAddr,
    pub(super) table: u32,
    /// Protocol number of the program that added the route.
    pub(super) protocol: u8,
    pub(super) metric: u32,
    /// True if the host drops packets to the address. Evener's routes do: what reaches them is for
    /// no service.
    pub(super) is_blackhole: bool,
}

/// Formats the route as ip-route(8) does.
impl fmt::Display for HostRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostRoute { address, table, protocol, metric, is_blackhole } = self;
        let kind = if *is_blackhole { "blackhole " } else { "" };
        write!(f, "{kind}{address} table {table} proto {protocol} metric {metric}")
    }
}

impl HostRoute {
    /// True if the kernel can't have both routes.
    pub(super) fn excludes(&self, other: &HostRoute) -> bool {
        (self.address, self.table, self.metric) == (other.address, other.table, other.metric)
    }
}

/// Connection to the kernel's routing tables.
pub(super) struct RouteTables {
    handle: Handle,
}

impl RouteTables {
    pub(super) fn connect() -> std::io::Result<RouteTables> {
        let (connection, handle, _) = rtnetlink::new_connection_with_strict_check()?;
        // The task ends with the last handle.
        tokio::spawn(connection);
        Ok(RouteTables { handle })
    }

    /// Returns the routes of a table to single addresses, except the kernel's own.
    pub(super) async fn read(&self, table: u32) -> Result<BTreeSet<HostRoute>, Error> {
        let (all, any) = (RouteProtocol::Unspec, RouteType::Unspec);
        let questions = [
            in_table(RouteMessageBuilder::<Ipv4Addr>::new(), table, all, any).build(),
            in_table(RouteMessageBuilder::<Ipv6Addr>::new(), table, all, any).build(),
        ];
        let mut routes = BTreeSet::new();
        for question in questions {
            let answers = self.handle.route().get(question).execute();
            match answers.try_collect::<Vec<RouteMessage>>().await {
                Ok(found) => routes.extend(found.iter().filter_map(host_route)),
                // The kernel has no table without routes.
                Err(error) if errno(&error) == Some(Errno::ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
        routes.retain(|route| route.table == table && route.protocol != BY_KERNEL);
        Ok(routes)
    }

    /// Adds a route. Another program's route with the same metric is an error.
    pub(super) async fn add(&self, route: &HostRoute) -> Result<(), Error> {
        self.handle.route().add(message(route)).execute().await
    }

    /// Deletes a route. It may be gone already.
    pub(super) async fn delete(&self, route: &HostRoute) -> Result<(), Error> {
        let mut message = message(route);
        // The kernel compares the scope, unless it is this one.
        message.header.scope = RouteScope::NoWhere;
        match self.handle.route().del(message).execute().await {
            Err(error) if errno(&error) == Some(Errno::ESRCH) => Ok(()),
            done => done,
        }
    }
}

fn errno(error: &Error) -> Option<Errno> {
    match error {
        Error::NetlinkError(message) => message.code.map(|code| Errno::from_raw(-code.get())),
        _ => None,
    }
}

/// Formats the kernel's answer for people.
pub(super) fn sentence(error: &Error) -> String {
    match errno(error) {
        Some(Errno::EEXIST) => "another program has a route to it with the same metric".to_owned(),
        Some(Errno::EPERM | Errno::EACCES) => "it needs CAP_NET_ADMIN".to_owned(),
        Some(errno) => errno.desc().to_owned(),
        None => error.to_string(),
    }
}

fn message(route: &HostRoute) -> RouteMessage {
    let HostRoute { table, metric, .. } = *route;
    let (protocol, kind) = (RouteProtocol::from(route.protocol), RouteType::BlackHole);
    match route.address {
        IpAddr::V4(address) => {
            let to = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(address, 32);
            in_table(to, table, protocol, kind).priority(metric).build()
        }
        IpAddr::V6(address) => {
            let to = RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(address, 128);
            in_table(to, table, protocol, kind).priority(metric).build()
        }
    }
}

fn in_table<T>(
    message: RouteMessageBuilder<T>,
    table: u32,
    protocol: RouteProtocol,
    kind: RouteType,
) -> RouteMessageBuilder<T> {
    message.table_id(table).protocol(protocol).kind(kind)
}

/// Returns the route if it is one to a single address.
fn host_route(message: &RouteMessage) -> Option<HostRoute> {
    let (mut address, mut table, mut metric) = (None, u32::from(message.header.table), 0);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(to)) => address = Some(IpAddr::V4(*to)),
            RouteAttribute::Destination(RouteAddress::Inet6(to)) => address = Some(IpAddr::V6(*to)),
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Priority(number) => metric = *number,
            _ => {}
        }
    }
    let address = address?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    // Routes for a type of service are other routes.
    let is_host_route = message.header.destination_prefix_length == bits && message.header.tos == 0;
    is_host_route.then_some(HostRoute {
        address,
        table,
        protocol: message.header.protocol.into(),
        metric,
        is_blackhole: message.header.kind == RouteType::BlackHole,
    })
}
