//! nginx for HTTPS, with a self-signed certificate.

use anyhow::Result;

use crate::harness::process::Proc;
use crate::network::host::Host;

pub const PORT: u16 = 443;

/// Name in the certificate. Probes may verify it, since the certificate is self-signed.
pub const NAME: &str = "www.example.com";

/// Creates a certificate for [`NAME`]. Returns the files of key and certificate.
pub fn certificate(host: &Host) -> Result<[String; 2]> {
    let [key, certificate] = ["tls.key", "tls.pem"].map(|name| host.file(name).display().to_string());
    let words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=any";
    let mut words: Vec<&str> = words.split(' ').collect();
    let names = format!("subjectAltName=DNS:{NAME}");
    words.extend(["-addext", &names, "-addext", "basicConstraints=critical,CA:FALSE"]);
    words.extend(["-keyout", &key, "-out", &certificate]);
    host.run(&words)?;
    Ok([key, certificate])
}

/// Starts nginx on a host, which answers each request with the host's name.
pub fn start(host: &Host) -> Result<Proc> {
    let [key, certificate] = certificate(host)?;
    let (name, temporary) = (host.name(), host.file("tls").display().to_string());
    let config = format!(
        "daemon off;\nmaster_process off;\nerror_log stderr warn;\npid {temporary}.pid;\nevents {{}}\nhttp {{\n\
         access_log off;\nclient_body_temp_path {temporary}.body;\nproxy_temp_path {temporary}.proxy;\n\
         fastcgi_temp_path {temporary}.fastcgi;\nuwsgi_temp_path {temporary}.uwsgi;\nscgi_temp_path {temporary}.scgi;\n\
         server {{\nlisten {PORT} ssl;\nlisten [::]:{PORT} ssl ipv6only=on;\nssl_certificate {certificate};\n\
         ssl_certificate_key {key};\nlocation / {{ return 200 \"{name}\\n\"; }}\n}}\n}}\n"
    );
    let config = host.write("tls.conf", &config)?;
    let mut nginx = host.spawn("tls", &["nginx", "-c", &config.to_string_lossy()])?;
    nginx.wait_until_listening(host, ([127, 0, 0, 1], PORT).into())?;
    Ok(nginx)
}
