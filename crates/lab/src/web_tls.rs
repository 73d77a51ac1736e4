//! nginx for HTTPS, with a certificate for any name.

use anyhow::Result;

use crate::host::Host;
use crate::proc::Proc;

/// The port that it listens on.
pub const PORT: u16 = 443;

/// A name that its certificate is for, and whose probes may verify it: it signs itself.
pub const NAME: &str = "www.example.com";

/// Makes a certificate for [`NAME`]; the files of its key and of itself.
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

/// Starts it on a host, which then answers each request with its name.
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
