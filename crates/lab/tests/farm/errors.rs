//! A refused order has one sentence and one exit code and changes nothing.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};

use anyhow::Result;
use evener_lab::evener::{self, Evener, left_on};
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};

use crate::{file, shares, split};

on_both_engines! { each_has_its_exit_code_and_sentence }

mod application_space {
    on_engine!(packet: one_capability_is_enough, a_user_namespace_is_enough);

    pub(super) use super::{a_user_namespace_is_enough, one_capability_is_enough};
}

/// Returns the only line of the output that is an error message.
fn sentence(output: &str) -> &str {
    let sentences: Vec<_> = output.lines().filter(|line| line.starts_with("evener: ")).collect();
    let [sentence] = sentences.as_slice() else { panic!("not one sentence: {output}") };
    sentence
}

fn each_has_its_exit_code_and_sentence(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(1).build()?;
    let director = farm.director();
    let good = file::listed(engine, &farm, "");
    let refused = |file: &str, before: &[&str]| Evener::refused(director, file, before);

    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let (code, output) = refused(&good, &nobody)?;
    assert!(code == 3 && sentence(&output).contains("ermission denied"), "{code}: {output}");
    let (code, output) = refused(&good, &["setpriv", "--bounding-set=-all", "--inh-caps=-all"])?;
    assert!(code == 3 && sentence(&output).contains("needs CAP_"), "{code}: {output}");

    let misspelt = good.replacen("[engine]\n", "[engine]\ninterfaces = [\"eht0\"]\n", 1);
    let (code, output) = refused(&misspelt, &[])?;
    assert!(code == 4 && sentence(&output).contains("did you mean \"eth0\"?"), "{code}: {output}");

    let (code, output) = refused(&good.replace("kind", "knid"), &[])?;
    assert!(code == 1 && output.contains("knid") && output.contains("kind"), "{code}: {output}");
    let program = evener::program()?;
    let missing = director.output(&[
        program.as_os_str(),
        "run".as_ref(),
        "--config".as_ref(),
        "/none.toml".as_ref(),
    ])?;
    let output = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(missing.status.code() == Some(1) && sentence(&output).contains("/none.toml"), "{output}");

    let _taken = director.enter(|| std::net::TcpListener::bind("127.0.0.1:9180"))??;
    let (code, output) = refused(&good, &[])?;
    assert!(code == 1 && sentence(&output).contains("admin interface"), "{code}: {output}");

    assert_eq!(left_on(director)?, [""; 0]);
    Ok(())
}

/// The capability that packet(7) requires, and an unprivileged user.
const RAW_ONLY: [&str; 7] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all,+net_raw",
    "--ambient-caps=-all,+net_raw",
    "--bounding-set=-all,+net_raw",
];

fn one_capability_is_enough(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let director = farm.director();
    let folder = director.file("run");
    fs::create_dir(&folder)?;
    chown(&folder, Some(65534), Some(65534))?;
    let run_dir = format!("EVENER_RUN_DIR={}", folder.display());
    let before = [&["env", &run_dir], &RAW_ONLY[..]].concat();
    // Probes need no further capability.
    let probed = "[service.health]\nkind = \"http\"\npath = \"/healthz\"\ninterval = \"400ms\"\nrise = 1\n";
    let file = file::listed(engine, &farm, "").replace(file::ALWAYS_UP, probed);
    let mut evener = Evener::start_by(director, &file, &before, &[])?;
    both_serve(&farm)?;
    evener.daemon().kill9()?;
    evener.start_again()?;
    both_serve(&farm)?;
    assert_eq!(evener.stop()?, 0);
    Ok(())
}

fn both_serve(farm: &Farm) -> Result<()> {
    wait::until("both servers were found", || Ok(shares(farm, 2)? == split([1, 1])))?;
    assert_eq!(shares(farm, 6)?, split([3, 3]));
    Ok(())
}

fn a_user_namespace_is_enough(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let director = farm.director();
    let file = file::listed(engine, &farm, "");
    let folder = director.file("run");
    fs::create_dir(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
    // An unprivileged user's network namespace that holds the director's interface.
    let mut holder = director.spawn(
        "holder",
        &["unshare", "--user", "--map-root-user", "--net", "sh", "-c", "echo here; exec sleep 600"],
    )?;
    holder.wait_for("here", LONG)?;
    let pid = holder.pid().to_string();
    let interface = &director.interfaces()[0];
    director.run(&["ip", "link", "set", &interface.name, "netns", &pid])?;
    let inside = ["nsenter", "--user", "--net", "--target", &pid];
    let (address, router) =
        (format!("{}/24", interface.address), farm.router().interfaces()[1].address.to_string());
    for words in [
        &["link", "set", "lo", "up"][..],
        &["address", "add", &address, "dev", &interface.name],
        &["link", "set", &interface.name, "up"],
        &["route", "add", "default", "via", &router],
    ] {
        director.run(&[&inside[..], &["ip"], words].concat())?;
    }
    let run_dir = format!("EVENER_RUN_DIR={}", folder.display());
    let mut evener = Evener::start_by(director, &file, &[&inside[..], &["env", &run_dir]].concat(), &[])?;
    both_serve(&farm)?;
    assert_eq!(evener.stop()?, 0);
    Ok(())
}
