//! Parsers of single values: each takes a TOML value and returns the parsed value, or a complaint
//! with a remedy.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use evener_core::farm::Announce;
use evener_core::pool::policy::{self, Consumer, Policy};
use toml::de::DeValue;

use super::LogTarget;
use super::defaults;
use super::section::{Complaint, nearest_or_all};
use crate::runtime::shown::is_shown;

/// Maximum length of an interface's name in bytes: IFNAMSIZ without the NUL.
const INTERFACE_BYTES: usize = 15;

/// Parses a string of at least one printable character.
pub(super) fn text(value: &DeValue<'_>) -> Result<String, Complaint> {
    let DeValue::String(text) = value else {
        return Complaint::wrong_type(value, "a string", "write it in quotes");
    };
    if text.is_empty() {
        return Complaint::new("is empty", "write something between the quotes, or leave the key out");
    }
    if let Some(hidden) = text.chars().find(|c| !is_shown(*c)) {
        return Complaint::new(
            format!("has a character that isn't shown, {}, in {text:?}", hidden.escape_unicode()),
            "write printable characters only",
        );
    }
    Ok(text.clone().into_owned())
}

/// Parses a printable string without spaces.
pub(super) fn word(value: &DeValue<'_>) -> Result<String, Complaint> {
    let text = text(value)?;
    if text.chars().any(char::is_whitespace) {
        return Complaint::new(format!("has a space in {text:?}"), "write it without spaces");
    }
    Ok(text)
}

/// Parses the name of a service or server. The command line writes `SERVICE/SERVER`, so names
/// contain no slash.
pub(super) fn name(value: &DeValue<'_>) -> Result<String, Complaint> {
    let name = word(value)?;
    if matches!(name.as_str(), "." | "..") {
        let help = "a URL of the API can't name it: use another name";
        return Complaint::new(format!("is {name:?}"), help);
    }
    if name.contains('/') {
        return Complaint::new(format!("has a slash in {name:?}"), "use another character, such as a dash");
    }
    if name.chars().count() > defaults::NAME_CHARS {
        return Complaint::new("is too long", format!("use at most {} characters", defaults::NAME_CHARS));
    }
    Ok(name)
}

/// Parses `true` or `false`.
pub(super) fn flag(value: &DeValue<'_>) -> Result<bool, Complaint> {
    match value {
        DeValue::Boolean(flag) => Ok(*flag),
        other => Complaint::wrong_type(other, "true or false", "write true or false, without quotes"),
    }
}

/// Values of `announce` for addresses that another program moves between hosts.
pub(super) const ANNOUNCERS: [&str; 2] = ["host", "route"];

/// Parses who announces a service's addresses: `true`, `false`, `"host"` or `"route"`.
pub(super) fn announce(value: &DeValue<'_>) -> Result<Announce, Complaint> {
    let help = "write true, false, \"host\" or \"route\"";
    match value {
        DeValue::Boolean(true) => Ok(Announce::Director),
        DeValue::Boolean(false) => Ok(Announce::Never),
        DeValue::String(word) if word == "host" => Ok(Announce::Host),
        DeValue::String(word) if word == "route" => Ok(Announce::Route),
        DeValue::String(word) => Complaint::new(format!("is {word:?}"), help),
        other => Complaint::wrong_type(other, "true, false or a word", help),
    }
}

/// Parses a whole number within `range`.
pub(super) fn count<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&DeValue<'_>) -> Result<T, Complaint> {
    move |value| {
        let (least, most) = (range.start(), range.end());
        let help = format!("write a whole number from {least} to {most}");
        let DeValue::Integer(digits) = value else {
            return Complaint::wrong_type(value, "a whole number", &help);
        };
        let number = u64::from_str_radix(digits.as_str(), digits.radix()).ok().filter(|n| range.contains(n));
        match number.and_then(|number| T::try_from(number).ok()) {
            Some(number) => Ok(number),
            None => Complaint::new(format!("is {digits}, out of range"), help),
        }
    }
}

/// Parses a number such as `1.5`, in percent.
pub(super) fn percent(range: RangeInclusive<u64>) -> impl Fn(&DeValue<'_>) -> Result<u64, Complaint> {
    move |value| {
        let (least, most) = (*range.start() as f64 / 100.0, *range.end() as f64 / 100.0);
        let help = format!("write a number from {least} to {most}, such as 1.5");
        let number = match value {
            DeValue::Float(number) => number.as_str().parse::<f64>().ok(),
            DeValue::Integer(digits) => digits.as_str().parse::<f64>().ok(),
            other => return Complaint::wrong_type(other, "a number", &help),
        };
        // NaN is in no range, and numbers in range have few digits.
        match number.filter(|number| (least..=most).contains(number)) {
            Some(number) => Ok((number * 100.0).round() as u64),
            None => Complaint::new("is out of range", help),
        }
    }
}

