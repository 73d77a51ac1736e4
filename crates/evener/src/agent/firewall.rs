//! Evaluates the rules of this host's firewall (nftables) for one kind of packet: a client's first
//! segment. Unsupported rules make the result unknown.

use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use evener_core::net::Protocol;
use evener_core::net::prefix::Prefix;
use serde_json::Value;

/// Timeout of `nft`, and maximum size of its output in bytes.
const PATIENCE: Duration = Duration::from_secs(2);
const RULES_BYTES: u64 = 8 << 20;
/// Maximum depth of nested chains, as in the kernel.
const DEPTH: usize = 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    /// Source address. `None`: a client that no rule names.
    pub(super) from: Option<IpAddr>,
    pub(super) to: SocketAddr,
    pub(super) protocol: Protocol,
}

/// Result of the evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Accepted,
    /// Dropped or rejected, with the table and chain in words.
    Dropped(String),
    /// An unsupported rule decides.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tri {
    Yes,
    No,
    Maybe,
}

impl Tri {
    fn of(is: bool) -> Tri {
        if is { Tri::Yes } else { Tri::No }
    }

    fn not(self) -> Tri {
        match self {
            Tri::Yes => Tri::No,
            Tri::No => Tri::Yes,
            Tri::Maybe => Tri::Maybe,
        }
    }

    fn and(self, other: Tri) -> Tri {
        match (self, other) {
            (Tri::No, _) | (_, Tri::No) => Tri::No,
            (Tri::Yes, Tri::Yes) => Tri::Yes,
            _ => Tri::Maybe,
        }
    }

    fn or(self, other: Tri) -> Tri {
        self.not().and(other.not()).not()
    }
}

/// All rules, as printed by `nft --json list ruleset`.
pub(super) struct Firewall {
    objects: Vec<Value>,
}

impl Firewall {
    /// Reads the rules in force.
    ///
    /// # Errors
    /// Why the rules can't be read, as a part of a sentence.
    pub(super) fn read() -> Result<Firewall, String> {
        // Rules of iptables-legacy, which nft doesn't list.
        let legacy = fs::read_to_string("/proc/net/ip_tables_names").unwrap_or_default();
        if legacy.lines().any(|table| table == "filter") {
            return Err("there are rules of iptables-legacy: look at `iptables-legacy -S`".to_owned());
        }
        let text = list().map_err(|error| format!("`nft --json list ruleset` fails: {error}"))?;
        Firewall::parse(&text).ok_or_else(|| "`nft --json list ruleset` prints no rules".to_owned())
    }

    fn parse(text: &str) -> Option<Firewall> {
        let mut whole: Value = serde_json::from_str(text).ok()?;
        let objects = whole.get_mut("nftables")?.as_array_mut()?;
        Some(Firewall { objects: std::mem::take(objects) })
    }

    /// Evaluates the chains of incoming packets, in the order of their priorities.
    pub(super) fn judge(&self, packet: &Packet) -> Verdict {
        let is_v4 = packet.to.is_ipv4();
        let hooks = ["prerouting", "input"];
        let mut chains: Vec<(usize, i64, &Value)> = self
            .all("chain")
            .filter(|chain| text(chain, "type") == Some("filter") && has_family(chain, is_v4))
            .filter_map(|chain| {
                let hook = hooks.iter().position(|hook| text(chain, "hook") == Some(hook))?;
                Some((hook, chain.get("prio")?.as_i64()?, chain))
            })
            .collect();
        chains.sort_by_key(|(hook, priority, _)| (*hook, *priority));
        let mut may_drop = false;
        for (.., chain) in chains {
            let mut walk = Walk { firewall: self, packet, may_accept: false, may_drop: false };
            let verdict = walk.chain(chain, 0);
            let is_dropped = match verdict {
                Some(Step::Accept) => None,
                Some(Step::Drop(place)) => Some(place),
                Some(Step::Return) | None => (text(chain, "policy") == Some("drop"))
                    .then(|| format!("the policy of chain {}", name(chain))),
            };
            match is_dropped {
                Some(_) if walk.may_accept => return Verdict::Unknown,
                Some(place) => return Verdict::Dropped(place),
                None => may_drop |= walk.may_drop,
            }
        }
        if may_drop { Verdict::Unknown } else { Verdict::Accepted }
    }

