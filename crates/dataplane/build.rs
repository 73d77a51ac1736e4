//! Compiles the C in `bpf/` and makes Rust types from it.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bpf = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../bpf");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed={}", bpf.display());
    let rooms = format!("-I{}", bpf.display());
    // <asm/types.h> is in a folder of the host's architecture, which clang's BPF target doesn't know.
    let include = format!("-I/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    for program in ["director/director", "director/director_tc", "director/bench", "server/server"] {
        let name = program.rsplit_once('/').map_or(program, |(_, name)| name);
        SkeletonBuilder::new()
            .source(bpf.join(format!("{program}.bpf.c")))
            .obj(out.join(format!("{name}.bpf.o")))
            .clang_args(["-O2", "-mcpu=v3", "-Wall", "-Werror", &rooms, &include])
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .map_err(|error| format!("{program}.bpf.c: {error:#}"))?;
    }
    Ok(())
}
