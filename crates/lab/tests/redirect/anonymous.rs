//! Members that clients never learn of.

use anyhow::Result;
use evener_lab::farm::Farm;
use evener_lab::web::BIG_LEN;

use crate::stage::{Stage, member};

#[test]
fn what_they_have_is_fetched() -> Result<()> {
    let farm = Farm::builder().bare().servers(1).build()?;
    let members = member(&farm, 0, "anonymous = true");
    let mut stage = Stage::start_with(farm, &[], "", &members)?;
    let client = stage.farm.client(0);
    let address = stage.farm.server(0).address().to_string();
    assert_eq!(client.curl(&[&stage.url("/who")])?.trim(), "web1");
    let head = client.curl(&["--head", &stage.url("/2k")])?;
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("2000"), "{head}");
    let words =
        ["--output", "/dev/null", "--write-out", "%{size_download} %{num_redirects}", &stage.url("/big")];
    assert_eq!(client.curl(&words)?, format!("{BIG_LEN} 0"));
    // nginx sends its client on to the folder, by its own name.
    let text = stage.say(b"GET /upload HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n")?;
    assert!(!text.contains(&address), "{text}");
    stage.farm.stop_web(0)?;
    let text = stage.say(b"GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n")?;
    assert!(text.starts_with("HTTP/1.1 50") && !text.contains(&address), "{text}");
    assert!(stage.counted("fetched")? >= 4);
    Ok(())
}

#[test]
fn uploads_go_through_and_connections_are_kept() -> Result<()> {
    let farm = Farm::builder().bare().servers(1).build()?;
    let members = member(&farm, 0, "anonymous = true");
    let stage = Stage::start_with(farm, &[], "", &members)?;
    let client = stage.farm.client(0);
    let body = "x".repeat(300_000);
    let path = client.write("upload", &body)?;
    let at = stage.url("/upload/file");
    client.curl(&["--upload-file", &path.to_string_lossy(), &at])?;
    let words =
        ["--write-out", "%{num_connects}", "--output", "/dev/null", &at, "--output", "/dev/null", &at];
    assert_eq!(client.curl(&words)?, "10", "one connection for both");
    assert_eq!(client.curl(&[&at])?, body);
    Ok(())
}
