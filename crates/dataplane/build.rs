//! Compiles the C in `bpf/` and makes Rust types and constants from it.

use std::path::{Path, PathBuf};
use std::{env, fs};

use libbpf_cargo::SkeletonBuilder;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let bpf = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../bpf");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed={}", bpf.display());
    let rooms = format!("-I{}", bpf.display());
    // <asm/types.h> is in a folder of the host's architecture, which clang's BPF target doesn't
    // know.
    let include = format!("-I/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    for program in ["director/director", "director/director_tc", "server/server", "server/pending"] {
        let name = program.rsplit_once('/').map_or(program, |(_, name)| name);
        SkeletonBuilder::new()
            .source(bpf.join(format!("{program}.bpf.c")))
            .obj(out.join(format!("{name}.bpf.o")))
            .clang_args(["-O2", "-mcpu=v3", "-Wall", "-Werror", &rooms, &include])
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .map_err(|error| format!("{program}.bpf.c: {error:#}"))?;
    }
    write_numbers(&bpf.join("abi.h"), &out.join("abi.rs"))?;
    write_numbers(&bpf.join("server/pending_abi.h"), &out.join("pending.rs"))?;
    write_numbers(&bpf.join("server/server.h"), &out.join("server.rs"))
}

/// Writes the numeric macros and enums of a C header as Rust constants, except the reasons, which
/// core defines. BTF contains no macros.
fn write_numbers(header: &Path, to: &Path) -> Outcome {
    let mut numbers = String::new();
    let mut is_reason = false;
    for line in fs::read_to_string(header)?.lines() {
        let code = line.split("/*").next().unwrap_or_default().trim();
        if code.starts_with("enum ") {
            is_reason = code.contains("reason");
        } else if let Some((name, value)) =
            code.strip_prefix("#define ").and_then(|code| code.split_once(' '))
        {
            numbers += &format!("pub(crate) const {name}: u64 = {value};\n");
        } else if let Some((name, value)) =
            code.trim_end_matches(',').split_once(" = ").filter(|_| !is_reason)
        {
            numbers += &format!("pub(crate) const {name}: u64 = {value};\n");
        }
    }
    Ok(fs::write(to, numbers)?)
}
