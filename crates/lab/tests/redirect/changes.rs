//! Farms that change while clients connect.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Result, ensure};
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::harness::wait;

use crate::stage::{Stage, file, member};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Sends a request on an open connection and returns the redirect's target.
fn ask(stream: &mut TcpStream) -> Result<String> {
    stream.write_all(GET)?;
    let mut text = String::new();
    while !text.ends_with("</a>.\n") {
        let mut buffer = [0; 4096];
        let len = stream.read(&mut buffer)?;
        ensure!(len > 0, "closed after {text:?}");
        text += &String::from_utf8_lossy(&buffer[..len]);
    }
    let location = text.lines().find_map(|line| line.strip_prefix("Location: "));
    Ok(location.unwrap_or_default().to_owned())
}

#[test]
fn a_reload_keeps_open_connections() -> Result<()> {
    let stage = Stage::start(2, "")?;
    let to = |number: usize| format!("http://{}/", stage.farm.server(number).address());
    let mut open = stage.connect(0)?;
    ask(&mut open)?;
    // Changes of network interfaces do not affect this daemon.
    let spare = "link add spare type veth peer name spare-end".to_owned();
    stage.farm.director().ip(&[spare, "link set spare up".to_owned()])?;
    stage.evener.reload(&file(&stage.farm, "", &member(&stage.farm, 1, "")))?;
    assert_eq!(ask(&mut open)?, to(1), "it goes by the new file");

    let refused = stage.evener.reload(&file(&stage.farm, "status = 301", &member(&stage.farm, 0, "")));
    assert!(format!("{:#}", refused.unwrap_err()).contains("301"));
    assert_eq!(ask(&mut open)?, to(1));
    let taken = file(&stage.farm, "", &member(&stage.farm, 0, "")).replace(":8000", ":9180");
    let refused = format!(
        "{:#}",
        stage
            .evener
            .reload(&taken.replace(&stage.farm.director().address().to_string(), "127.0.0.1"))
            .unwrap_err()
    );
    assert!(refused.contains("another program listens there"), "{refused}");
    assert_eq!(ask(&mut open)?, to(1));

    let elsewhere = file(&stage.farm, "", &member(&stage.farm, 0, "")).replace(":8000", ":8001");
    stage.evener.reload(&elsewhere)?;
    assert_eq!(ask(&mut open)?, to(0), "the address is another, and who was here stays");
    assert!(stage.answer(&[], "/").is_err(), "nobody is heard at the old one");
    let packets = "[[service]]\naddress = \"192.0.2.100:80\"\n[[service.server]]\naddress = \"192.0.2.11\"\n";
    let refused = format!("{:#}", stage.evener.reload(&(elsewhere + packets)).unwrap_err());
    assert!(refused.contains("need an engine"), "{refused}");
    Ok(())
}

#[test]
fn killed_daemon_resumes_group_state() -> Result<()> {
    let mut stage = Stage::start(2, "")?;
    let output = stage.evener.command(&["drain", "shop/web1"])?;
    assert!(output.contains("drains"), "{output}");
    for _ in 0..5 {
        assert_eq!(stage.follow("/who")?, "web2");
    }
    stage.evener.daemon().kill9()?;
    stage.evener.start_again()?;
    assert_eq!(stage.evener.server("web1")?.state, "draining");
    assert_eq!(stage.follow("/who")?, "web2");
    stage.evener.command(&["undrain", "shop/web1"])?;
    wait::until("both serve", || Ok(stage.follow("/who")? == "web1"))?;
    let (code, output) = stage.evener.failure(&["drain", "shop/web3"])?;
    assert!(code == 1 && output.contains("web3"), "{output}");
    Ok(())
}

#[test]
fn drain_of_the_version_before_becomes_a_change() -> Result<()> {
    let mut stage = Stage::start(2, "")?;
    stage.evener.daemon().kill9()?;
    let record = format!("/run/evener/net-{}/group.shop", stage.farm.director().netns().inode()?);
    let members = fs::read_to_string(&record)?;
    ensure!(members.contains("@up"), "{members}");
    fs::write(&record, members.replacen(" @up", " @drained @up", 1))?;
    // The second start finds the converted record, without a separate drain.
    for _ in 0..2 {
        stage.evener.start_again()?;
        assert_eq!(stage.evener.server("web1")?.state, "draining");
        let changes = stage.evener.command(&["state", "--changes"])?;
        assert_eq!(changes.matches("shop/web1").count(), 1, "{changes}");
        assert!(!fs::read_to_string(&record)?.contains("@drained"));
        stage.evener.daemon().kill9()?;
    }
    stage.evener.start_again()?;
    stage.evener.command(&["undrain", "shop/web1"])?;
    stage.evener.daemon().kill9()?;
    stage.evener.start_again()?;
    wait::until("both serve", || Ok(stage.follow("/who")? == "web1"))
}

#[test]
fn a_group_beside_a_service_that_sends_packets_on() -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let packets = format!(
        "[[service]]\nname = \"web\"\naddress = \"{}\"\n[[service.server]]\nname = \"web1\"\naddress = \"{}\"\n",
        farm.service(),
        farm.server(0).address()
    );
    let evener = Evener::start(farm.director(), &(packets + &file(&farm, "", &member(&farm, 1, ""))))?;
    let stage = Stage { evener, farm };
    assert_eq!(stage.follow("/who")?, "web2");
    assert_eq!(stage.farm.client(0).curl(&[&format!("http://{}/who", stage.farm.service())])?.trim(), "web1");
    let services: Vec<_> = stage.evener.services()?.into_iter().map(|service| service.name).collect();
    assert_eq!(services, ["web", "shop"]);
    Ok(())
}
