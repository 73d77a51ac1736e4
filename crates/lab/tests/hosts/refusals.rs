//! Invalid configurations are refused with the error and a remedy.

use anyhow::{Result, ensure};
use evener_lab::evener::{Evener, Plan, left_on};
use evener_lab::farm::Farm;

on_engine! { xdp: files_that_cannot_be_are_refused }

/// A change of a valid file, and texts that the error message must contain.
type Fault = (&'static str, fn(&str) -> String, &'static [&'static str]);

const FAULTS: [Fault; 6] = [
    ("the same name twice", |file| file.replace("\"web2\"", "\"web1\""), &["web1"]),
    (
        "an address that two publish",
        |file| file.replace("publish = \"192.0.2.101\"", "publish = \"192.0.2.100\""),
        &["192.0.2.100"],
    ),
    ("this host isn't in it", |file| file.replace("\"192.0.2.11\"", "\"192.0.2.44\""), &["this host"]),
    (
        "no secret",
        |file| file.lines().filter(|line| !line.contains("secret_file")).collect::<Vec<_>>().join("\n"),
        &["secret"],
    ),
    ("a secret that isn't there", |file| file.replace("farm.key", "lost.key"), &["lost.key"]),
    ("nat", |file| file.replace("\"l2\"", "\"nat\""), &["\"nat\"", "every host"]),
];

fn files_that_cannot_be_are_refused(engine: &str) -> Result<()> {
    let farm = Farm::builder().every_host(2).build()?;
    let secret = farm.server(0).file("farm.key");
    let program = evener_lab::evener::program()?.to_string_lossy().into_owned();
    farm.server(0).run(&[&program, "keygen", &secret.to_string_lossy()])?;
    let file = Plan::new(engine, crate::HASH, 2).file(&farm, &secret);
    for (fault, change, words) in FAULTS {
        let (code, output) = Evener::refused(farm.server(0), &change(&file), &[])?;
        ensure!(code != 0 && words.iter().all(|word| output.contains(word)), "{fault}: {code}: {output}");
        assert_eq!(left_on(farm.server(0))?, [""; 0], "{fault}");
    }
    // An existing secret is never overwritten: a new secret would break the farm's communication.
    let again = farm.server(0).output(&[&program, "keygen", &secret.to_string_lossy()])?;
    ensure!(!again.status.success(), "the secret was made again");
    Ok(())
}
