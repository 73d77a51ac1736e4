//! Files that pages of the documentation show, as readers would copy them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Returns the block of a page below `docs/operating` that begins with this line.
pub(crate) fn block(page: &str, first: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating").join(page);
    let page = fs::read_to_string(path)?;
    let begin = page.find(&format!("\n{first}\n")).with_context(|| format!("no block of {first}"))? + 1;
    let text = &page[begin..];
    Ok(text[..text.find("```").context("the block has no end")?].to_owned())
}
