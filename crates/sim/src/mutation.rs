//! Defects that the farm's control plane has had, or came near to, put back: whoever looks for
//! broken promises must find each.
//!
//! They are put into what stands between a director and its host, so the director that is looked at
//! is that of the product.

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A change that was refused half-way stays in force, and the tables before it are reported.
    KeepsRefused,
    /// A refused change counts as done.
    BelievesOrders,
    /// A lease that has ended holds again when the clock of the data plane has wrapped.
    LeaseHoldsAgain,
    /// A lease doesn't end: the data plane of a dead daemon answers for addresses forever.
    LeaseEndless,
    /// A server that is drained takes new sessions.
    DrainUnheard,
    /// A daemon gives servers other numbers than the data plane has that runs already.
    AdoptsNothing,
    /// A probe that fails is forgotten.
    FailureUntold,
    /// Sessions of servers that stay go with those of servers that are gone.
    SweepsAll,
    /// Sessions of servers that are gone stay, and their numbers become others'.
    SweepsNothing,
    /// A host that begins anew says that it is the one from before.
    SameLife,
    /// A director is told a time that is already over.
    LateClock,
    /// A reload is shown before it is in force.
    ShowsHalf,
    /// When all servers fail at once none is kept, whatever the file says.
    KeepsNone,
    /// A datagram of another farm is taken for one of this farm's.
    BelievesStrangers,
    /// A client's target makes no difference to its server.
    RoutesIgnored,
    /// A clock that is set right is not heard of: keys of cookies go on by the wrong one.
    ClockUnheard,
    /// After a refusal nothing is done until something else happens.
    SleepsOn,
    /// A restart forgets the members of a group.
    ForgetsMembers,
    /// Clients of a group are sent on by what it knew first.
    KeepsRules,
    /// Queries are answered by what was known first.
    KeepsAnswers,
    /// A server's report that it wants nothing new is not heard.
    WishUnheard,
    /// A server that comes back has its whole share at once.
    StartsAtOnce,
}

impl Mutation {
    /// All of them.
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
