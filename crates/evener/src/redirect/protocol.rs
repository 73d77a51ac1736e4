//! Checks members' messages by their credentials, and answers them: the HTTP side of the group
//! protocol (`docs/how-it-works/server-groups.md`). The control loop calls this module, so messages
//! are handled one at a time.

use std::net::IpAddr;

use evener_core::farm::group::{
    Group, Joiner, MemberRefusal, MemberSnapshot, Members, MessageOrigin, TokenThrottle,
};
use evener_core::net::http::{Response, Url};
use evener_core::node::group::{GroupMessage, MessageError, Verb};
use evener_core::pool::ClockReading;
use rustls::pki_types::CertificateDer;
use serde::Serialize;

use crate::runtime::group_tokens::{Grant, GrantedMembers, GroupTokens, TokenScope};

/// Media type of a listing.
pub(crate) const JSON: &str = "application/json";

/// Sender of a message, with the credentials to check.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MessageSender<'a> {
    /// A host on the network.
    Stranger {
        from: IpAddr,
        /// Value of the `Authorization` field.
        authorization: Option<&'a str>,
        /// Certificate signed by the group's authority.
        certificate: Option<&'a CertificateDer<'static>>,
    },
    /// An operator, who may change the farm anyway.
    Operator,
}

impl MessageSender<'_> {
    fn address(&self) -> Option<IpAddr> {
        match self {
            MessageSender::Stranger { from, .. } => Some(*from),
            MessageSender::Operator => None,
        }
    }
}

/// State from which a message is answered.
pub(crate) struct GroupContext<'g> {
    pub(crate) now: ClockReading,
    pub(crate) group: &'g Group,
    pub(crate) members: &'g mut Members,
    /// `None` if the file has no tokens.
    pub(crate) tokens: Option<&'g GroupTokens>,
    pub(crate) throttle: &'g mut TokenThrottle,
    /// True if members may use certificates.
    pub(crate) certifies: bool,
}

/// Reason of a refusal.
#[derive(Debug, thiserror::Error)]
enum DenialReason {
    #[error("authentication required: send a token of this group as `Authorization: Bearer TOKEN`")]
    NoCredential,
    #[error("authentication required: use TLS with a client certificate signed by this group's authority")]
    Uncertified,
    #[error("the token is not one of this group")]
    Unknown,
    #[error("too many wrong tokens from this network: retry in a second")]
    Throttled,
    #[error("the credential is not valid for {0}")]
    NotFor(Url),
    #[error(
        "the credential does not permit {0}: `paths`, `hosts` and `weight` on the token's line set the permissions, and the same keys in [service.group] those of certificates and `insecure`"
    )]
    Claim(String),
    #[error("a control URL must be on the member's host or be permitted by the credential: {0} is neither")]
    Control(Url),
    #[error("this group accepts no members: set token_file or client_ca in its [service.group]")]
    Closed,
    #[error("LOAD-QUERY is for members, and this is the director")]
    Director,
    #[error("unknown method: a group answers GROUP-ADD, GROUP-EXIT, GROUP-QUERY and LOAD-INFORM")]
    Verb,
    #[error("{0}")]
    Malformed(#[from] MessageError),
    #[error("{0}")]
    Refused(#[from] MemberRefusal),
}

impl DenialReason {
    fn status(&self) -> u16 {
        match self {
            DenialReason::NoCredential | DenialReason::Uncertified | DenialReason::Unknown => 401,
            DenialReason::NotFor(_)
            | DenialReason::Claim(_)
            | DenialReason::Control(_)
            | DenialReason::Closed => 403,
            DenialReason::Director => 405,
            DenialReason::Throttled => 429,
            DenialReason::Verb => 501,
            DenialReason::Malformed(malformed) => malformed.status(),
            DenialReason::Refused(refused) => refused.status(),
        }
    }
}

/// A group in the response to a client that may know its members.
#[derive(Debug, Serialize)]
struct Listing<'g> {
    group: &'g str,
    policy: &'static str,
    members: Vec<MemberEntry>,
}

