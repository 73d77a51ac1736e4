//! Real and simulated servers, and proxies for comparison.

pub mod cgi;
pub mod dnsmasq;
pub mod nginx;
pub mod nginx_tls;
pub mod other_web_servers;
pub mod proxies;
pub mod queue_servers;
pub mod report_server;
