//! Requests on handed-off connections are tracked like others, although the first request arrives
//! before the connection has a socket.

use anyhow::{Result, ensure};
use evener_lab::clients::partial_reader::Reader;
use evener_lab::evener::{program, route};
use evener_lab::harness::wait;
use evener_lab::network::family::Family;
use evener_lab::servers::nginx::BIG_LEN;
use serde_json::Value;

use crate::farm;

#[test]
fn requests_of_connections_handed_over_are_followed_from_the_first_on() -> Result<()> {
    let handoff = farm("xdp", 1, &[route("path = \"/*\"", &["web1"])])?;
    let server = handoff.farm.server(0);
    for family in Family::BOTH {
        let mut reader = Reader::connect(handoff.client(), handoff.service(family))?;
        for _ in 0..2 {
            reader.get("/big")?;
            reader.read_to(BIG_LEN as u64 / 4)?;
            let (lacks, own) = (reader.lacks()?, reader.address()?.to_string());
            wait::until(&format!("what {own} lacks is known"), || {
                let text = server.run(&[&program()?.to_string_lossy(), "requests", "--json"])?;
                let all: Vec<Value> = serde_json::from_str(&text)?;
                let one = all.into_iter().find(|one| one["client"] == *own).unwrap_or_default();
                let left = one["bytes_left"].as_u64().unwrap_or_default();
                Ok(one["source"] == "exact" && one["url"] == "/big" && left.abs_diff(lacks) <= lacks / 20)
            })?;
            reader.read_all()?;
            ensure!(reader.lacks()? == 0);
        }
    }
    Ok(())
}
