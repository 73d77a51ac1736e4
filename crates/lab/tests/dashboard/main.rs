//! The dashboard in a browser and `evener top` in a terminal, as a user operates them.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod browser;
mod farms;
mod listeners;
mod operating;
mod top;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use browser::Browser;

/// The page's URL on the daemon's host.
const PAGE: &str = "http://localhost:9180/";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Saves a picture for the manual if `EVENER_SCREENSHOTS` is set.
fn keep_picture(browser: &Browser, name: &str, width: u32, height: u32) -> Result<()> {
    if std::env::var_os("EVENER_SCREENSHOTS").is_none() {
        return Ok(());
    }
    browser.screenshot(&repository().join("docs/operating/img").join(name), width, height)
}

/// Checks that a page of 390 pixels, as wide as a telephone's, cuts nothing off. `name` is that of
/// a picture below the target directory.
fn check_narrow(browser: &Browser, name: &str) -> Result<()> {
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    browser.screenshot(&picture, 390, 3000)?;
    let script = "return [...document.querySelectorAll('header *, nav *, main *')]
        .filter((node) => node.checkVisibility() && !node.closest('svg, thead, .unseen'))
        .filter((node) => node.getBoundingClientRect().right > innerWidth + 1)
        .map((node) => node.outerHTML.slice(0, 120))";
    let cut = browser.script(script)?;
    ensure!(cut.as_array().is_some_and(Vec::is_empty), "{}: {cut:#}", picture.display());
    Ok(())
}

/// Checks the page with axe-core.
fn check_accessibility(browser: &Browser) -> Result<()> {
    let libraries = repository().join("target/tools/python/lib");
    let versions = std::fs::read_dir(libraries).into_iter().flatten().flatten();
    let mut programs =
        versions.map(|version| version.path().join("site-packages/axe_playwright_python/axe.min.js"));
    let program = programs.find(|path| path.exists());
    let program = program.context("There is no axe-core in target/tools: run `make setup-tests`")?;
    browser.script(&std::fs::read_to_string(program)?)?;
    let script = "const done = arguments[arguments.length - 1];
        axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => done(violations.map((one) =>
            one.id + ': ' + one.nodes.map((node) => node.html.slice(0, 160) + ' ' + node.failureSummary).join('; '))))";
    let violations = browser.script_later(script)?;
    ensure!(violations.as_array().is_some_and(Vec::is_empty), "{violations:#}");
    Ok(())
}
