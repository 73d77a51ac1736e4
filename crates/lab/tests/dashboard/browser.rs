//! Headless Chromium, controlled by WebDriver (<https://www.w3.org/TR/webdriver2/>).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use evener_lab::harness::process::Proc;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::host::Host;
use serde_json::{Value, json};

const PORT: u16 = 9515;
/// The JSON key of an element id.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one page, on a host. Dropping this value stops the browser.
pub(crate) struct Browser {
    host: Host,
    driver: Proc,
    session: String,
}

impl Browser {
    pub(crate) fn start(host: &Host) -> Result<Browser> {
        let port = format!("--port={PORT}");
        let home = host.file("browser");
        std::fs::create_dir_all(&home)?;
        let mut driver =
            host.spawn("chromedriver", &["env", &format!("HOME={}", home.display()), "chromedriver", &port])?;
        driver.wait_until_listening(host, address())?;
        let folder = format!("--user-data-dir={}", home.join("profile").display());
        // As root, Chromium has no sandbox. The page contains only this farm's data.
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            // Prevents name lookups, which would wait for a name server.
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--force-color-profile=srgb",
            "--window-size=1280,960",
            &folder,
        ];
        let capabilities = json!({"alwaysMatch": {"goog:chromeOptions": {"args": arguments}}});
        let mut browser = Browser { host: host.clone(), driver, session: String::new() };
        let answer = browser.send("POST", "/session", &json!({ "capabilities": capabilities }))?;
        let session = answer["sessionId"].as_str().context("The browser has no session")?;
        browser.session = format!("/session/{session}");
        Ok(browser)
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let mut stream = self.host.enter(|| TcpStream::connect(address()))??;
        stream.set_read_timeout(Some(LONG))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost:{PORT}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )?;
        let (mut reader, mut length, mut line) = (BufReader::new(stream), 0, String::new());
        while reader.read_line(&mut line)? > 2 {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
            line.clear();
        }
        let mut text = vec![0; length];
        reader.read_exact(&mut text)?;
        let mut answer: Value = serde_json::from_slice(&text)?;
        let value = answer["value"].take();
        ensure!(value["error"].is_null(), "{method} {path}: {}: {}", value["error"], value["message"]);
        Ok(value)
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.send("POST", &format!("{}{path}", self.session), body)
    }

    pub(crate) fn open(&self, url: &str) -> Result<()> {
        self.post("/url", &json!({ "url": url })).map(drop)
    }

    /// Returns the value of a script that ends with `return`.
    pub(crate) fn script(&self, script: &str) -> Result<Value> {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Returns the value that a script passes to its callback, the last argument.
    pub(crate) fn script_later(&self, script: &str) -> Result<Value> {
        self.post("/execute/async", &json!({"script": script, "args": []}))
    }

    fn element(&self, selector: &str) -> Result<String> {
        let found = self.post("/element", &json!({"using": "css selector", "value": selector}))?;
        Ok(found[ELEMENT].as_str().context("no element")?.to_owned())
    }

    /// Clicks an element as a user does: the element must be visible and not covered.
    pub(crate) fn click(&self, selector: &str) -> Result<()> {
        let element = self.element(selector)?;
        self.post(&format!("/element/{element}/click"), &json!({})).map(drop)
    }

    /// Clicks a button with this text within an element.
    pub(crate) fn press(&self, within: &str, text: &str) -> Result<()> {
        let script = format!(
            "return [...document.querySelectorAll({})].find((one) => one.textContent.startsWith({}))",
            json!(format!("{within} button")),
            json!(text)
        );
        let found = self.script(&script)?;
        let element = found[ELEMENT].as_str().with_context(|| format!("There is no button {text:?}"))?;
        self.post(&format!("/element/{element}/click"), &json!({})).map(drop)
    }

    /// Replaces the text of a field.
    pub(crate) fn type_in(&self, selector: &str, text: &str) -> Result<()> {
        let element = self.element(selector)?;
        self.post(&format!("/element/{element}/clear"), &json!({}))?;
        self.post(&format!("/element/{element}/value"), &json!({ "text": text })).map(drop)
    }

    /// Returns the visible text of an element, or an empty text if there is no such element.
    pub(crate) fn text(&self, selector: &str) -> Result<String> {
        let script = format!("return document.querySelector({})?.innerText ?? ''", json!(selector));
        Ok(self.script(&script)?.as_str().unwrap_or_default().to_owned())
    }

    /// Waits until an element's visible text contains `text`.
    pub(crate) fn wait_for(&self, selector: &str, text: &str) -> Result<String> {
        let contains = |found: &String| found.contains(text);
        match wait::for_value(LONG, || self.text(selector), contains)? {
            Ok(found) => Ok(found),
            Err(found) => bail!("{selector} does not show {text:?}, but {found:?}"),
        }
    }

    /// Waits until a script returns true.
    pub(crate) fn wait_until(&self, script: &str) -> Result<()> {
        wait::until(script, || Ok(self.script(&format!("return {script}"))? == json!(true)))
    }

    pub(crate) fn command(&self, name: &str, parameters: &Value) -> Result<Value> {
        self.post("/goog/cdp/execute", &json!({"cmd": name, "params": parameters}))
    }

    /// Saves a picture of the top part of the page, in pixels.
    pub(crate) fn screenshot(&self, file: &Path, width: u32, height: u32) -> Result<()> {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.command("Emulation.setDeviceMetricsOverride", &metrics)?;
        self.script("document.activeElement.blur(); scrollTo(0, 0)")?;
        let answer = self.command("Page.captureScreenshot", &json!({"format": "png"}))?;
        let text = self.host.write("screenshot.txt", answer["data"].as_str().context("no picture")?)?;
        let command = format!("base64 -d {} >{}", text.display(), file.display());
        self.host.run(&["sh", "-c", &command]).map(drop)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Without the end of the session, Chromium's processes outlive the driver.
        let _ = self.send("DELETE", &self.session, &Value::Null);
        // A regular exit takes many seconds.
        let _ = self.driver.kill9();
    }
}

fn address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, PORT).into()
}
