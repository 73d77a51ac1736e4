//! Tokens, roles, changes and lost connections. The daemon has a server group and no privileges.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Result, ensure};
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::harness::wait;
use serde_json::json;

use crate::browser::Browser;
use crate::{PAGE, check_accessibility};

const READER: &str = "reader-reader-reader";
const OPERATOR: &str = "operator-operator-0";
/// Names with markup, quotes and right-to-left letters.
const NAMES: [&str; 2] = ["<script>document.title='x'<b>", "\"quotes'&\u{5e9}\u{5dc}\u{5d5}\u{5dd}"];

fn start() -> Result<(Farm, Evener, Browser)> {
    let farm = Farm::builder().bare().servers(2).clients(1).build()?;
    let director = farm.director();
    let tokens = director.write("tokens", &format!("{READER}\n{OPERATOR} operate oscar\n"))?;
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600))?;
    let address = SocketAddr::from((director.address(), 8000));
    let mut file = format!(
        "[admin]\nlisten = \"127.0.0.1:9180\"\ntoken_file = \"{}\"\n\n[[service]]\nname = \"shop\"\naddress = \"{address}\"\n\
         method = \"redirect\"\n[service.health]\nkind = \"http\"\npath = \"/healthz\"\ninterval = \"300ms\"\n\
         timeout = \"200ms\"\n",
        tokens.display()
    );
    for (name, host) in NAMES.iter().zip(farm.servers()) {
        file += &format!("[[service.server]]\nname = {}\nurl = \"http://{}\"\n", json!(name), host.address());
    }
    let evener = Evener::start(director, &file)?;
    evener.wait_for_servers(2, evener_lab::harness::wait::LONG)?;
    let browser = Browser::start(director)?;
    browser.open(PAGE)?;
    Ok((farm, evener, browser))
}

fn sign_in(browser: &Browser, token: &str) -> Result<()> {
    browser.type_in("#token", token)?;
    browser.press("#sign-in-form", "Show the farm")
}

/// Opens the details of a server.
fn details(browser: &Browser, number: usize) -> Result<()> {
    browser.click(&format!("#servers-table tbody tr:nth-child({number}) button"))
}

#[test]
fn person_signs_in_operates_the_farm_and_sees_what_becomes_of_it() -> Result<()> {
    let (mut farm, mut evener, browser) = start()?;
    browser.wait_for("#sign-in", "Send a token")?;
    check_accessibility(&browser)?;
    sign_in(&browser, "wrong-wrong-wrong-00")?;
    browser.wait_for("#sign-in", "The token is not one")?;
    sign_in(&browser, READER)?;
    browser.wait_for("#who", "role read")?;
    browser.wait_for("#servers-table tbody", NAMES[0])?;
    browser.wait_for("#servers-table tbody", NAMES[1])?;
    let page = browser.script("return [document.title, document.scripts.length, location.href]")?;
    assert_eq!(page, json!(["Evener", 1, PAGE]), "names are texts, and the token is in no URL");

    // With the role `read`, orders are refused.
    details(&browser, 1)?;
    browser.wait_for("#dialog", "Your role here is read")?;
    check_accessibility(&browser)?;
    browser.press("#dialog", "Drain")?;
    browser.wait_for("#dialog .answer", "requires role operate")?;
    browser.press("#dialog", "Leave it as it is")?;
    browser.click("#sign-out")?;
    browser.wait_for("#sign-in", "Send a token")?;
    sign_in(&browser, OPERATOR)?;
    browser.wait_for("#who", "oscar, role operate")?;

    change_and_undo(&browser)?;

    farm.stop_web(1)?;
    browser.wait_for("#attention", "down")?;
    browser.wait_for("#servers-table tbody", "connection refused")?;
    browser.wait_for("#picture", "down")?;
    browser.wait_for("#events-list", "warning")?;
    for theme in ["light", "dark"] {
        browser.wait_until(&format!("(document.documentElement.dataset.theme === '{theme}') || (document.getElementById('theme').click(), false)"))?;
        check_accessibility(&browser)?;
    }
    farm.start_web(1)?;
    browser.wait_until("document.getElementById('attention').hidden")?;

    evener.daemon().kill9()?;
    browser.wait_for("#connection-text", "Connection lost")?;
    browser.wait_for("#banner", "What is shown is old")?;
    evener.start_again()?;
    browser
        .press("#banner", "Try now")
        .or_else(|_| browser.wait_for("#connection-text", "Live").map(drop))?;
    browser.wait_for("#connection-text", "Live")?;
    browser.wait_for("#events-list", "attached")?;
    Ok(())
}

fn change_and_undo(browser: &Browser) -> Result<()> {
    details(browser, 1)?;
    browser.press("#dialog", "Drain")?;
    browser.wait_for("#dialog", "state")?;
    browser.wait_until("!document.getElementById('confirm').disabled")?;
    let before = browser.text("#servers-table tbody tr:first-child")?;
    ensure!(before.contains("● up"), "nothing is changed before it is confirmed: {before}");
    browser.click("#confirm")?;
    browser.wait_for("#dialog .answer", "drain")?;
    browser.press("#dialog", "Close")?;
    browser.wait_for("#servers-table tbody tr:first-child", "draining")?;
    browser.wait_for("#changes-list", "oscar")?;

    details(browser, 1)?;
    browser.type_in("#weight", "7")?;
    browser.press("#dialog", "Change the weight")?;
    browser.wait_until("!document.getElementById('confirm').disabled")?;
    browser.click("#confirm")?;
    browser.wait_for("#dialog .answer", "7")?;
    browser.press("#dialog", "Close")?;
    browser.wait_for("#servers-table tbody tr:first-child", "weight 7; the file sets none")?;
    for _ in 0..2 {
        browser.wait_until("!document.getElementById('undo').disabled")?;
        let changes = browser.script("return document.querySelectorAll('#changes-list li').length")?;
        browser.click("#undo")?;
        browser.wait_until("!document.getElementById('confirm').disabled")?;
        browser.click("#confirm")?;
        browser.wait_until("document.getElementById('confirm').hidden")?;
        browser.press("#dialog", "Close")?;
        browser.wait_until(&format!("document.querySelectorAll('#changes-list li').length < {changes}"))?;
    }
    browser.wait_for("#servers-table tbody tr:first-child", "● up").map(drop)
}

/// Like a laptop in sleep: no script runs, and the stream stays open.
#[test]
fn page_that_slept_shows_the_farm_as_it_is_when_it_wakes() -> Result<()> {
    let (mut farm, evener, browser) = start()?;
    sign_in(&browser, READER)?;
    browser.wait_for("#connection-text", "Live")?;
    browser.script("document.addEventListener('freeze', () => { window.hasSlept = true })")?;
    browser.command("Page.setWebLifecycleState", &json!({"state": "frozen"}))?;
    farm.stop_web(1)?;
    wait::until("the server is down", || Ok(evener.servers()?.iter().any(|server| server.state == "down")))?;
    browser.command("Page.setWebLifecycleState", &json!({"state": "active"}))?;
    browser.wait_for("#servers-table tbody", "connection refused")?;
    browser.wait_for("#connection-text", "Live")?;
    assert_eq!(browser.script("return window.hasSlept")?, json!(true));
    Ok(())
}
