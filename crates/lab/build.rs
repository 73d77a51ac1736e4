//! Compiles the programs that measure what a packet costs, and the hop that directors are compared
//! with.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let (own, bpf) = (here.join("bpf"), here.join("../../bpf"));
    for folder in [&own, &bpf] {
        println!("cargo:rerun-if-changed={}", folder.display());
    }
    let rooms = format!("-I{}", bpf.display());
    // <asm/types.h> is in a folder of the host's architecture, which clang's BPF target doesn't
    // know.
    let include = format!("-I/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    // Programs that are shown leave frames as they made them, to be looked at.
    for (source, object, shown) in [
        ("bench.bpf.c", "bench.bpf.o", "-DSHOWN=0"),
        ("bench.bpf.c", "shown.bpf.o", "-DSHOWN=1"),
        ("hop.bpf.c", "hop.bpf.o", "-DSHOWN=0"),
    ] {
        SkeletonBuilder::new()
            .source(own.join(source))
            .obj(PathBuf::from(env::var("OUT_DIR")?).join(object))
            .clang_args(["-O2", "-mcpu=v3", "-Wall", "-Werror", shown, &rooms, &include])
            .build()
            .map_err(|error| format!("{source}: {error:#}"))?;
    }
    Ok(())
}
