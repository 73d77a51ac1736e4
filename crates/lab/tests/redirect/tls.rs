//! Clients that use TLS.

use anyhow::Result;
use evener_lab::farm::Farm;
use evener_lab::network::host::Host;

use crate::stage::{Stage, file, member};

/// Creates a certificate and key for a name. Returns the configuration keys that refer to them.
fn certificate(host: &Host, name: &str) -> Result<String> {
    let [certificate, key] = ["pem", "key"].map(|end| host.file(&format!("{name}.{end}")));
    let (certificate, key) = (certificate.to_string_lossy(), key.to_string_lossy());
    let words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1";
    let subject = format!("/CN={name}");
    let words: Vec<&str> =
        words.split(' ').chain(["-subj", &subject, "-out", &certificate, "-keyout", &key]).collect();
    host.run(&words)?;
    Ok(format!("tls = {{ certificate = \"{certificate}\", key = \"{key}\" }}"))
}

#[test]
fn clients_come_by_tls_and_a_reload_brings_another_certificate() -> Result<()> {
    let farm = Farm::builder().bare().servers(2).clients(2).build()?;
    let [first, second] = ["one.example", "two.example"].map(|name| certificate(farm.director(), name));
    let (first, second) = (first?, second?);
    let members = member(&farm, 0, "weight = 0") + &member(&farm, 1, "anonymous = true");
    let stage = Stage::start_with(farm, &[], &first, &members)?;
    let url = stage.url("/who").replace("http:", "https:");
    let (client, director) = (stage.farm.client(0), stage.farm.director());
    let by = |name: &str| {
        let resolved = format!("{name}:8000:{}", director.address());
        let known = director.file(&format!("{name}.pem"));
        let url = format!("https://{name}:8000/who");
        client.curl(&["--resolve", &resolved, "--cacert", &known.to_string_lossy(), &url])
    };
    assert_eq!(by("one.example")?.trim(), "web2");
    assert!(by("two.example").is_err());
    assert!(stage.answer(&[], "/").is_err(), "by plain HTTP nobody is answered");

    stage.evener.reload(&file(&stage.farm, &second, &members))?;
    assert_eq!(by("two.example")?.trim(), "web2");
    let broken = second.replace("two.example.key", "one.example.key");
    let refused = format!("{:#}", stage.evener.reload(&file(&stage.farm, &broken, &members)).unwrap_err());
    assert!(refused.contains("can't be used"), "{refused}");
    assert_eq!(by("two.example")?.trim(), "web2");

    // Other names are redirected as before, and only HTTP/1.1 is offered.
    stage.evener.reload(&file(&stage.farm, &second, &member(&stage.farm, 0, "")))?;
    let words = [
        "--insecure",
        "--output",
        "/dev/null",
        "--write-out",
        "%{http_code} %{http_version} %{redirect_url}",
        &url,
    ];
    let output = client.curl(&words)?;
    assert_eq!(output, format!("302 1.1 http://{}/who", stage.farm.server(0).address()));
    Ok(())
}
