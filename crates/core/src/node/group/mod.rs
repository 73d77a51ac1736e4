//! Messages between members of a server group and its director: the methods that section 3.3 of the
//! paper adds to HTTP, with text bodies. `docs/how-it-works/server-groups.md` specifies them byte
//! for byte.

mod message;
#[cfg(test)]
mod tests;

pub use message::{BODY_MAX, GroupMessage, MessageError, write_inform, write_joiners};

/// A method of the group protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Add,
    Exit,
    /// Query for the members.
    Query,
    /// A member reports its load.
    Inform,
    /// A director queries a member's load.
    LoadQuery,
}

impl Verb {
    pub const ALL: [Verb; 5] = [Verb::Add, Verb::Exit, Verb::Query, Verb::Inform, Verb::LoadQuery];

    /// Name, which is case-sensitive (RFC 9110, section 9.1).
    pub const fn name(self) -> &'static str {
        match self {
            Verb::Add => "GROUP-ADD",
            Verb::Exit => "GROUP-EXIT",
            Verb::Query => "GROUP-QUERY",
            Verb::Inform => "LOAD-INFORM",
            Verb::LoadQuery => "LOAD-QUERY",
        }
    }

    /// Returns the method with this name.
    pub fn of(name: &str) -> Option<Verb> {
        Verb::ALL.into_iter().find(|verb| verb.name() == name)
    }
}
