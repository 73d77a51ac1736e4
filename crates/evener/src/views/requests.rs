//! Open requests of a server, and their outstanding bytes: figures 2.2 and 2.3 of the
//! load-balancing agent.

use serde::{Deserialize, Serialize};

/// An open request, or a connection with data to send and without a known request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestView {
    /// Service of the port, if the file has one.
    pub service: Option<String>,
    /// Address and port of the client.
    pub client: String,
    /// Name of the server in the file, or the connection's local address.
    pub server: String,
    /// Method, if the request was seen.
    pub method: Option<String>,
    /// Target of the request, as far as it is stored.
    pub url: Option<String>,
    /// Number of the response's bytes that the client has received.
    pub bytes_sent: Option<u64>,
    /// Number of bytes that the client lacks.
    pub bytes_left: u64,
    /// Average rate since the request, in bits per second.
    pub rate_bps: Option<f64>,
    /// Time to send the rest at this rate.
    pub seconds_left: Option<f64>,
    /// `exact`, or `lower_bound`: the kernel's queue, if the response's end is unknown.
    pub source: String,
}
