//! The verifier's answer to all BPF programs, as they come from several compilers: for
//! `scripts/kernels`, which asks several kernels.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use evener_dataplane::xdp;

/// Half of the kernel's limit (`BPF_COMPLEXITY_LIMIT_INSNS`), so that the next change of the
/// verifier refuses nothing.
const INSTRUCTIONS_MAX: u32 = 500_000;
/// Programs that need a newer kernel than Evener itself, with that kernel's version and the reason.
const NEWER: [(&str, (u32, u32), &str); 1] = [("accept", (6, 9), "kfunc bpf_sk_assign_tcp_reqsk")];

/// Loads each program of each object in these folders, and prints a line for each with tabs between
/// the folder, the program, `passed`, `unsupported` or `failed`, and the number of verified
/// instructions or the reason. False if one failed.
pub fn print(folders: &[PathBuf]) -> Result<bool> {
    let kernel = running_kernel()?;
    let mut all_passed = true;
    for folder in folders {
        let compiler = folder.file_name().unwrap_or_default().to_string_lossy();
        for object in objects(folder)? {
            for answer in xdp::verify(&object)? {
                let newer = NEWER.iter().find(|(name, least, _)| *name == answer.program && kernel < *least);
                let (word, note) = match (answer.instructions, newer) {
                    (_, Some((_, (major, minor), reason))) => {
                        ("unsupported", format!("needs Linux {major}.{minor}: {reason}"))
                    }
                    (None, None) => ("failed", "refused by the verifier".to_owned()),
                    (Some(count), None) if count >= INSTRUCTIONS_MAX => {
                        ("failed", format!("{count} instructions, {INSTRUCTIONS_MAX} are too many"))
                    }
                    (Some(count), None) => ("passed", count.to_string()),
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

/// Major and minor version of the running kernel.
fn running_kernel() -> Result<(u32, u32)> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse().ok());
    let version = numbers.next().zip(numbers.next());
    version.with_context(|| format!("The kernel's release {release:?} has no version"))
}
