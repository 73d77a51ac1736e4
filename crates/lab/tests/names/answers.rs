//! DNS responses, and their changes with the servers' state.

use std::collections::BTreeSet;

use anyhow::Result;
use evener_lab::evener::{Evener, program, web_service};
use evener_lab::farm::Farm;
use evener_lab::harness::wait;

use crate::changes::with_zone;
use crate::stage::{NAME, PORT, Stage, dig};

#[test]
fn clients_are_given_servers_that_live() -> Result<()> {
    let mut stage = Stage::start(3, "policy = \"round-robin\"")?;
    let all: BTreeSet<String> = (0..3).map(|server| stage.address(server)).collect();
    let given = stage.given(12)?;
    assert_eq!(given.keys().cloned().collect::<BTreeSet<_>>(), all);
    assert!(given.values().all(|count| *count == 4), "{given:?}");

    stage.farm.stop_web(0)?;
    let dead = stage.address(0);
    wait::until("who is dead is not given", || Ok(stage.states()?[&dead] == "down"))?;
    assert!(!stage.given(12)?.contains_key(&dead));
    for server in [1, 2] {
        stage.farm.stop_web(server)?;
    }
    wait::until("all are dead", || Ok(stage.states()?.values().all(|state| state == "down")))?;
    let output = stage.farm.director().output(&[&program()?.to_string_lossy(), "doctor"])?;
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("FAIL  names") && output.status.code() == Some(4), "{text}");
    assert_eq!(stage.given(12)?.len(), 3, "where nobody lives all are given");
    assert!(stage.dig(&[NAME])?.contains("no server of this name is known to live"));
    stage.farm.start_web(1)?;
    let alive = stage.address(1);
    wait::until("who is back is given alone", || Ok(stage.given(6)?.keys().eq([&alive])))?;
    Ok(())
}

#[test]
fn every_kind_of_question_has_its_answer() -> Result<()> {
    let stage = Stage::start(1, "ttl = 7")?;
    let address = stage.address(0);
    let answer = stage.dig(&[NAME])?;
    assert!(answer.contains("status: NOERROR") && answer.contains("flags: qr aa;"), "{answer}");
    assert!(answer.contains("(good)"), "a cookie of the server's: {answer}");
    assert!(answer.lines().any(|line| line.split_whitespace().eq([
        &format!("{NAME}."),
        "7",
        "IN",
        "A",
        &address
    ])));
    assert!(stage.dig(&["WwW.eXaMpLe.CoM"])?.contains("WwW.eXaMpLe.CoM.\t7"), "as it was asked (0x20)");
    assert_eq!(stage.addresses(&[NAME, "+tcp"])?, [&*address]);
    assert_eq!(stage.addresses(&[NAME, "+noedns"])?, [&*address]);
    for (words, output) in [
        (&[NAME, "AAAA"][..], "status: NOERROR"),
        (&["nobody.example.com"], "status: NXDOMAIN"),
        (&["example.org"], "EDE: 20 (Not Authoritative)"),
        (&["example.com", "SOA"], "hostmaster.example.com."),
        (&["example.com", "NS"], "ns.example.com."),
        (&["example.com", "ANY"], "RFC8482"),
        (&["version.bind", "CH", "TXT"], "status: REFUSED"),
        (&[NAME, "+edns=3", "+noednsneg"], "status: BADVERS"),
        (&[NAME, "+subnet=198.51.100.0/24"], "CLIENT-SUBNET: 198.51.100.0/24/0"),
        (&[NAME, "+opcode=UPDATE", "+noedns"], "status: NOTIMP"),
    ] {
        let answer = stage.dig(words)?;
        assert!(answer.contains(output), "{words:?}: {answer}");
        assert!(!answer.contains("WARNING"), "{words:?}: {answer}");
    }
    assert!(stage.counted("nxdomain")? >= 1 && stage.counted("queries_tcp")? >= 1);
    Ok(())
}

/// HTTPS records with address hints for browsers, from the configuration and from a zone file.
#[test]
fn hints_of_service_bindings_follow_health() -> Result<()> {
    let stage = Stage::start(2, "alpn = [\"h2\", \"h3\"]\ntop = 2\npolicy = \"failover\"")?;
    let hinted = |addresses: &str| format!("1 . alpn=\"h2,h3\" ipv4hint={addresses}\n");
    let [first, second] = [stage.address(0), stage.address(1)];
    let asked = || stage.dig(&[NAME, "HTTPS", "+short"]);
    assert_eq!(asked()?, hinted(&format!("{first},{second}")));
    stage.farm.set_healthy(0, false)?;
    wait::until("hints follow", || Ok(asked()? == hinted(&second)))?;
    let zone = "$TTL 60\n@ IN SOA ns host 1 2 3 4 5\n@ IN NS ns\nns IN A 192.0.2.53\n\
                www IN HTTPS 1 . alpn=h2 port=8443 ipv4hint=192.0.2.99 ipv6hint=2001:db8::99\n\
                www IN HTTPS 2 far.example.net. ipv4hint=192.0.2.99\n";
    stage.evener.reload(&with_zone(&stage, zone)?)?;
    let said = asked()?;
    let output: BTreeSet<&str> = said.lines().collect();
    let own = format!("1 . alpn=\"h2\" port=8443 ipv4hint={second}");
    assert_eq!(output, BTreeSet::from([&*own, "2 far.example.net. ipv4hint=192.0.2.99"]));
    Ok(())
}

/// The service and its name use the same state: draining and failed servers are not answered.
#[test]
fn a_service_and_its_name_know_the_same() -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let names = |answer: &str| {
        format!(
            "{}\n[dns]\nlisten = [\"{}:{PORT}\"]\n[[dns.zone]]\nname = \"example.com\"\n\
             [[dns.name]]\nname = \"{NAME}\"\nservices = [\"web\"]\nanswer = \"{answer}\"\ntop = 8\n",
            web_service(&farm, 0, "xdp"),
            farm.director().address()
        )
    };
    let evener = Evener::start(farm.director(), &names("servers"))?;
    let addresses = || -> Result<BTreeSet<String>> {
        Ok(dig(&farm, 0, &[NAME, "+short"])?.lines().map(str::to_owned).collect())
    };
    let own: BTreeSet<String> = farm.servers().iter().map(|server| server.address().to_string()).collect();
    wait::until("both are up", || Ok(addresses()? == own))?;
    let drained = &evener.servers()?[0];
    let full = format!("{}/{}", drained.service, drained.name);
    evener.command(&["drain", &full])?;
    wait::until("who drains is not given", || Ok(addresses()?.len() == 1))?;
    evener.command(&["undrain", &full])?;
    wait::until("both are up again", || Ok(addresses()? == own))?;
    evener.reload(&names("addresses"))?;
    wait::until("the service's own is given", || Ok(addresses()?.into_iter().eq([farm.vip(0).to_string()])))
}
