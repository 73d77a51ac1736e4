//! Answers directors' requests for the findings of this server's doctor: `GET /v1/findings`.
//!
//! The farm's key authenticates a director. The director's clock is not used, since a wrong clock
//! may be a finding. The first response is a challenge for the director's address, which only this
//! agent can make. The second request has the challenge's tag. The findings are authenticated, too.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use evener_core::net::http::Response;
use evener_core::node::secret::{KEY_LEN, Key};

use super::host::monotonic_ns;
use crate::agent::doctor;
use crate::config;
use crate::http::client::{self, Answer, Destination};
use crate::io::network;
use crate::runtime::secret::random;
use crate::views::Finding;

const PATH: &str = "/v1/findings";
/// Contexts of the tags, which separate the key's uses.
const PROOF: &[u8] = b"evener findings: a director";
const ANSWER: &[u8] = b"evener findings: a server";
/// A challenge is valid for at least this time, and at most twice as long, in seconds.
const SLOT_S: u64 = 10;
/// Maximum length of a response that a director reads, in bytes.
const ANSWER_MAX: usize = 256 * 1024;
/// Timeout of an agent's response.
const PATIENCE: Duration = Duration::from_secs(4);

/// The agent's state for the exchange.
pub(super) struct FindingsAccess {
    key: Key,
    own: Key,
}

/// True if a request is for findings.
pub(super) fn is_for(method: &str, target: &str) -> bool {
    method == "GET" && target.split('?').next() == Some(PATH)
}

impl FindingsAccess {
    /// Returns `None` if there are no random numbers.
    pub(super) fn new(key: Key) -> Option<FindingsAccess> {
        let mut own = [0; KEY_LEN];
        random(&mut own).ok()?;
        Some(FindingsAccess { key, own: Key(own) })
    }

    fn challenge(&self, client: IpAddr, slot: u64) -> Vec<u8> {
        self.own.seal(client.to_canonical().to_string().as_bytes(), slot.to_be_bytes().to_vec())
    }

    /// Answers a request, with a challenge or with the findings.
    pub(super) async fn answer(&self, target: &str, client: IpAddr) -> Response {
        let slot = monotonic_ns() / 1_000_000_000 / SLOT_S;
        let proof = target.split_once("?proof=").and_then(|(_, proof)| bytes_of(proof));
        let slots = [slot, slot.saturating_sub(1)];
        let proven = slots.map(|slot| self.challenge(client, slot)).into_iter().find(|challenge| {
            proof.as_ref().and_then(|proof| self.key.open(PROOF, proof)) == Some(challenge.as_slice())
        });
        let Some(challenge) = proven else {
            return Response::sentence(401, &hex(&self.challenge(client, slot)));
        };
        let findings = findings().await;
        let body = serde_json::to_string(&findings).unwrap_or_else(|_| "[]".to_owned());
        let context = [ANSWER, &challenge].concat();
        let sealed = self.key.seal(&context, body.clone().into_bytes());
        let tag = hex(sealed.get(body.len()..).unwrap_or_default());
        Response::of(200, "application/json", format!("{body}\n{tag}\n"))
    }
}

/// Returns the findings of this host as a server, with its agent's configuration.
async fn findings() -> Vec<Finding> {
    let fail = |message: String| vec![Finding::fail("agent", message)];
    let Some(path) = doctor::config_file() else { return fail("It has no configuration.".to_owned()) };
    let network = match network::read().await {
        Ok(network) => network,
        Err(error) => return fail(format!("The network can't be read: {error}.")),
    };
    let read = move || match config::load(&path) {
        Ok(config) => doctor::findings(&config, &network),
        Err(_) => {
            vec![Finding::fail("config", format!("{} has errors: run `evener check` on it.", path.display()))]
        }
    };
    tokio::task::spawn_blocking(read).await.unwrap_or_else(|_| fail("The doctor failed.".to_owned()))
}