    fn all<'f>(&'f self, kind: &'f str) -> impl Iterator<Item = &'f Value> {
        self.objects.iter().filter_map(move |object| object.get(kind))
    }
}

/// Result of a chain.
enum Step {
    Accept,
    Drop(String),
    Return,
}

struct Walk<'f> {
    firewall: &'f Firewall,
    packet: &'f Packet,
    /// True if an unsupported rule may have accepted or dropped the packet earlier.
    may_accept: bool,
    may_drop: bool,
}

impl Walk<'_> {
    fn chain(&mut self, chain: &Value, depth: usize) -> Option<Step> {
        if depth > DEPTH {
            (self.may_accept, self.may_drop) = (true, true);
            return None;
        }
        let of = |object: &Value, key: &str| text(object, key).map(str::to_owned);
        let place = (of(chain, "family"), of(chain, "table"), of(chain, "name"));
        let rules: Vec<&Value> = self
            .firewall
            .all("rule")
            .filter(|rule| (of(rule, "family"), of(rule, "table"), of(rule, "chain")) == place)
            .collect();
        for rule in rules {
            match self.rule(chain, rule, depth) {
                Some(Step::Return) => return None,
                Some(end) => return Some(end),
                None => {}
            }
        }
        None
    }

    fn rule(&mut self, chain: &Value, rule: &Value, depth: usize) -> Option<Step> {
        let mut matches = Tri::Yes;
        for expression in rule.get("expr").and_then(Value::as_array)? {
            let (kind, of) = expression.as_object()?.iter().next()?;
            match kind.as_str() {
                "match" => matches = matches.and(self.matches(chain, of)),
                "counter" | "log" | "comment" | "limit" | "quota" | "notrack" | "mangle" | "meter"
                | "set" => {}
                "vmap" => {
                    let found = self.verdict_of_map(chain, of);
                    if let Some(verdict) = found {
                        return self.decided(chain, rule, verdict.0, verdict.1, matches, depth);
                    }
                }
                "accept" | "drop" | "reject" | "jump" | "goto" | "return" | "queue" => {
                    return self.decided(chain, rule, kind, of, matches, depth);
                }
                // Unsupported expressions, for example matches of iptables' own modules.
                _ => matches = matches.and(Tri::Maybe),
            }
            if matches == Tri::No {
                return None;
            }
        }
        None
    }

    /// Applies the verdict of a rule that matches, or may match.
    fn decided(
        &mut self,
        chain: &Value,
        rule: &Value,
        kind: &str,
        of: &Value,
        matches: Tri,
        depth: usize,
    ) -> Option<Step> {
        match matches {
            Tri::No => return None,
            Tri::Maybe => {
                self.may_accept |= !matches!(kind, "drop" | "reject");
                self.may_drop |= kind != "accept";
                return None;
            }
            Tri::Yes => {}
        }
        match kind {
            "accept" => Some(Step::Accept),
            "drop" | "reject" => {
                let handle = rule.get("handle").and_then(Value::as_i64).unwrap_or_default();
                Some(Step::Drop(format!("rule {handle} of chain {}", name(chain))))
            }
            "return" => Some(Step::Return),
            "jump" | "goto" => {
                let target = text(of, "target")?;
                let is_it = |other: &&Value| {
                    text(other, "name") == Some(target)
                        && ["family", "table"].iter().all(|key| text(other, key) == text(chain, key))
                };
                let target = self.firewall.all("chain").find(is_it)?;
                let end = self.chain(target, depth + 1);
                // After `goto` the calling chain doesn't continue.
                if kind == "goto" { end.or(Some(Step::Return)) } else { end }
            }
            // Queued to a program, which decides.
            _ => {
                (self.may_accept, self.may_drop) = (true, true);
                None
            }
        }
    }

    /// Returns a verdict map's entry for the packet.
    fn verdict_of_map<'v>(&mut self, chain: &Value, map: &'v Value) -> Option<(&'v str, &'v Value)> {
        let key = map.get("key")?;
        let entries = map.get("data")?.get("set")?.as_array()?;
        for entry in entries {
            let (wanted, verdict) = (entry.get(0)?, entry.get(1)?);
            match self.is_in(chain, key, wanted) {
                Tri::Yes => return verdict.as_object()?.iter().next().map(|(kind, of)| (kind.as_str(), of)),
                Tri::Maybe => (self.may_accept, self.may_drop) = (true, true),
                Tri::No => {}
            }
        }
        None
    }

    fn matches(&self, chain: &Value, of: &Value) -> Tri {
        let (Some(left), Some(right)) = (of.get("left"), of.get("right")) else { return Tri::Maybe };
        let is = self.is_in(chain, left, right);
        match text(of, "op") {
            Some("==" | "in") => is,
            Some("!=") => is.not(),
            _ => Tri::Maybe,
        }
    }

    /// True if the packet's value equals `right`, or an element of `right`.
    fn is_in(&self, chain: &Value, left: &Value, right: &Value) -> Tri {
        if let Some(set) = right.get("set").or(right.is_array().then_some(right)).and_then(Value::as_array) {
            return set.iter().fold(Tri::No, |is, one| is.or(self.is_in(chain, left, one)));
        }
        if let Some(name) = right.as_str().and_then(|text| text.strip_prefix('@')) {
            let is_it = |set: &&Value| {
                text(set, "name") == Some(name)
                    && ["family", "table"].iter().all(|key| text(set, key) == text(chain, key))
            };
            let found = self.firewall.all("set").chain(self.firewall.all("map")).find(is_it);
            let elements = found.and_then(|set| set.get("elem")).and_then(Value::as_array);
            return elements.map_or(Tri::No, |all| {
                all.iter().fold(Tri::No, |is, one| is.or(self.is_in(chain, left, one)))
            });
        }
        let right = right.get("elem").and_then(|elem| elem.get("val")).unwrap_or(right);
        self.is_one(left, right)
    }

    fn is_one(&self, left: &Value, right: &Value) -> Tri {
        let payload = left.get("payload");
        let field = payload.and_then(|payload| Some((text(payload, "protocol")?, text(payload, "field")?)));
        let meta = left.get("meta").and_then(|meta| text(meta, "key"));
        let ct = left.get("ct").and_then(|ct| text(ct, "key"));
        let protocol = if self.packet.protocol == Protocol::Tcp { "tcp" } else { "udp" };
        let v4 = self.packet.to.is_ipv4();
        match (field, meta, ct) {
            (Some(("ip" | "ip6", "saddr")), ..) => match self.packet.from {
                Some(from) => contains(right, from),
                None => of_strangers(right),
            },
            (Some(("ip" | "ip6", "daddr")), ..) => contains(right, self.packet.to.ip()),
            (Some(("ip", "protocol") | ("ip6", "nexthdr")), ..) | (_, Some("l4proto"), _) => {
                is_text(right, &[protocol, if protocol == "tcp" { "6" } else { "17" }])
            }
            (Some((of, "dport")), ..) if of == protocol || of == "th" => port(right, self.packet.to.port()),
            (Some((of, "dport" | "sport")), ..) if of != "th" && of != protocol => Tri::No,
            (Some(("icmp" | "icmpv6", _)), ..) => Tri::No,
            // The packet is the first segment of a connection.
            (Some(("tcp", "flags")), ..) => Tri::Maybe,
            (_, Some("nfproto"), _) => is_text(right, if v4 { &["ipv4"] } else { &["ipv6"] }),
            (_, Some("iif" | "iifname"), _) => match right.as_str() {
                Some("lo") => Tri::No,
                _ => Tri::Maybe,
            },
            (_, Some("pkttype"), _) => is_text(right, &["host", "unicast"]),
            (_, _, Some("state")) => is_text(right, &["new"]),
            (_, _, Some("status")) => Tri::No,
            _ => Tri::Maybe,
        }
    }
}

