//! Takes the numbers of reasons from the C headers, which alone have them.

use std::path::PathBuf;
use std::{env, fs};

/// Header, prefix of its reasons, and type and file of their constants.
const HEADERS: [(&str, &str, &str, &str); 2] = [
    ("abi.h", "REASON_", "u8", "path_reasons.rs"),
    ("server/server.h", "SERVER_", "u32", "server_reasons.rs"),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bpf = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../bpf");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for (header, prefix, repr, file) in HEADERS {
        let header = bpf.join(header);
        println!("cargo:rerun-if-changed={}", header.display());
        let constants: String = fs::read_to_string(header)?
            .lines()
            .filter_map(|line| line.trim().strip_prefix(prefix)?.strip_suffix(',')?.split_once(" = "))
            .map(|(name, number)| format!("pub(super) const {name}: {repr} = {number};\n"))
            .collect();
        fs::write(out.join(file), constants)?;
    }
    Ok(())
}