/// Queries the agent of a server.
///
/// # Errors
/// Why there are no findings, as a part of a sentence.
pub(crate) async fn fetch(to: SocketAddr, key: Key) -> Result<Vec<Finding>, String> {
    tokio::time::timeout(PATIENCE, fetch_proven(to, key)).await.map_err(|_| "no answer in time".to_owned())?
}

async fn fetch_proven(to: SocketAddr, key: Key) -> Result<Vec<Finding>, String> {
    let (_, challenge) = get(to, PATH).await?;
    let challenge = bytes_of(challenge.trim()).ok_or("it is no agent of this version")?;
    let proof = key.seal(PROOF, challenge.clone());
    let (status, body) = get(to, &format!("{PATH}?proof={}", hex(&proof))).await?;
    if status == 401 {
        return Err("it has another secret".to_owned());
    }
    let (json, tag) = body.trim_end().rsplit_once('\n').ok_or("its answer is not understood")?;
    let sealed = [json.as_bytes(), &bytes_of(tag).ok_or("its answer is not understood")?].concat();
    key.open(&[ANSWER, &challenge].concat(), &sealed).ok_or("its answer is not authentic")?;
    serde_json::from_str(json).map_err(|_| "its answer is of another version".to_owned())
}

/// Returns status and body of a request's response.
async fn get(to: SocketAddr, target: &str) -> Result<(u16, String), String> {
    let request = client::request("GET", target, &to.to_string()).map_err(|error| error.to_string())?;
    let answer = client::send(&Destination::plain(to), request, ANSWER_MAX).await;
    let Answer { status, body, .. } = answer.map_err(|error| error.to_string())?;
    match status {
        200 | 401 => Ok((status, String::from_utf8_lossy(&body).into_owned())),
        403 => Err("it does not answer this host: see [farm] directors".to_owned()),
        404 => Err("it has no [farm] secret_file, or is of an earlier version".to_owned()),
        _ => Err("its answer is not understood".to_owned()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = hex.chars().map(|digit| u8::try_from(digit.to_digit(16)?).ok()).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0 && !digits.is_empty())?;
    Some(digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    async fn status_of(access: &FindingsAccess, target: &str, client: IpAddr) -> (u16, String) {
        let Response { status, body, .. } = access.answer(target, client).await;
        (status, body)
    }

    #[tokio::test]
    async fn findings_are_for_whoever_has_the_key_and_the_number() {
        let key = Key([7; KEY_LEN]);
        let access = FindingsAccess::new(key).unwrap();
        let (status, challenge) = status_of(&access, PATH, CLIENT).await;
        assert_eq!(status, 401);
        let challenge = bytes_of(challenge.trim()).unwrap();
        let proof = |key: Key| format!("{PATH}?proof={}", hex(&key.seal(PROOF, challenge.clone())));
        assert_eq!(status_of(&access, &proof(Key([8; KEY_LEN])), CLIENT).await.0, 401, "another key");
        assert_eq!(status_of(&access, &proof(key), [192, 0, 2, 3].into()).await.0, 401, "another address");
        assert_eq!(status_of(&access, &format!("{PATH}?proof=xyz"), CLIENT).await.0, 401);
        let (status, body) = status_of(&access, &proof(key), CLIENT).await;
        assert_eq!(status, 200);
        let (json, tag) = body.trim_end().rsplit_once('\n').unwrap();
        let context = [ANSWER, &challenge].concat();
        let sealed = [json.as_bytes(), &bytes_of(tag).unwrap()].concat();
        assert!(key.open(&context, &sealed).is_some());
        assert!(key.open(ANSWER, &sealed).is_none(), "the number is part of it");
        let others = FindingsAccess::new(key).unwrap();
        assert_eq!(status_of(&others, &proof(key), CLIENT).await.0, 401, "another agent's number");
    }

    #[test]
    fn only_requests_for_findings_are_taken() {
        assert!(is_for("GET", "/v1/findings?proof=00"));
        for (method, target) in
            [("POST", "/v1/findings"), ("GET", "/v1/findings/"), ("GET", "/v1/load"), ("GET", "/V1/findings")]
        {
            assert!(!is_for(method, target), "{method} {target}");
        }
    }
}
