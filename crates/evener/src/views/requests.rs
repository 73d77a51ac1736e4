//! Requests that a server has open, and what it has to send of each: the load-balancing agent's
//! figures 2.2 and 2.3.

use serde::{Deserialize, Serialize};

/// One request, or a connection that has something to send of which no more is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestView {
    /// The service that its port belongs to, where the file has one.
    pub service: Option<String>,
    /// The client's address and port.
    pub client: String,
    /// The server by the name that the file has for it; else the address that the connection is to.
    pub server: String,
    /// The method, where the request was seen.
    pub method: Option<String>,
    /// The request's target, as far as it is kept.
    pub url: Option<String>,
    /// The bytes that the client has of the answer.
    pub bytes_sent: Option<u64>,
    /// The bytes that it lacks.
    pub bytes_left: u64,
    /// How fast it was sent what it has, since the request came, in bits a second.
    pub rate_bps: Option<f64>,
    /// How long the rest takes at this rate.
    pub seconds_left: Option<f64>,
    /// `exact`, or `lower_bound`: what the kernel holds, where the answer's end isn't known.
    pub source: String,
}
