//! Changed files, and killed daemons.

use anyhow::Result;

use crate::stage::{NAME, Stage, file};

const ZONE: &str =
    "$TTL 60\n@ IN SOA ns host 1 2 3 4 5\n@ IN NS ns\nns IN A 192.0.2.53\nplain IN A 192.0.2.7\n";

/// Returns the stage's configuration with a zone of this text.
pub(crate) fn with_zone(stage: &Stage, text: &str) -> Result<String> {
    let path = stage.farm.director().write("example.zone", text)?;
    let named = format!("name = \"example.com\"\nfile = \"{}\"", path.display());
    Ok(file(&stage.farm, "").replace("name = \"example.com\"", &named))
}

#[test]
fn a_reload_brings_a_zone_whole_or_not_at_all() -> Result<()> {
    let stage = Stage::start(1, "")?;
    let plain = || stage.addresses(&["plain.example.com"]);
    assert!(plain()?.is_empty());
    stage.evener.reload(&with_zone(&stage, ZONE)?)?;
    assert_eq!(plain()?, ["192.0.2.7"]);
    assert_eq!(stage.addresses(&[NAME])?, [stage.address(0)]);
    for (text, why) in [
        (ZONE.replace("192.0.2.7", "192.0.2.700"), ":5:"),
        (ZONE.replace("@ IN SOA ns host 1 2 3 4 5", ""), "no SOA record"),
        (ZONE.to_owned() + "www IN A 192.0.2.9\n", "www.example.com has addresses in the zone file"),
        (ZONE.to_owned() + "plain IN CNAME ns\n", "plain.example.com has a CNAME record and other records"),
        (ZONE.to_owned() + "$INCLUDE other\n", "$INCLUDE"),
    ] {
        let refused = format!("{:#}", stage.evener.reload(&with_zone(&stage, &text)?).unwrap_err());
        assert!(refused.contains(why), "{refused}");
        assert_eq!(plain()?, ["192.0.2.7"], "the zone before stays");
    }
    let elsewhere = file(&stage.farm, "").replace(":5300", ":5301");
    stage.evener.reload(&elsewhere)?;
    assert!(stage.dig(&[NAME]).is_err(), "nobody is heard at the old address");
    assert_eq!(stage.addresses(&[NAME, "-p", "5301"])?, [stage.address(0)]);
    Ok(())
}

#[test]
fn first_answer_of_new_daemon_has_live_servers() -> Result<()> {
    let mut stage = Stage::start(2, "")?;
    stage.farm.stop_web(0)?;
    let alive = stage.address(1);
    for _ in 0..3 {
        stage.evener.daemon().kill9()?;
        stage.evener.start_again()?;
        let given = stage.given(4)?;
        // One failed probe does not mark a new server down, but the server is not answered before
        // its first success.
        assert!(given.keys().eq([&alive]), "{given:?}");
    }
    Ok(())
}
