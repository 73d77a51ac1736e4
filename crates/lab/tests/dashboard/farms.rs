//! Farms of each method, and a large farm, on the dashboard.

use std::time::Duration;

use anyhow::{Result, ensure};
use evener_lab::evener::{Evener, Handoff, Offer, Plan, Team, groups, web_service, web_service_by};
use evener_lab::farm::{Farm, WEB_PORT};
use evener_lab::harness::wait::LONG;
use evener_lab::workloads::load::{Load, Running};
use serde_json::json;

use crate::browser::Browser;
use crate::{PAGE, check_narrow, keep_picture};

/// Starts clients that connect again and again.
fn visitors(farm: &Farm, target: std::net::SocketAddr) -> Running {
    let load = Load {
        path: "/2k".to_owned(),
        connections: 4,
        keep_alive: false,
        pause: Duration::from_millis(20),
        ..Load::to(target)
    };
    load.start_on(farm.client(0))
}

/// Opens the page and waits until it shows rates.
fn open(browser: &Browser) -> Result<()> {
    browser.open(PAGE)?;
    browser.wait_for("#connection-text", "Live")?;
    browser.wait_until("[...document.querySelectorAll('#services-table td.number div')].some((one) => /[1-9]/.test(one.textContent))")
}

/// Waits until the rate charts have some points, if a picture is saved.
fn let_lines_grow(browser: &Browser) -> Result<()> {
    if std::env::var_os("EVENER_SCREENSHOTS").is_none() {
        return Ok(());
    }
    let points = "document.querySelector('#figures path').getAttribute('d').split('L').length";
    browser.wait_until(&format!("{points} >= 12"))
}

#[test]
fn page_shows_traffic_of_an_l2_farm_and_explains_it() -> Result<()> {
    let mut farm = Farm::builder().servers(4).clients(1).build()?;
    let evener = Evener::start(farm.director(), &web_service(&farm, 0, "auto"))?;
    evener.wait_for_servers(4, LONG)?;
    let running = visitors(&farm, farm.service());
    let browser = Browser::start(farm.director())?;
    open(&browser)?;
    browser.wait_for("#ways", "replies go from the server straight to the client")?;
    browser.wait_for("#packets-table", "Sent to a server.")?;
    browser.type_in("#explain-client", "198.51.100.7")?;
    browser.press("#explain-form", "Explain")?;
    browser.wait_for("#explain-answer", "is service web")?;
    browser.type_in("#trace-client", &farm.client(0).address().to_string())?;
    browser.press("#trace-form", "Trace")?;
    browser.wait_for("#trace-text", "requires role operate")?;
    farm.stop_web(3)?;
    evener.command(&["weight", "web/web2", "3"])?;
    browser.wait_for("#picture", "down: ")?;
    browser.wait_for("#servers-table", "weight 3; the file sets none")?;
    let_lines_grow(&browser)?;
    keep_picture(&browser, "l2.png", 1280, 1400)?;
    check_narrow(&browser, "l2-narrow.png")?;
    running.stop().map(drop)
}

#[test]
fn page_shows_hosts_with_their_addresses_and_one_that_is_silent() -> Result<()> {
    let keys = "method = \"l2\"\npolicy = \"hash\"\n";
    let mut team = Team::start(Farm::builder().every_host(3).build()?, Plan::new("auto", keys, 3))?;
    let service = (team.farm.own_vip(team.plan.family, 0), WEB_PORT).into();
    let running = visitors(&team.farm, service);
    let browser = Browser::start(team.farm.server(0))?;
    open(&browser)?;
    browser.wait_for("#hosts-table", "this host")?;
    browser.wait_for("#ways", "any host takes a request to the host that serves it")?;
    team.hosts[2].daemon().kill9()?;
    browser.wait_for("#hosts-table", "silent")?;
    browser.wait_for("#attention", "is silent")?;
    let_lines_grow(&browser)?;
    keep_picture(&browser, "every-host.png", 1280, 1250)?;
    running.stop().map(drop)
}

#[test]
fn page_shows_a_handoff_farm_and_shares_of_a_name() -> Result<()> {
    let farm = Farm::builder().bare().servers(3).clients(1).build()?;
    let director = farm.director().address();
    let servers: Vec<String> = farm.servers().iter().map(|server| server.address().to_string()).collect();
    let name = format!(
        "[dns]\nlisten = [\"{director}:5300\"]\n[[dns.zone]]\nname = \"example.com\"\n[[dns.name]]\n\
         name = \"www.example.com\"\nservers = {servers:?}\n[dns.name.health]\nkind = \"http\"\npath = \"/healthz\"\n\
         interval = \"500ms\"\ntimeout = \"400ms\"\n"
    );
    let offer = Offer { routes: name, ..Offer::new("auto", 3, &[]) };
    let handoff = Handoff::start(farm, offer)?;
    let farm = &handoff.farm;
    let running = visitors(farm, farm.service());
    let ask =
        format!("while :; do dig +norecurse +tries=1 @{director} -p 5300 www.example.com A; sleep 0.1; done");
    let _queries = farm.client(0).spawn("queries", &["sh", "-c", &ask])?;
    let browser = Browser::start(farm.director())?;
    open(&browser)?;
    browser.wait_for("#ways", "the connection is handed to the server")?;
    browser.wait_for("#names-table", "33 %")?;
    browser.wait_until(
        "document.querySelector('#names-table svg.checks').getAttribute('aria-label').includes('good')",
    )?;
    let_lines_grow(&browser)?;
    browser.wait_until("document.documentElement.dataset.theme === 'dark' || (document.getElementById('theme').click(), false)")?;
    keep_picture(&browser, "handoff-dark.png", 1280, 1450)?;
    browser.script("const select = document.getElementById('picture-service'); select.selectedIndex = 1; select.dispatchEvent(new Event('change'))")?;
    browser.wait_for("#picture", "Name server")?;
    browser.script("document.getElementById('theme').click()")?;
    keep_picture(&browser, "names-narrow.png", 480, 1100)?;
    check_narrow(&browser, "names-narrow.png")?;
    running.stop().map(drop)
}

