//! Members whose URL would make the director send requests to another host.

use std::fs;

use anyhow::Result;
use evener_lab::farm::Farm;
use evener_lab::harness::wait;

use crate::stage::Stage;

#[test]
fn join_with_foreign_address_is_refused() -> Result<()> {
    let farm = Farm::builder().bare().servers(2).clients(2).build()?;
    let stage = Stage::start_with(farm, &[], "", "[service.group]\ninsecure = true\n")?;
    let [own, other] = [0, 1].map(|number| stage.farm.server(number).address());
    let director = stage.farm.director().address();
    for (line, status) in [
        ("http://127.0.0.1:9180 anonymous".to_owned(), 403),
        ("http://[::ffff:127.0.0.1]:9180 anonymous".to_owned(), 403),
        ("http://0.0.0.0:9180 anonymous".to_owned(), 403),
        ("http://[::]:9180 anonymous".to_owned(), 403),
        ("http://169.254.169.254 anonymous".to_owned(), 403),
        ("http://0x7f000001:9180 anonymous".to_owned(), 422),
        ("http://127.1:9180 anonymous".to_owned(), 422),
        (format!("http://{director}:9180 anonymous"), 403),
        (format!("http://{other}"), 403),
        (format!("http://{own} control=http://127.0.0.1:9180"), 403),
        (format!("http://{own}"), 201),
    ] {
        let (answered, why) = stage.tell(0, "GROUP-ADD", "", &line)?;
        assert_eq!(answered, status, "{line}: {why}");
    }
    Ok(())
}

#[test]
fn a_name_that_leads_elsewhere_later_is_down() -> Result<()> {
    let farm = Farm::builder().bare().servers(2).clients(2).build()?;
    let hosts = std::env::temp_dir().join(format!("evener-reach-{}.hosts", std::process::id()));
    let [own, other] = [0, 1].map(|number| farm.server(number).address());
    fs::write(&hosts, format!("{own} m1.test\n{other} m2.test\n"))?;
    // Only the daemon sees this file as /etc/hosts.
    let mount = format!("mount --bind {} /etc/hosts && exec \"$0\" \"$@\"", hosts.display());
    let before = ["unshare", "--mount", "sh", "-c", &mount];
    let group = "[service.group]\ninsecure = true\n";
    let stage = Stage::start_with(farm, &before, "", group)?;
    for name in ["m1", "m2"] {
        assert_eq!(stage.tell(0, "GROUP-ADD", "", &format!("http://{name}.test"))?.0, 201);
    }
    wait::until("the first is known to be where it joined from", || {
        Ok(stage.answer(&[], "/")?.1 == "http://m1.test/")
    })?;
    wait::until("the second is not", || Ok(stage.states()? == ["up", "down"]))?;
    for _ in 0..10 {
        assert_eq!(stage.answer(&[], "/")?.1, "http://m1.test/");
    }
    fs::write(&hosts, "127.0.0.1 m1.test\n")?;
    wait::until("nobody is sent there", || Ok(stage.answer(&[], "/")?.0 == "503"))?;
    Ok(fs::remove_file(hosts)?)
}
