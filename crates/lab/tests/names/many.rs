//! Drained servers of names, files with names, and the memory of many names.

use anyhow::{Context, Result};
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;

use crate::stage::{NAME, PORT, Stage, file};

/// Limit of memory for a name with two servers, in bytes.
const NAME_BYTES: u64 = 2_048;
/// Number of memory measurements.
const LOOKS: usize = 10;
const MANY: usize = 10_000;

#[test]
fn drained_server_is_not_answered_until_undrained() -> Result<()> {
    let mut stage = Stage::start(2, "")?;
    let (drained, other) = (stage.address(0), stage.address(1));
    let full = format!("{NAME}/{drained}");
    let output = stage.evener.command(&["drain", &full])?;
    assert!(output.contains("its address is no longer in answers"), "{output}");
    let is_drained = |stage: &Stage| -> Result<()> {
        assert!(stage.given(6)?.keys().eq([&other]));
        assert_eq!(stage.states()?[&drained], "draining");
        Ok(())
    };
    is_drained(&stage)?;
    assert!(stage.evener.command(&["drain", &full])?.contains("was draining already"));
    stage.evener.reload(&file(&stage.farm, "ttl = 7"))?;
    is_drained(&stage)?;
    stage.evener.daemon().kill9()?;
    stage.evener.start_again()?;
    is_drained(&stage)?;
    let output = stage.evener.command(&["drain", &format!("{NAME}/{other}")])?;
    assert!(output.contains("no other server of www.example.com works"), "{output}");
    stage.evener.command(&["undrain", &full])?;
    assert!(stage.given(6)?.keys().eq([&drained]));
    let (_, refused) = stage.evener.failure(&["drain", &format!("{NAME}/nobody")])?;
    assert!(refused.contains("has no server nobody"), "{refused}");
    Ok(())
}

#[test]
fn a_reload_reads_files_of_names_whole_or_not_at_all() -> Result<()> {
    let stage = Stage::start(1, "")?;
    let address = stage.address(0);
    let name = |name: &str| {
        format!(
            "[[dns.name]]\nname = \"{name}.example.com\"\nservers = \"{address}\"\nhealth.kind = \"none\"\n"
        )
    };
    let write = |file: &str, text: &str| stage.farm.director().write(file, text);
    let folder = write("a.names", &(name("a") + &name("b")))?;
    let folder = folder.parent().context("no folder")?.to_owned();
    let with = file(&stage.farm, "").replacen(
        "[dns]\n",
        &format!("[dns]\nnames_from = \"{}/*.names\"\n", folder.display()),
        1,
    );
    stage.evener.reload(&with)?;
    let given = |name: &str| stage.addresses(&[&format!("{name}.example.com")]);
    for known in ["a", "b", "www"] {
        assert_eq!(given(known)?.join(" "), address, "{known}");
    }
    write("b.names", &(name("c") + &name("a")))?;
    let refused = format!("{:#}", stage.evener.reload(&with).unwrap_err());
    assert!(
        refused.contains("b.names:6") && refused.contains("a.example.com is balanced twice"),
        "{refused}"
    );
    assert!(given("c")?.is_empty(), "nothing of it is in force");
    write("b.names", &name("c"))?;
    write("a.names", &name("b"))?;
    stage.evener.reload(&with)?;
    assert_eq!((given("c")?, given("a")?), (vec![address], vec![]));
    Ok(())
}

#[test]
fn a_name_with_two_servers_takes_no_more_than_2_kb() -> Result<()> {
    let taken = |names: usize| -> Result<u64> {
        let farm = Farm::builder().bare().servers(1).clients(1).build()?;
        let director = farm.director();
        let (listen, server) = (director.address(), farm.server(0).address());
        let mut text =
            format!("[dns]\nlisten = [\"{listen}:{PORT}\"]\n[[dns.zone]]\nname = \"example.com\"\n");
        for number in 0..names {
            text += &format!(
                "[[dns.name]]\nname = \"host{number}.example.com\"\nservers = [\"{server}\", \"198.51.100.{}\"]\n\
                 health.kind = \"none\"\n",
                number % 250 + 1
            );
        }
        let mut evener = Evener::start(director, &text)?;
        let mut least = u64::MAX;
        // The memory used during the start is released only later.
        for _ in 0..LOOKS {
            least = least.min(evener.daemon().memory()?);
            evener.status()?;
        }
        Ok(least)
    };
    let each = taken(MANY)?.saturating_sub(taken(1)?) / MANY as u64;
    assert!(each <= NAME_BYTES, "a name takes {each} bytes");
    Ok(())
}