fn text<'v>(object: &'v Value, key: &str) -> Option<&'v str> {
    object.get(key)?.as_str()
}

/// Name of a chain, as `nft` prints it.
fn name(chain: &Value) -> String {
    let part = |key| text(chain, key).unwrap_or_default();
    format!("{} {} {}", part("family"), part("table"), part("name"))
}

fn has_family(chain: &Value, is_v4: bool) -> bool {
    match text(chain, "family") {
        Some("inet") => true,
        Some("ip") => is_v4,
        Some("ip6") => !is_v4,
        _ => false,
    }
}

fn is_text(right: &Value, any: &[&str]) -> Tri {
    match right {
        Value::String(text) => Tri::of(any.contains(&text.as_str())),
        Value::Number(number) => Tri::of(any.contains(&number.to_string().as_str())),
        _ => Tri::Maybe,
    }
}

fn port(right: &Value, port: u16) -> Tri {
    let is = |value: &Value| value.as_u64().map(|number| number == u64::from(port));
    if let Some([low, high]) = right.get("range").and_then(Value::as_array).map(Vec::as_slice) {
        let range = low.as_u64().zip(high.as_u64());
        return range.map_or(Tri::Maybe, |(low, high)| Tri::of((low..=high).contains(&u64::from(port))));
    }
    // Port names (services(5)) are not resolved.
    is(right).map_or(Tri::Maybe, Tri::of)
}

