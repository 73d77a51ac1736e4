//! Servers in the configuration that do not answer ARP for the address. The director announces it.

use anyhow::Result;
use evener_lab::evener::{Evener, left_on};
use evener_lab::farm::Farm;
use evener_lab::harness::wait::LONG;

use crate::{file, shares, split};

on_both_engines! {
    the_director_alone_answers_for_the_address,
    an_address_that_another_host_has_is_refused,
}

fn the_director_alone_answers_for_the_address(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(3).build()?;
    let capture = farm.router().capture(1, "arp")?;
    let evener = Evener::start(farm.director(), &file::listed(engine, &farm, ""))?;
    let servers = evener.wait_for_servers(3, LONG)?;
    assert!(servers.iter().all(|server| server.source == "listed"), "{servers:?}");
    assert_eq!(shares(&farm, 9)?, split([3, 3, 3]));
    let neighbour = farm.router().run(&["ip", "neigh", "show", &farm.vip(0).to_string()])?;
    assert!(neighbour.contains(farm.director().mac()), "{neighbour}");
    assert!(evener.status()?.packets["arp_answered"] > 0);
    let answer = format!("Reply {} is-at ", farm.vip(0));
    let answers: Vec<_> = capture.stop()?.into_iter().filter(|line| line.contains(&answer)).collect();
    assert!(!answers.is_empty());
    assert!(answers.iter().all(|line| line.contains(farm.director().mac())), "{answers:?}");
    Ok(())
}

fn an_address_that_another_host_has_is_refused(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).directors(2).build()?;
    let (director, owner) = (farm.director(), &farm.directors()[1]);
    let change = |verb: &str| owner.ip(&[format!("addr {verb} {}/32 dev eth0", farm.vip(0))]);
    change("add")?;
    let file = file::listed(engine, &farm, "");
    // Refused twice: the first refusal must leave no trace.
    for _ in 0..2 {
        let (code, output) = Evener::refused(director, &file, &[])?;
        assert_eq!(code, 4, "{output}");
        let sentences: Vec<_> = output.lines().filter(|line| line.starts_with("evener: ")).collect();
        let [sentence] = sentences.as_slice() else { panic!("one sentence: {output}") };
        assert!(sentence.contains("another host owns") && sentence.contains(owner.mac()), "{sentence}");
        assert_eq!(left_on(director)?, [""; 0]);
    }
    change("del")?;
    let evener = Evener::start(director, &file)?;
    evener.wait_for_servers(2, LONG)?;
    farm.router().run(&["ip", "neigh", "flush", "all"])?;
    assert_eq!(shares(&farm, 4)?, split([2, 2]));
    Ok(())
}
