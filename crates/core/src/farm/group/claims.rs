//! Claims that a credential allows a member to make. A member claims paths and hosts that it alone
//! serves (its own ones), and a weight.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::joiner::{Joiner, or_any};
use crate::path::content::{HostPattern, PathPattern};

/// Claims that a credential allows. The default allows no own path or host, and a weight of at most
/// 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Paths that must cover a member's own paths.
    pub paths: Vec<PathPattern>,
    /// Hosts that must cover a member's own hosts. If `paths` is not empty either, a member may
    /// claim only these paths of these hosts.
    pub hosts: Vec<HostPattern>,
    /// Maximum weight that a member may request.
    pub weight_max: u16,
}

impl Default for Claims {
    fn default() -> Claims {
        Claims { paths: Vec::new(), hosts: Vec::new(), weight_max: 1 }
    }
}

impl Claims {
    /// Returns the first claim of a member that these claims do not cover, as the member writes it.
    pub fn excess(&self, member: &Joiner) -> Option<String> {
        if member.weight > self.weight_max {
            return Some(format!("weight={}", member.weight));
        }
        let beyond = member.pairs().into_iter().find(|(host, path)| !self.allows(*host, *path));
        beyond.map(|pair| match pair {
            (Some(host), Some(path)) => format!("host={host} path={path}"),
            (Some(host), None) => format!("host={host}"),
            (None, path) => format!("path={}", path.map(ToString::to_string).unwrap_or_default()),
        })
    }

    fn allows(&self, host: Option<&HostPattern>, path: Option<&PathPattern>) -> bool {
        let allows_host =
            self.hosts.is_empty() || host.is_some_and(|host| self.hosts.iter().any(|own| own.covers(host)));
        let allows_path =
            self.paths.is_empty() || path.is_some_and(|path| self.paths.iter().any(|own| own.covers(path)));
        allows_host && allows_path && !(self.hosts.is_empty() && self.paths.is_empty())
    }

    /// Restricts a member's own paths, hosts and weight to the claims that at least one of these
    /// credentials allows.
    pub fn cut(allowed: &[&Claims], member: &mut Joiner) {
        let most = allowed.iter().map(|claims| claims.weight_max).max().unwrap_or(1);
        member.weight = member.weight.min(most);
        let allows = |host: Option<&HostPattern>, path: Option<&PathPattern>| {
            allowed.iter().any(|claims| claims.allows(host, path))
        };
        if member.pairs().into_iter().all(|(host, path)| allows(host, path)) {
            return;
        }
        // A member claims each path of each host. A path stays if it is allowed for all hosts. If
        // no path stays, a host stays if it is allowed with all paths.
        let hosts = or_any(&member.hosts);
        let of_all_hosts = |path: &&PathPattern| hosts.iter().all(|host| allows(*host, Some(path)));
        let kept: Vec<PathPattern> = member.paths.iter().filter(of_all_hosts).cloned().collect();
        if !kept.is_empty() {
            member.paths = kept;
            return;
        }
        let paths = or_any(&member.paths);
        let with_all_paths = |host: &&HostPattern| paths.iter().all(|path| allows(Some(host), *path));
        member.hosts = member.hosts.iter().filter(with_all_paths).cloned().collect();
        if member.hosts.is_empty() {
            member.paths.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    fn paths(texts: &[&str]) -> Vec<PathPattern> {
        texts.iter().map(|text| PathPattern::parse(text).unwrap()).collect()
    }

    fn cut(claims: &Claims, line: &str) -> String {
        let mut joiner = Joiner::parse(line).unwrap();
        Claims::cut(&[claims], &mut joiner);
        joiner.to_string()
    }

    #[test]
    fn cut_leaves_what_is_allowed_in_all_combinations() {
        let both = Claims {
            paths: paths(&["/a/*"]),
            hosts: vec![HostPattern::parse("h.example").unwrap()],
            weight_max: 3,
        };
        for (line, left) in [
            ("http://m host=h.example path=/a/b weight=3", "http://m weight=3 path=/a/b host=h.example"),
            (
                "http://m host=h.example path=/a/b path=/c weight=9",
                "http://m weight=3 path=/a/b host=h.example",
            ),
            ("http://m host=h.example host=i path=/a/b", "http://m path=/a/b host=h.example"),
            ("http://m host=h.example", "http://m"),
            ("http://m path=/a/b", "http://m"),
            ("http://m host=i host=j path=/a/b path=/c", "http://m"),
        ] {
            assert_eq!(cut(&both, line), left, "{line}");
            assert_eq!(both.excess(&Joiner::parse(left).unwrap()), None, "{left}");
        }
        assert_eq!(cut(&Claims::default(), "http://m weight=0 path=/ host=h"), "http://m weight=0");
    }

    proptest! {
        #[test]
        fn covered_path_matches_nothing_that_the_wider_one_does_not(
            wide in "/[ab*?/]{0,6}", narrow in "/[ab*?/]{0,6}", path in "/[ab/]{0,8}"
        ) {
            if let (Ok(wide), Ok(narrow)) = (PathPattern::parse(&wide), PathPattern::parse(&narrow)) {
                let is_inside = !narrow.matches(path.as_bytes()) || wide.matches(path.as_bytes());
                prop_assert!(!wide.covers(&narrow) || is_inside);
                prop_assert!(wide.covers(&wide));
            }
        }

        #[test]
        fn cut_member_has_no_excess(line in "http://m( path=/[ab]{1,2}[*]?| host=[ab]| weight=[0-9]){0,5}", own in "/[ab][*]?") {
            let claims = Claims { paths: paths(&[&own]), ..Claims::default() };
            if let Ok(mut joiner) = Joiner::parse(&line) {
                Claims::cut(&[&claims], &mut joiner);
                prop_assert_eq!(claims.excess(&joiner), None);
            }
        }
    }
}
