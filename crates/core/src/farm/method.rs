//! The properties of each method: one row of a table, which all other code reads.

use core::fmt;

/// How a connection reaches its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// Rewrite the MAC addresses and send the frame on; the server replies directly (LSMAC).
    L2,
    /// Rewrite IP addresses and ports, in both directions (LSNAT, RFC 2391).
    Nat,
    /// Put the packet into another one, addressed to the server, which replies directly (RFC 2003).
    Tunnel,
    /// Accept the connection, read what the client wants, and give it to a server for that, which
    /// replies directly (LCCP).
    Handoff,
}

/// The properties of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Its name in the file and everywhere else.
    pub name: &'static str,
    /// The form of a packet on its way to a server.
    pub packet_form: PacketForm,
    /// Whether servers are chosen by what clients ask for.
    pub routes: bool,
    /// Which way answers take.
    pub replies: Replies,
    /// How it is known where a server is.
    pub found: ServerLookup,
    /// The work of Evener on servers.
    pub agent: AgentRequirement,
    /// Whether each host may decide.
    pub every_host: bool,
}

/// The form of a packet on its way to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketForm {
    /// It stays as it is, in a frame for the server.
    Framed,
    /// It gets the server's address and port, and answers get the service's.
    Translated,
    /// It goes inside another one.
    Encapsulated,
}

/// Which way answers take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// From the server to the client: the director never sees them.
    Direct,
    /// Through the director.
    ThroughDirector,
}

/// How it is known where a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerLookup {
    /// It is asked for on the link. Where every host decides, hosts are found by routes all the
    /// same.
    OnLink,
    /// By the routes of this host.
    ByRoute,
}

/// The work of Evener on servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentRequirement {
    /// Nothing; an agent can do what their operator would.
    Optional,
    /// Packets have to come out of tunnels, which something else may do as well.
    Decapsulates,
    /// Connections are accepted there, which nothing else does.
    Accepts,
}

/// The method of groups, whose clients are answered by HTTP: no packet goes on to a server, so it
/// has no row of [`Properties`].
pub const REDIRECT: &str = "redirect";

/// The names of all that `method` of a service may be, in the order in which people read of them:
/// those that send packets on, and [`REDIRECT`].
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
    /// All that send packets on, in the order in which people are told of them.
    pub const ALL: [Method; 4] = [Method::L2, Method::Nat, Method::Tunnel, Method::Handoff];

    /// Its row of the table.
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

    /// Whether packets get other addresses and ports, and answers too.
    pub fn translates(self) -> bool {
        self.properties().packet_form == PacketForm::Translated
    }

    /// Whether all packets go in tunnels.
    pub fn encapsulates(self) -> bool {
        self.properties().packet_form == PacketForm::Encapsulated
    }

    /// Whether a connection is accepted before its server is known, and then handed to that.
    pub fn hands_over(self) -> bool {
        self.properties().agent == AgentRequirement::Accepts
    }

    /// Whether servers are asked for on the link.
    pub fn needs_link_layer(self) -> bool {
        self.properties().found == ServerLookup::OnLink
    }

    /// Whether answers come back through the director.
    pub fn sees_replies(self) -> bool {
        self.properties().replies == Replies::ThroughDirector
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.properties().name)
    }
}
