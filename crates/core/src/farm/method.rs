//! Properties of each method, as a table. Code elsewhere asks for a property and never for a
//! method.

use core::fmt;

/// Method by which a connection reaches its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// Rewrite the MAC addresses and forward the frame; the server replies directly (LSMAC).
    L2,
    /// Rewrite IP addresses and ports, in both directions (LSNAT, RFC 2391).
    Nat,
    /// Encapsulate the packet for the server, which replies directly (RFC 2003).
    Tunnel,
    /// Accept the connection, read the request, and hand the connection over to a server, which
    /// replies directly (LCCP).
    Handoff,
}

/// Properties of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Name in the farm file and in status output.
    pub name: &'static str,
    pub packet_form: PacketForm,
    /// True if routes can select the server by the client's request.
    pub routes: bool,
    /// Path that replies take.
    pub replies: Replies,
    /// Source of a server's next hop.
    pub found: ServerLookup,
    /// Role of the agent on servers.
    pub agent: AgentRequirement,
    /// True if placement `every-host` is possible.
    pub every_host: bool,
}

/// Form of a packet between the director and a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketForm {
    /// The IP packet is unchanged. Only the Ethernet header is for the server.
    Framed,
    /// With the server's address and port as destination. In replies the source becomes the
    /// service's address and port.
    Translated,
    /// Inside another IP packet (a tunnel).
    Encapsulated,
}

/// Path that replies take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// From the server to the client; the director does not see them.
    Direct,
    ThroughDirector,
}

/// Source of a server's next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerLookup {
    /// By ARP or neighbour discovery on the link. In an every-host farm, hosts are found by routes
    /// even so.
    OnLink,
    /// By the routes in this host's kernel.
    ByRoute,
}

/// Role of the agent on servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentRequirement {
    /// An agent is not needed, but can do what the operator would configure otherwise.
    Optional,
    /// The agent decapsulates tunnels, which other software can do as well.
    Decapsulates,
    /// The agent accepts connections that are handed off, which no other software does.
    Accepts,
}

/// Method of groups, which redirect clients by HTTP. A group forwards no packets, so this method
/// has no [`Properties`].
pub const REDIRECT: &str = "redirect";

/// All names for the `method` of a service, in the order of the documentation. The methods that
/// forward packets come first, then [`REDIRECT`].
pub const METHOD_NAMES: [&str; Method::ALL.len() + 1] = {
    let mut names = [REDIRECT; Method::ALL.len() + 1];
    let mut at = 0;
    while at < Method::ALL.len() {
        names[at] = Method::ALL[at].properties().name;
        at += 1;
    }
    names
};

impl Method {
    /// Methods that forward packets, in the order of the documentation.
    pub const ALL: [Method; 4] = [Method::L2, Method::Nat, Method::Tunnel, Method::Handoff];

    /// Returns the method's row of the table.
    pub const fn properties(self) -> &'static Properties {
        match self {
            Method::L2 => &Properties {
                name: "l2",
                packet_form: PacketForm::Framed,
                routes: false,
                replies: Replies::Direct,
                found: ServerLookup::OnLink,
                agent: AgentRequirement::Optional,
                every_host: true,
            },
            Method::Nat => &Properties {
                name: "nat",
                packet_form: PacketForm::Translated,
                routes: false,
                replies: Replies::ThroughDirector,
                found: ServerLookup::ByRoute,
                agent: AgentRequirement::Optional,
                every_host: false,
            },
            Method::Tunnel => &Properties {
                name: "tunnel",
                packet_form: PacketForm::Encapsulated,
                routes: false,
                replies: Replies::Direct,
                found: ServerLookup::ByRoute,
                agent: AgentRequirement::Decapsulates,
                every_host: true,
            },
            Method::Handoff => &Properties {
                name: "handoff",
                packet_form: PacketForm::Framed,
                routes: true,
                replies: Replies::Direct,
                found: ServerLookup::ByRoute,
                agent: AgentRequirement::Accepts,
                every_host: true,
            },
        }
    }

    /// True if addresses and ports of packets and replies are rewritten.
    pub fn translates(self) -> bool {
        self.properties().packet_form == PacketForm::Translated
    }

    /// True if all packets are encapsulated.
    pub fn encapsulates(self) -> bool {
        self.properties().packet_form == PacketForm::Encapsulated
    }

    /// True if a connection is accepted before its server is selected, and then handed off.
    pub fn hands_over(self) -> bool {
        self.properties().agent == AgentRequirement::Accepts
    }

    /// True if servers are found by ARP or neighbour discovery.
    pub fn needs_link_layer(self) -> bool {
        self.properties().found == ServerLookup::OnLink
    }

    /// True if replies pass the director.
    pub fn sees_replies(self) -> bool {
        self.properties().replies == Replies::ThroughDirector
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.properties().name)
    }
}