#[derive(Debug, Serialize)]
struct MemberEntry {
    name: String,
    url: String,
    state: &'static str,
    weight: u16,
    effective_weight: f64,
    load: Option<f64>,
    age_seconds: Option<f64>,
    dispatched: u64,
    anonymous: bool,
    control: Option<String>,
    paths: Vec<String>,
    hosts: Vec<String>,
    listed: bool,
    cause: String,
}

impl MemberEntry {
    fn of(member: MemberSnapshot) -> MemberEntry {
        let joiner = member.joiner;
        MemberEntry {
            name: member.name,
            url: joiner.url.to_string(),
            state: member.state.name(),
            weight: joiner.weight,
            effective_weight: f64::from(joiner.weight) * as_f64(member.weight_percent) / 100.0,
            load: member.reported.map(|load| as_f64(load) / 1_000.0),
            age_seconds: member.age_ms.map(|age_ms| as_f64(age_ms) / 1_000.0),
            dispatched: member.dispatched,
            anonymous: joiner.anonymous,
            control: joiner.control.map(|control| control.to_string()),
            paths: joiner.paths.iter().map(ToString::to_string).collect(),
            hosts: joiner.hosts.iter().map(ToString::to_string).collect(),
            listed: member.is_listed,
            cause: member.cause,
        }
    }
}

/// Loads and ages are far too small to lose precision.
#[expect(clippy::cast_precision_loss)]
fn as_f64(number: u64) -> f64 {
    number as f64
}