/// Parses a share such as `"50%"`, in percent.
pub(super) fn share(value: &DeValue<'_>) -> Result<u8, Complaint> {
    let help = "write a share in quotes, from \"0%\" to \"100%\"";
    let DeValue::String(text) = value else {
        return Complaint::wrong_type(value, "a share", help);
    };
    let percent = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
    match percent.filter(|percent| *percent <= 100) {
        Some(percent) => Ok(percent),
        None => Complaint::new(format!("is no share: {text:?}"), help),
    }
}

/// Parses a time such as `"500ms"`, in milliseconds.
pub(super) fn duration_ms(range: RangeInclusive<u64>) -> impl Fn(&DeValue<'_>) -> Result<u64, Complaint> {
    move |value| {
        let help = "write a number and its unit in quotes, such as \"500ms\", \"2s\" or \"5m\"";
        let text = match value {
            DeValue::String(text) => text,
            DeValue::Integer(n) => return Complaint::new(format!("is {n} without a unit"), help),
            other => return Complaint::wrong_type(other, "a time", help),
        };
        let Ok(duration) = humantime::parse_duration(text) else {
            return Complaint::new(format!("is not a time: {text:?}"), help);
        };
        match u64::try_from(duration.as_millis()).ok().filter(|ms| range.contains(ms)) {
            Some(ms) => Ok(ms),
            None => Complaint::new(
                format!("is {text}, out of range"),
                format!("write a time from {} to {}", written(*range.start()), written(*range.end())),
            ),
        }
    }
}

/// Formats milliseconds as in the file.
pub(super) fn written(ms: u64) -> String {
    humantime::format_duration(Duration::from_millis(ms)).to_string()
}

/// Parses a named value. `later` lists values that future versions will have.
pub(super) fn choice<T: Copy>(
    choices: &'static [(&'static str, T)],
    later: &'static [&'static str],
) -> impl Fn(&DeValue<'_>) -> Result<T, Complaint> {
    choice_of(choices, || names(choices), later)
}

/// Like [`choice`], with other names for hints: another reader handles some values before this one.
pub(super) fn choice_of<T: Copy>(
    choices: &'static [(&'static str, T)],
    names: impl Fn() -> Vec<&'static str>,
    later: &'static [&'static str],
) -> impl Fn(&DeValue<'_>) -> Result<T, Complaint> {
    move |value| {
        let word = match value {
            DeValue::String(word) => word.as_ref(),
            other => return Complaint::wrong_type(other, "a string", &format!("write {}", quoted(&names()))),
        };
        match choices.iter().find(|(name, _)| *name == word) {
            Some((_, choice)) => Ok(*choice),
            None if later.contains(&word) => not_in_this_version(word, &names()),
            None => Complaint::new(format!("is unknown: {word:?}"), nearest_or_all(word, &names())),
        }
    }
}