/// Parses a prefix from an address, or from `{"prefix": {"addr": ..., "len": ...}}`.
fn prefix(right: &Value) -> Option<Prefix> {
    match right.get("prefix") {
        Some(prefix) => format!("{}/{}", text(prefix, "addr")?, prefix.get("len")?.as_u64()?).parse().ok(),
        None => {
            let address: IpAddr = right.as_str()?.parse().ok()?;
            format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 }).parse().ok()
        }
    }
}

fn contains(right: &Value, address: IpAddr) -> Tri {
    if let Some([low, high]) = right.get("range").and_then(Value::as_array).map(Vec::as_slice) {
        let end = |value: &Value| value.as_str().and_then(|text| text.parse::<IpAddr>().ok());
        return end(low).zip(end(high)).map_or(Tri::Maybe, |(low, high)| {
            Tri::of(low.is_ipv4() == address.is_ipv4() && (low..=high).contains(&address))
        });
    }
    prefix(right).map_or(Tri::Maybe, |prefix| Tri::of(prefix.contains(address)))
}

/// True if the set contains clients that no rule names: only if it contains all addresses.
fn of_strangers(right: &Value) -> Tri {
    match right.get("prefix").and_then(|prefix| prefix.get("len")).and_then(Value::as_u64) {
        Some(0) => Tri::Yes,
        Some(1..=7) => Tri::Maybe,
        _ if right.get("range").is_some() => Tri::Maybe,
        _ => Tri::No,
    }
}

