//! Widely used proxies for comparison: HAProxy and nginx, configured as their manuals advise.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;

use crate::farm::WEB_PORT;
use crate::harness::process::Proc;
use crate::network::host::Host;

/// HAProxy on a host, in both modes.
#[derive(Debug)]
pub struct HaProxy {
    _proc: Proc,
    /// Address that forwards connections (`mode tcp`).
    pub tcp: SocketAddr,
    /// Address that forwards requests (`mode http`).
    pub http: SocketAddr,
}

impl HaProxy {
    /// Starts HAProxy in front of some servers.
    pub fn start(host: &Host, servers: &[Host]) -> Result<HaProxy> {
        let tcp = SocketAddr::from((host.address(), 8081));
        let http = SocketAddr::from((host.address(), 8082));
        let mut config = "global\n maxconn 4000\ndefaults\n timeout connect 5s\n timeout client 10m\n timeout server 10m\n".to_owned();
        for (mode, address) in [("tcp", tcp), ("http", http)] {
            config +=
                &format!("listen {mode}\n mode {mode}\n bind {address} backlog 4096\n balance roundrobin\n");
            for server in servers {
                config += &format!(" server {} {}:{WEB_PORT}\n", server.name(), server.address());
            }
        }
        let path = host.write("haproxy.cfg", &config)?;
        let mut proc = host.spawn("haproxy", &["haproxy", "-db", "-f", &path.to_string_lossy()])?;
        for address in [tcp, http] {
            proc.wait_until_listening(host, address)?;
        }
        Ok(HaProxy { _proc: proc, tcp, http })
    }
}

/// The kernel's own nat on a host, by nftables with round robin. The host must be the servers'
/// router.
#[derive(Debug)]
pub struct NftDnat;

impl NftDnat {
    /// Configures nat for a service, and adds its address to the host. The rules are removed with
    /// the host.
    pub fn start(host: &Host, service: SocketAddr, servers: &[Host]) -> Result<NftDnat> {
        let map: Vec<String> = (0..)
            .zip(servers)
            .map(|(number, server): (u32, _)| format!("{number} : {}", server.address()))
            .collect();
        let rules = format!(
            "table ip balance {{\n chain incoming {{\n  type nat hook prerouting priority dstnat\n  \
             ip daddr {} tcp dport {} dnat to numgen inc mod {} map {{ {} }}\n }}\n}}\n",
            service.ip(),
            service.port(),
            servers.len(),
            map.join(", "),
        );
        let file = host.write("balance.nft", &rules)?;
        host.run(&["nft", "-f", &file.to_string_lossy()])?;
        host.ip(&[format!("addr add {}/32 dev lo", service.ip())])?;
        Ok(NftDnat)
    }
}

/// nginx as a proxy on a host.
#[derive(Debug)]
pub struct NginxProxy {
    _proc: Proc,
    /// Address that forwards requests.
    pub http: SocketAddr,
}

impl NginxProxy {
    /// Starts nginx in front of some servers.
    pub fn start(host: &Host, servers: &[Host]) -> Result<NginxProxy> {
        let http = SocketAddr::from((host.address(), 8083));
        let servers: Vec<Ipv4Addr> = servers.iter().map(Host::address).collect();
        let config = nginx_config(host, http, &servers);
        let path = host.write("nginx-proxy.conf", &config)?;
        let mut proc = host.spawn("nginx-proxy", &["nginx", "-c", &path.to_string_lossy()])?;
        proc.wait_until_listening(host, http)?;
        Ok(NginxProxy { _proc: proc, http })
    }
}

/// Returns nginx's configuration: as many processes as HAProxy has threads, connections to servers
/// kept open, and replies in memory.
fn nginx_config(host: &Host, listen: SocketAddr, servers: &[Ipv4Addr]) -> String {
    let temporary = host.file("nginx-proxy");
    let temporary = temporary.display();
    let servers: String = servers.iter().map(|address| format!("server {address}:{WEB_PORT}; ")).collect();
    format!(
        r#"daemon off;
user root;
worker_processes auto;
worker_rlimit_nofile 65536;
error_log stderr warn;
pid {temporary}.pid;
events {{ worker_connections 16384; }}
http {{
    access_log off;
    keepalive_timeout 600s;
    keepalive_requests 1000000000;
    client_body_temp_path {temporary}.body;
    proxy_temp_path {temporary}.proxy;
    fastcgi_temp_path {temporary}.fastcgi;
    uwsgi_temp_path {temporary}.uwsgi;
    scgi_temp_path {temporary}.scgi;
    upstream servers {{ {servers}keepalive 128; keepalive_requests 1000000000; }}
    server {{
        listen {listen} backlog=4096 reuseport;
        location / {{
            proxy_pass http://servers;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffers 16 16k;
            proxy_max_temp_file_size 0;
        }}
    }}
}}
"#
    )
}
