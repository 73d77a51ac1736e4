//! Defects that the control plane has had, or nearly had. The simulation must find each of them.
//!
//! The defects are in the code between a director and its host, so the tested director is the
//! product's.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A partly applied, refused change stays in force, but the tables before it are reported.
    KeepsRefused,
    /// A refused change counts as applied.
    BelievesOrders,
    /// An expired lease becomes valid again when the data plane's clock has wrapped.
    LeaseHoldsAgain,
    /// A lease never expires: the data plane of a dead daemon answers ARP forever.
    LeaseEndless,
    /// A drained server takes new sessions.
    DrainUnheard,
    /// A new daemon ignores the slots of the running data plane and numbers the servers anew.
    AdoptsNothing,
    /// Failed probes are ignored.
    FailureUntold,
    /// Sessions of remaining servers are removed together with those of removed servers.
    SweepsAll,
    /// Sessions of removed servers stay, and other servers get their slots.
    SweepsNothing,
    /// A restarted host uses its old incarnation.
    SameLife,
    /// A director gets a time that has passed.
    LateClock,
    /// Views show a reload before it is in force.
    ShowsHalf,
    /// If all servers fail at once none stays in the ring, whatever the file says.
    KeepsNone,
    /// A datagram of another farm counts as authentic.
    BelievesStrangers,
    /// The request does not affect the selection of a server.
    RoutesIgnored,
    /// Hosts ignore clock changes: the keys of SYN cookies keep following the wrong clock.
    ClockUnheard,
    /// After a refusal nothing is retried until the next input.
    SleepsOn,
    /// A restart loses the members of a group.
    ForgetsMembers,
    /// The group's redirects never change after the first rules.
    KeepsRules,
    /// Queries are always answered from the first catalog.
    KeepsAnswers,
    /// A server's report that requests drain is ignored.
    WishUnheard,
    /// A server that recovers gets its full share at once.
    StartsAtOnce,
}

impl Mutation {
    pub const ALL: &[Mutation] = &[
        Mutation::KeepsRefused,
        Mutation::BelievesOrders,
        Mutation::LeaseHoldsAgain,
        Mutation::LeaseEndless,
        Mutation::DrainUnheard,
        Mutation::AdoptsNothing,
        Mutation::FailureUntold,
        Mutation::SweepsAll,
        Mutation::SweepsNothing,
        Mutation::SameLife,
        Mutation::LateClock,
        Mutation::ShowsHalf,
        Mutation::KeepsNone,
        Mutation::BelievesStrangers,
        Mutation::RoutesIgnored,
        Mutation::ClockUnheard,
        Mutation::SleepsOn,
        Mutation::ForgetsMembers,
        Mutation::KeepsRules,
        Mutation::KeepsAnswers,
        Mutation::WishUnheard,
        Mutation::StartsAtOnce,
    ];
}