/// Returns the names of these choices.
pub(super) fn names<T>(choices: &[(&'static str, T)]) -> Vec<&'static str> {
    choices.iter().map(|(name, _)| *name).collect()
}

/// Returns the name of a choice.
pub(super) fn name_of<T: PartialEq>(choices: &[(&'static str, T)], choice: T) -> Option<&'static str> {
    choices.iter().find(|(_, named)| *named == choice).map(|(name, _)| *name)
}

/// Returns the names of all policies.
pub(super) fn policies() -> Vec<&'static str> {
    policy::POLICIES.iter().map(|policy| policy.name).collect()
}

/// Parses a policy that this consumer supports.
pub(super) fn policy(by: Consumer) -> impl Fn(&DeValue<'_>) -> Result<&'static Policy, Complaint> {
    let names: Vec<&str> = by.policies().map(|policy| policy.name).collect();
    move |value| {
        let word = match value {
            DeValue::String(word) => word.as_ref(),
            other => return Complaint::wrong_type(other, "a string", &format!("write {}", quoted(&names))),
        };
        if let Some(policy) = by.policies().find(|policy| policy.name == word) {
            return Ok(policy);
        }
        match policy::by_name(word).and_then(|policy| by.lacks(policy)) {
            Some(signal) => Complaint::new(
                format!("is {word:?}, which needs the {signal}, and {by} does not have that"),
                format!("possible here: {}", names.join(", ")),
            ),
            None => Complaint::new(format!("is unknown: {word:?}"), nearest_or_all(word, &names)),
        }
    }
}

fn not_in_this_version<T>(word: &str, names: &[&str]) -> Result<T, Complaint> {
    Complaint::new(
        format!("{word:?} is not in this version of Evener"),
        format!("this version has {}", quoted(names)),
    )
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" or ")
}

/// Parses the name of a network interface.
pub(super) fn interface(value: &DeValue<'_>) -> Result<String, Complaint> {
    let name = word(value)?;
    if name.len() > INTERFACE_BYTES || name.contains('/') {
        let help = "`ip link` lists the interfaces; leave the list out to have them found from the routes";
        return Complaint::new(format!("is not an interface: {name:?}"), help);
    }
    Ok(name)
}

/// Parses the admin address. `None` for `"none"`.
pub(super) fn listen(value: &DeValue<'_>) -> Result<Option<SocketAddr>, Complaint> {
    let text = text(value)?;
    if text == "none" {
        return Ok(None);
    }
    match text.parse() {
        Ok(address) => Ok(Some(address)),
        Err(_) => Complaint::new(
            format!("is not an address with port: {text:?}"),
            "write for example \"127.0.0.1:9180\", or \"none\" for no admin address",
        ),
    }
}

/// Parses a name of this host in requests, in lower case.
pub(super) fn host_name(value: &DeValue<'_>) -> Result<String, Complaint> {
    let name = word(value)?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if name.bytes().all(allowed) || name.parse::<IpAddr>().is_ok() {
        return Ok(name.trim_end_matches('.').to_ascii_lowercase());
    }
    Complaint::new(
        format!("is not a host's name: {name:?}"),
        "write it as clients do, without scheme and port, such as \"lb1.example.com\"",
    )
}

/// Parses the host of an HTTP request: a name or an address, with an optional port.
pub(super) fn host_field(value: &DeValue<'_>) -> Result<String, Complaint> {
    let text = word(value)?;
    let bare = text.split_once("://").map_or(text.as_str(), |(_, rest)| rest);
    let bare = bare.split(['/', '?', '#']).next().unwrap_or_default();
    match bare == text {
        true => Ok(text),
        false => Complaint::new(
            format!("is a URL or has a path: {text:?}"),
            format!(
                "write the host only, such as {:?}",
                if bare.is_empty() { "www.example.com" } else { bare }
            ),
        ),
    }
}

pub(super) fn path(value: &DeValue<'_>) -> Result<PathBuf, Complaint> {
    text(value).map(PathBuf::from)
}

/// Parses the destination of a log: a file, or `-` for standard output.
pub(super) fn log_target(value: &DeValue<'_>) -> Result<LogTarget, Complaint> {
    let text = text(value)?;
    if text == "-" {
        return Ok(LogTarget::Stdout);
    }
    if text.ends_with('/') {
        let help = format!("name a file in it, such as \"{text}access.log\"");
        return Complaint::new(format!("is a folder: {text:?}"), help);
    }
    Ok(LogTarget::File(text.into()))
}

/// Parses the target of an HTTP request in origin form (RFC 9112, section 3.2.1).
pub(super) fn request_target(value: &DeValue<'_>) -> Result<String, Complaint> {
    let target = word(value)?;
    if !target.starts_with('/') {
        return Complaint::new(
            format!("does not begin with a slash: {target:?}"),
            format!("write \"/{target}\""),
        );
    }
    Ok(target)
}

/// Parses an HTTP status code or a range: `200`, `"200"` or `"200-399"`.
pub(super) fn status(value: &DeValue<'_>) -> Result<(u16, u16), Complaint> {
    let help = "write codes from 100 to 599: 200, \"200-399\", or a list of such";
    let text = match value {
        DeValue::Integer(code) if code.radix() == 10 => code.as_str(),
        DeValue::String(text) => text,
        other => return Complaint::wrong_type(other, "a status code or a range of them", help),
    };
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    match (low.trim().parse(), high.trim().parse()) {
        (Ok(low), Ok(high))
            if low <= high && defaults::STATUS.contains(&low) && defaults::STATUS.contains(&high) =>
        {
            Ok((low, high))
        }
        _ => Complaint::new(format!("is not a status code or a range of them: {text:?}"), help),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_hidden_characters_and_are_no_dot_segments() {
        let read = |text: &str| name(&DeValue::String(text.to_owned().into()));
        assert_eq!(read("web1").ok().as_deref(), Some("web1"));
        assert_eq!(read("wéb.1").ok().as_deref(), Some("wéb.1"));
        for bad in [".", "..", "a/b", "a\u{202e}b", "a\u{200b}b", "\u{feff}a", "a\u{7}b", "a b", ""] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
