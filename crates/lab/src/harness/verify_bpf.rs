//! Verifies all BPF programs from several compilers, for `scripts/kernels`, which runs this on
//! several kernels.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use evener_dataplane::requirements::HANDOFF;
use evener_dataplane::xdp;

/// Half of the kernel's limit (`BPF_COMPLEXITY_LIMIT_INSNS`), as a reserve for changes of the
/// verifier.
const INSTRUCTIONS_MAX: u32 = 500_000;

/// Loads each program of each object in these folders and prints a line for each. The line has the
/// folder, the program, `passed`, `unsupported` or `failed`, and the number of verified
/// instructions or the reason, separated by tabs. Returns false if one failed.
pub fn print(folders: &[PathBuf]) -> Result<bool> {
    let has_handoff = HANDOFF.is_met()?;
    let mut all_passed = true;
    for folder in folders {
        let compiler = folder.file_name().unwrap_or_default().to_string_lossy();
        for object in objects(folder)? {
            for answer in xdp::verify(&object)? {
                let (word, note) = match answer.instructions {
                    _ if answer.program == "accept" && !has_handoff => {
                        let (major, minor) = HANDOFF.since;
                        ("unsupported", format!("needs {} of Linux {major}.{minor}", HANDOFF.function))
                    }
                    Err(error) => ("failed", error.to_string()),
                    Ok(count) if count >= INSTRUCTIONS_MAX => {
                        ("failed", format!("{count} instructions, {INSTRUCTIONS_MAX} are too many"))
                    }
                    Ok(count) => ("passed", count.to_string()),
                };
                all_passed &= word != "failed";
                println!("{compiler}\t{}\t{word}\t{note}", answer.program);
            }
        }
    }
    Ok(all_passed)
}

fn objects(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("Reading {} failed", folder.display()))?;
    let mut objects: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    objects.retain(|path| path.to_string_lossy().ends_with(".bpf.o"));
    objects.sort();
    Ok(objects)
}