#[test]
fn page_draws_replies_of_nat_through_the_director_and_of_tunnels_past_it() -> Result<()> {
    let farm = Farm::builder().bare().servers(2).clients(1).vips(2).build()?;
    let nat = web_service_by(&farm, 0, "auto", "method = \"nat\"\nsource_nat = true\n");
    let directors = format!("[farm]\ndirectors = [\"{}\"]\n", farm.director().address());
    let tunnel = format!(
        "\n[[service]]\nname = \"far\"\naddress = \"{}:{WEB_PORT}\"\nmethod = \"tunnel\"\nhealth.kind = \"none\"\n",
        farm.vip(1)
    );
    let servers =
        farm.servers().iter().map(|host| format!("[[service.server]]\naddress = \"{}\"\n", host.address()));
    let file = directors + &nat + &tunnel + &servers.collect::<String>();
    let evener = Evener::start(farm.director(), &file)?;
    evener.wait_for_servers(4, LONG)?;
    let running = visitors(&farm, farm.service());
    let browser = Browser::start(farm.director())?;
    open(&browser)?;
    browser.wait_for("#ways", "web: replies come back through the director")?;
    browser.wait_for(
        "#ways",
        "far: requests come by a tunnel, and replies go from the server straight to the client",
    )?;
    // From each server to the director, and from the director to the clients.
    let replies = "[...document.querySelectorAll('#picture path.reply')].filter((path) => !path.classList.contains('idle')).length";
    browser.wait_until(&format!("{replies} === 3"))?;
    browser.script("const select = document.getElementById('picture-service'); select.selectedIndex = 1; select.dispatchEvent(new Event('change'))")?;
    browser.wait_until("document.querySelectorAll('#picture path.reply').length === 2")?;
    running.stop().map(drop)
}

#[test]
fn page_of_4096_servers_is_filtered_sorted_and_paged() -> Result<()> {
    let farm = Farm::builder().bare().servers(1).clients(1).build()?;
    let director = farm.director();
    let _evener = Evener::start(director, &groups(&farm, 16, 256, "20s"))?;
    let browser = Browser::start(director)?;
    browser.open(PAGE)?;
    browser.wait_for("#count", "4,096 servers")?;
    let rows = "document.querySelectorAll('#servers-table tbody tr').length";
    browser.wait_until(&format!("{rows} === 100"))?;
    browser.press("#pages", "Next page")?;
    browser.wait_for("#servers-table tbody tr:first-child", "m0100")?;
    browser.type_in("#filter", "m409")?;
    browser.wait_for("#count", "6 of 4,096 servers")?;
    browser.wait_until(&format!("{rows} === 6"))?;
    browser.press("#servers-table thead", "Server")?;
    browser.wait_for("#servers-table tbody tr:first-child", "m4095")?;
    browser.type_in("#filter", "nothing-like-this")?;
    browser.wait_until(&format!("{rows} === 0"))?;
    browser.script("const field = document.getElementById('filter'); field.value = ''; field.dispatchEvent(new Event('input'))")?;
    measure(&browser)?;
    // A page of an older version in a browser whose clock is wrong by years.
    let script = "Date.now = () => 4e12; new MutationObserver(() => {
            const version = document.querySelector('meta[name=evener-version]');
            if (version && version.content !== '0.0.1') version.content = '0.0.1';
        }).observe(document, { childList: true, subtree: true });";
    browser.command("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": script }))?;
    browser.open(PAGE)?;
    browser.wait_for("#banner", "this page of 0.0.1")?;
    let ages = browser.text("#events-list")?;
    ensure!(ages.contains(" ago") && !ages.contains("days"), "ages are by the daemon's clock: {ages}");
    Ok(())
}

/// Prints the time to the first paint and the time per frame.
fn measure(browser: &Browser) -> Result<()> {
    if std::env::var_os("EVENER_SCREENSHOTS").is_none() {
        return Ok(());
    }
    let paint = browser.script(
        "return [performance.getEntriesByName('first-contentful-paint')[0].startTime, Number(document.body.dataset.first)]",
    )?;
    let frames = browser.script_later(
        "const done = arguments[0], found = []; let last = 0; const timer = setInterval(() => {
             const { frame, refresh } = document.body.dataset;
             if (frame !== last) { last = frame; found.push(Number(refresh)); }
             if (found.length === 8) { clearInterval(timer); done(found); }
         }, 50)",
    )?;
    eprintln!("ms until the first paint, and with the farm: {paint}; refresh in ms: {frames}");
    ensure!(frames != json!(null));
    Ok(())
}
