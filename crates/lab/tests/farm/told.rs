//! The operator's view: log, commands and `evener doctor`.

use anyhow::{Context, Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::{Evener, program};
use evener_lab::farm::Farm;
use evener_lab::harness::process::Proc;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::host::Host;
use serde_json::Value;

use crate::file;

on_one_engine! {
    the_log_tells_what_happens_to_servers_and_links,
    events_are_shown_while_they_happen,
    the_doctor_knows_what_run_would_refuse,
}

/// Waits until a line of the daemon's log contains all of these words.
pub(crate) fn is_logged(evener: &mut Evener, words: &[&str]) -> Result<()> {
    wait::until(&format!("the log says {words:?}"), || {
        let log = evener.daemon().log();
        Ok(log.lines().any(|line| words.iter().all(|word| line.contains(word))))
    })
}

fn the_log_tells_what_happens_to_servers_and_links(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let nowhere = "[[service.server]]\nname = \"web9\"\naddress = \"192.0.2.99\"\n";
    let mut evener =
        Evener::start(farm.director(), &(file::listed(engine, &farm, "keep_last = false\n") + nowhere))?;
    evener.wait_for_servers(2, LONG)?;
    is_logged(&mut evener, &["INFO", "server web1 joined", "on eth0"])?;
    ensure!(!evener.daemon().log().contains("on interface"), "interfaces have names");
    is_logged(&mut evener, &["WARN", "can't be found: no ARP answer", "web9"])?;

    let mut visit = HttpConnection::open(farm.client(0), farm.service())?;
    let server = visit.who()?;
    let other = if server == "web1" { "web2" } else { "web1" };
    let output = evener.command(&["drain", &format!("web/{server}")])?;
    ensure!(!output.contains("no other server"), "{output}");
    is_logged(&mut evener, &["INFO", "drained", &server])?;
    let session = evener.sessions()?.into_iter().find(|session| session.server == server);
    let client = session.map(|session| session.client).unwrap_or_default();
    let output = evener.command(&["explain", &client, &farm.service().to_string()])?;
    ensure!(output.contains(&format!("but {server} is draining (drained by the operator)")), "{output}");
    ensure!(!evener.daemon().log().contains("no server accepts new sessions"), "one is left");

    let output = evener.command(&["drain", &format!("web/{other}")])?;
    ensure!(output.replace('\n', " ").contains("no other server accepts new sessions"), "{output}");
    is_logged(&mut evener, &["WARN", "no server accepts new sessions"])?;
    evener.command(&["undrain", &format!("web/{other}")])?;
    is_logged(&mut evener, &["INFO", "ended the drain or maintenance", other])?;
    is_logged(&mut evener, &["INFO", "servers accept new sessions again"])?;

    farm.director().unplug()?;
    is_logged(&mut evener, &["WARN", "no carrier", "eth0"])?;
    farm.director().plug()?;
    is_logged(&mut evener, &["INFO", "the interface works again", "eth0"])?;
    ensure!(!evener.daemon().log().contains("servers work again"), "none of them has failed");
    Ok(())
}

/// Returns the events so far: name, server and reason.
fn happened(listener: &Proc) -> Result<Vec<(String, String, String)>> {
    let log = listener.log();
    let whole = log.get(..=log.rfind('\n').unwrap_or_default()).unwrap_or_default();
    let lines = whole.lines().filter(|line| line.starts_with('{'));
    let events = lines.map(|line| {
        let event: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        Ok((text("event"), text("server"), text("reason")))
    });
    events.collect()
}

fn events_are_shown_while_they_happen(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let probed = "[service.health]\nkind = \"tcp\"\ninterval = \"300ms\"\ntimeout = \"200ms\"\nfall = 2\n";
    let good = file::listed(engine, &farm, "").replace(file::ALWAYS_UP, probed);
    let evener = Evener::start(farm.director(), &good)?;
    evener.wait_for_servers(2, LONG)?;
    let mut listener = evener.begin("events", &["events", "--json"])?;
    listener.wait_for("evener: listening", LONG)?;
    let is_shown = |name: &str, server: &str, reason: &str| {
        wait::until(&format!("{name} of {server:?} is shown"), || {
            let all = happened(&listener)?;
            Ok(all.iter().any(|event| event.0 == name && event.1 == server && event.2.contains(reason)))
        })
    };
    farm.server(0).unplug()?;
    is_shown("server_down", "web1", "answer")?;
    farm.server(0).plug()?;
    is_shown("server_up", "web1", "")?;
    evener.command(&["drain", "web/web2"])?;
    is_shown("server_drained", "web2", "")?;
    evener.command(&["undrain", "web/web2"])?;
    is_shown("server_undrained", "web2", "")?;
    ensure!(evener.reload("nothing").is_err());
    is_shown("reload_refused", "", "")?;
    evener.reload(&good)?;
    is_shown("reloaded", "", "")?;
    farm.director().unplug()?;
    is_shown("link_no_carrier", "", "")?;
    let events = evener.status()?.events;
    ensure!(events["server_drained"] == 1 && events["reloaded"] == 1, "{events:?}");
    Ok(())
}

/// Returns the doctor's findings for a configuration, without line breaks.
pub(crate) fn doctor(host: &Host, file: &str) -> Result<String> {
    let path = host.write("doctor.toml", file)?;
    let output =
        host.output(&[&program()?.to_string_lossy(), "doctor", "--config", &path.to_string_lossy()])?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn the_doctor_knows_what_run_would_refuse(engine: &str) -> Result<()> {
    let farm = Farm::builder().directors(2).servers(2).build()?;
    let file = file::listed(engine, &farm, "");
    let [first, second] = farm.directors() else { anyhow::bail!("there are two directors") };
    let output = doctor(second, &file)?;
    ensure!(!output.contains("another host owns"), "{output}");
    let evener = Evener::start(first, &file)?;
    evener.wait_for_servers(2, LONG)?;
    // The doctor reports no foreign owner on the first director. On the second, its result agrees
    // with `run`.
    let output = doctor(first, &file)?;
    ensure!(!output.contains("another host owns"), "{output}");
    let output = doctor(second, &file)?;
    ensure!(output.contains("another host owns") && output.contains(first.mac()), "{output}");
    let (code, refused) = Evener::refused(second, &file, &[])?;
    ensure!(code == 4 && refused.contains("another host owns"), "{refused}");

    let secret = "[farm]\nsecret_file = \"/nonexistent/farm.key\"\ndirectors = [\"192.0.2.2\"]\n";
    let handoff = file::listed(engine, &farm, "method = \"handoff\"\nannounce = false\n") + secret;
    let output = doctor(second, &handoff)?;
    ensure!(output.contains("FAIL secret failed to read the farm's secret"), "{output}");
    // For such a service, the daemon adds the address to this host itself.
    let vip = farm.vip(0);
    second.ip(&[format!("addr add {vip}/32 dev lo")])?;
    let output = doctor(second, &handoff)?;
    ensure!(output.contains(&format!("{vip} is this host's own: `evener run` puts it here")), "{output}");
    ensure!(!output.contains("address del"), "{output}");
    Ok(())
}