impl GroupContext<'_> {
    /// Answers a message received over HTTP.
    ///
    /// # Errors
    /// The response to a refused message.
    pub(crate) fn answer(
        &mut self,
        sender: MessageSender<'_>,
        verb: &str,
        body: &[u8],
    ) -> Result<Response, Response> {
        let judged = Verb::of(verb).ok_or(DenialReason::Verb).and_then(|verb| {
            // Bodies of unauthenticated senders are not parsed.
            let speaks = self.judge(sender, verb)?;
            self.apply_message(sender.address(), &speaks, GroupMessage::read(verb, body)?)
        });
        judged.map_err(|denied| denial(&denied))
    }

    /// Answers a message that is already parsed.
    ///
    /// # Errors
    /// The response to a refused message.
    pub(crate) fn answer_read(
        &mut self,
        sender: MessageSender<'_>,
        message: GroupMessage,
    ) -> Result<Response, Response> {
        let verb = match &message {
            GroupMessage::Add(_) => Verb::Add,
            GroupMessage::Exit(_) => Verb::Exit,
            GroupMessage::Query => Verb::Query,
            GroupMessage::Inform(_) => Verb::Inform,
            GroupMessage::LoadQuery => Verb::LoadQuery,
        };
        let taken = self.judge(sender, verb).and_then(|speaks| self.apply_message(None, &speaks, message));
        taken.map_err(|denied| denial(&denied))
    }

    /// Returns the members that the sender's credential is valid for.
    fn judge(&mut self, sender: MessageSender<'_>, verb: Verb) -> Result<TokenScope, DenialReason> {
        let MessageSender::Stranger { from, authorization, certificate } = sender else {
            return Ok(TokenScope::Operator);
        };
        // The certificate was verified during the TLS handshake.
        if let Some(certificate) = certificate.filter(|_| self.certifies && authorization.is_none()) {
            return Ok(self.group_grant(GrantedMembers::Named(certificate.clone())));
        }
        let Some(tokens) = self.tokens else {
            if self.certifies {
                return Err(DenialReason::Uncertified);
            }
            return match self.group.joining.insecure {
                true => Ok(self.group_grant(GrantedMembers::All)),
                // A group without tokens and certificates has no credentials: any client may query,
                // and anonymous members stay hidden. A query with a token is refused, since the
                // token may be a guess for another group.
                false if verb == Verb::Query => match authorization {
                    None => Ok(TokenScope::Grants(Vec::new())),
                    Some(_) => Err(DenialReason::Unknown),
                },
                false => Err(DenialReason::Closed),
            };
        };
        let shown = authorization.and_then(|line| line.split_once(' '));
        let token =
            shown.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer")).map(|(_, token)| token.trim());
        let token = token.ok_or(DenialReason::NoCredential)?;
        if !self.throttle.may_look_up(self.now.now_ms, from) {
            return Err(DenialReason::Throttled);
        }
        let speaks = tokens.of(token.as_bytes());
        self.throttle.looked_up(self.now.now_ms, from, speaks.is_some());
        speaks.ok_or(DenialReason::Unknown)
    }

    /// Returns the grant of the group's file, for members without a token.
    fn group_grant(&self, members: GrantedMembers) -> TokenScope {
        TokenScope::Grants(vec![Grant { members, claims: self.group.claims.clone() }])
    }

    fn apply_message(
        &mut self,
        from: Option<IpAddr>,
        speaks: &TokenScope,
        message: GroupMessage,
    ) -> Result<Response, DenialReason> {
        match message {
            GroupMessage::Add(joiners) => {
                joiners.iter().try_for_each(|joiner| may_join(speaks, joiner))?;
                let urls = joiners.iter().flat_map(|joiner| [Some(&joiner.url), joiner.control.as_ref()]);
                let hosts = speaks.named(urls.flatten().map(Url::host));
                let origin = MessageOrigin { from, hosts, is_operator: *speaks == TokenScope::Operator };
                let joined = self.members.join(self.now, &origin, &joiners)?;
                let status = if joined.new > 0 { 201 } else { 200 };
                Ok(Response::sentence(status, &format!("joined: {}, known: {}", joined.new, joined.known)))
            }
            GroupMessage::Exit(urls) => {
                if let Some(url) = urls.iter().find(|url| !speaks.is_for(url)) {
                    return Err(DenialReason::NotFor(url.clone()));
                }
                self.members.remove_members(self.now, &urls)?;
                Ok(Response::sentence(200, &format!("left: {}", urls.len())))
            }
            GroupMessage::Inform(report) => {
                let url = self.members.reporter_url(from, report.url.as_ref())?;
                if !speaks.is_for(url) {
                    return Err(DenialReason::NotFor(url.clone()));
                }
                self.members.inform(self.now, from, &report)?;
                Ok(Response::empty(204))
            }
            GroupMessage::Query => Ok(self.list(speaks)),
            GroupMessage::LoadQuery => Err(DenialReason::Director),
        }
    }

    fn list(&self, speaks: &TokenScope) -> Response {
        // A client with a credential is a member, and members may know each other.
        let knows_all = self.tokens.is_some() || self.certifies || speaks.is_for_all();
        let members = self.members.snapshot(self.now).into_iter();
        let members =
            members.filter(|member| knows_all || !member.joiner.anonymous).map(MemberEntry::of).collect();
        let listing = Listing { group: &self.group.name, policy: self.group.policy.name, members };
        match serde_json::to_string(&listing) {
            Ok(body) => Response::of(200, JSON, body + "\n"),
            Err(error) => Response::sentence(500, &format!("the members can't be written: {error}")),
        }
    }
}

/// Checks that a token allows a member's URL and claims.
/// Load queries go to the member's own host, or to another host that the token allows. So a
/// director can't be made to query arbitrary hosts.
fn may_join(speaks: &TokenScope, joiner: &Joiner) -> Result<(), DenialReason> {
    if !speaks.is_for(&joiner.url) {
        return Err(DenialReason::NotFor(joiner.url.clone()));
    }
    if let Some(claim) = speaks.excess(joiner) {
        return Err(DenialReason::Claim(claim));
    }
    match &joiner.control {
        Some(control) if control.host() != joiner.url.host() && !speaks.is_for(control) => {
            Err(DenialReason::Control(control.clone()))
        }
        _ => Ok(()),
    }
}

fn denial(denied: &DenialReason) -> Response {
    Response::sentence(denied.status(), &denied.to_string())
}