/// Returns the output of `nft`, which may hang on a broken host.
fn list() -> io::Result<String> {
    use std::io::Read;
    let mut child = Command::new("nft")
        .args(["--json", "list", "ruleset"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let Some(output) = child.stdout.take() else { return Err(io::ErrorKind::BrokenPipe.into()) };
    let reader = thread::spawn(move || {
        let mut text = String::new();
        output.take(RULES_BYTES).read_to_string(&mut text).map(|_| text)
    });
    let until = Instant::now() + PATIENCE;
    while child.try_wait()?.is_none() {
        if Instant::now() > until {
            child.kill()?;
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    match (child.wait()?.success(), reader.join()) {
        (true, Ok(text)) => text,
        _ => Err(io::Error::other("it ends with an error; is this root?")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Builds a ruleset as `nft` prints it, with a chain of rules in JSON.
    fn firewall(policy: &str, rules: &[&str]) -> Firewall {
        let rules: String = rules
            .iter()
            .enumerate()
            .map(|(at, rule)| {
                format!(
                    ",{{\"rule\":{{\"family\":\"inet\",\"table\":\"f\",\"chain\":\"input\",\"handle\":{},\"expr\":[{rule}]}}}}",
                    at + 4
                )
            })
            .collect();
        let chain = |name: &str, more: &str| {
            format!(
                ",{{\"chain\":{{\"family\":\"inet\",\"table\":\"f\",\"name\":\"{name}\",\"handle\":1{more}}}}}"
            )
        };
        let input = format!(",\"type\":\"filter\",\"hook\":\"input\",\"prio\":0,\"policy\":\"{policy}\"");
        let set = ",{\"set\":{\"family\":\"inet\",\"table\":\"f\",\"name\":\"friends\",\"elem\":[\"192.0.2.2\",{\"prefix\":{\"addr\":\"198.51.100.0\",\"len\":24}}]}}";
        let text = format!(
            "{{\"nftables\":[{{\"metainfo\":{{}}}}{set}{}{}{rules},{}]}}",
            chain("input", &input),
            chain("web", ""),
            "{\"rule\":{\"family\":\"inet\",\"table\":\"f\",\"chain\":\"web\",\"handle\":9,\"expr\":[{\"drop\":null}]}}"
        );
        Firewall::parse(&text).unwrap()
    }

    fn verdicts(firewall: &Firewall) -> (Verdict, Verdict) {
        let packet = |from: Option<&str>| Packet {
            from: from.map(|from| from.parse().unwrap()),
            to: "192.0.2.100:80".parse().unwrap(),
            protocol: Protocol::Tcp,
        };
        (firewall.judge(&packet(None)), firewall.judge(&packet(Some("192.0.2.2"))))
    }

    const DPORT: &str =
        r#"{"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":80}}"#;
    const DROP: &str = r#"{"drop":null}"#;
    const ACCEPT: &str = r#"{"accept":null}"#;

    fn saddr(op: &str, right: &str) -> String {
        format!(
            r#"{{"match":{{"op":"{op}","left":{{"payload":{{"protocol":"ip","field":"saddr"}}}},"right":{right}}}}}"#
        )
    }

    fn dropped(rule: u32) -> Verdict {
        Verdict::Dropped(format!("rule {rule} of chain inet f input"))
    }

    #[test]
    fn port_that_is_dropped_for_all_is_found() {
        let (clients, director) =
            verdicts(&firewall("accept", &[&format!("{DPORT},{{\"counter\":{{}}}},{DROP}")]));
        assert_eq!((clients, director), (dropped(4), dropped(4)));
        let other = DPORT.replace("80", "{\"set\":[22,{\"range\":[443,500]}]}");
        assert_eq!(verdicts(&firewall("accept", &[&format!("{other},{DROP}")])).0, Verdict::Accepted);
        let policy = verdicts(&firewall("drop", &[&format!("{other},{ACCEPT}")])).0;
        assert_eq!(policy, Verdict::Dropped("the policy of chain inet f input".to_owned()));
    }

    #[test]
    fn firewall_that_admits_the_director_alone_is_found() {
        for rules in [
            vec![format!("{},{ACCEPT}", saddr("==", "\"192.0.2.2\"")), format!("{DPORT},{DROP}")],
            vec!["{\"counter\":{}}".to_owned(), format!("{},{DPORT},{DROP}", saddr("!=", "\"192.0.2.2\""))],
            vec![format!("{},{ACCEPT}", saddr("==", "\"@friends\"")), DROP.to_owned()],
            vec![
                format!("{},{{\"return\":null}}", saddr("==", r#"{"range":["192.0.2.1","192.0.2.9"]}"#)),
                r#"{"jump":{"target":"web"}}"#.to_owned(),
            ],
        ] {
            let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
            let (clients, director) = verdicts(&firewall("accept", &rules));
            assert_eq!(director, Verdict::Accepted, "{rules:?}");
            assert!(matches!(clients, Verdict::Dropped(_) | Verdict::Unknown), "{rules:?}: {clients:?}");
        }
    }

    #[test]
    fn usual_rules_are_followed() {
        let state = r#"{"vmap":{"key":{"ct":{"key":"state"}},"data":{"set":[["established",{"accept":null}],["related",{"accept":null}],["invalid",{"drop":null}]]}}}"#;
        let lo = r#"{"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"lo"}},{"accept":null}"#;
        let new = r#"{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":["established","related"]}},{"accept":null}"#;
        let open = format!("{DPORT},{ACCEPT}");
        assert_eq!(verdicts(&firewall("drop", &[state, lo, new, &open])).0, Verdict::Accepted);
        let (clients, _) = verdicts(&firewall("drop", &[state, lo, new]));
        assert!(matches!(clients, Verdict::Dropped(_)), "{clients:?}");
    }

    #[test]
    fn rules_that_cannot_be_decided_are_not_guessed() {
        for unknown in [
            r#"{"xt":{"type":"match","name":"string"}},{"drop":null}"#,
            r#"{"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"eth7"}},{"drop":null}"#,
            r#"{"queue":{"num":0}}"#,
        ] {
            let verdict = verdicts(&firewall("accept", &[unknown])).0;
            assert_eq!(verdict, Verdict::Unknown, "{unknown}");
        }
        let harmless = r#"{"match":{"op":"==","left":{"meta":{"key":"mark"}},"right":7}},{"accept":null}"#;
        assert_eq!(verdicts(&firewall("accept", &[harmless])).0, Verdict::Accepted);
        assert!(Firewall::parse("[]").is_none() && Firewall::parse("{}").is_none());
    }
}
