//! Compiles the programs that measure what a packet costs.

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
    // <asm/types.h> is in a folder of the host's architecture, which clang's BPF target doesn't know.
    let include = format!("-I/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    // The second leaves frames as the programs made them, to be looked at.
    for (object, shown) in [("bench.bpf.o", "-DSHOWN=0"), ("shown.bpf.o", "-DSHOWN=1")] {
        SkeletonBuilder::new()
            .source(own.join("bench.bpf.c"))
            .obj(PathBuf::from(env::var("OUT_DIR")?).join(object))
            .clang_args(["-O2", "-mcpu=v3", "-Wall", "-Werror", shown, &rooms, &include])
            .build()
            .map_err(|error| format!("bench.bpf.c: {error:#}"))?;
    }
    Ok(())
}
