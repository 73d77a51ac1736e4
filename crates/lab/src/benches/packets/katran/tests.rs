//! Tests without Katran's source. A balancer with the same maps replaces it and drops all packets.

use std::sync::Arc;

use super::super::subject::Subject;
use super::super::{Bench, Kind, Surroundings, VIP, tables};
use super::*;
use crate::harness::engines;

const DROPS: &str = include_str!("drops.bpf.c");

/// Temporary folder, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Folder> {
        let folder = env::temp_dir().join(format!("evener-lab-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Folder(folder))
    }

    /// Creates a folder with these files at the paths of Katran's.
    fn with(name: &str, balancer: &str) -> Result<Folder> {
        let folder = Folder::new(name)?;
        for part in PARTS {
            fs::create_dir_all(folder.0.join(part))?;
        }
        fs::write(folder.0.join(BALANCER), balancer)?;
        fs::write(folder.0.join("katran/lib/linux_includes/bpf.h"), "#include <linux/bpf.h>\n")?;
        Ok(folder)
    }

    fn git(&self, words: &[&str]) -> Result<()> {
        let who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"];
        let done = Command::new("git").arg("-C").arg(&self.0).args(who).args(words).output()?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn refusal(folder: &Path) -> Result<String> {
    let Err(error) = Source::build(folder) else { bail!("{} was built", folder.display()) };
    Ok(format!("{error:#}"))
}

#[test]
fn a_folder_without_the_source_is_refused_in_a_sentence() -> Result<()> {
    let nothing = Folder::new("nothing")?;
    for folder in [nothing.0.as_path(), Path::new("/nowhere")] {
        let output = refusal(folder)?;
        assert!(output.contains("has neither katran/lib/bpf/balancer.bpf.c nor a commit"), "{output}");
    }
    Ok(())
}

#[test]
fn other_repository_is_refused_with_sentence() -> Result<()> {
    let other = Folder::new("other")?;
    fs::write(other.0.join("file"), "")?;
    other.git(&["init", "--quiet"])?;
    other.git(&["add", "."])?;
    other.git(&["commit", "--quiet", "-m", "it"])?;
    for folder in [other.0.clone(), other.0.join(".git")] {
        let output = refusal(&folder)?;
        assert!(output.contains("has no katran/lib/bpf") && output.contains(KNOWN), "{output}");
    }
    Ok(())
}

#[test]
fn source_that_clang_refuses_is_named_in_a_sentence() -> Result<()> {
    let broken = Folder::with("broken", "#include \"not/there.h\"\n")?;
    let output = refusal(&broken.0)?;
    assert!(output.contains("can't be built") && output.contains("not/there.h"), "{output}");
    assert!(!output.contains('\n'), "{output}");
    Ok(())
}

#[test]
fn checkout_builds_its_commit_despite_local_files() -> Result<()> {
    let checkout = Folder::with("checkout", DROPS)?;
    checkout.git(&["init", "--quiet"])?;
    checkout.git(&["add", "."])?;
    checkout.git(&["commit", "--quiet", "-m", "it"])?;
    fs::write(checkout.0.join(BALANCER), "neither here nor there")?;
    let bare = checkout.0.join(".git");
    for folder in [&checkout.0, &bare] {
        let source = Source::build(folder)?;
        assert_eq!(source.commit.as_deref().map(str::len), Some(40));
        let made = source.folder.clone();
        assert!(made.join("measured.o").is_file());
        drop(source);
        assert!(!made.exists());
    }
    Ok(())
}

#[test]
fn packets_that_are_not_forwarded_are_not_measured() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let folder = Folder::with("drops", DROPS)?;
    let source = Source::build(&folder.0)?;
    assert_eq!(source.commit, None);
    let surroundings = Surroundings::new()?;
    let output = surroundings.netns.enter(|| {
        let mut bench = Bench::new(4096, &Arc::new(tables(Kind::Link)), VIP, Some(&source))?;
        Ok::<_, anyhow::Error>(
            bench.open(Subject::Katran, 16).err().map(|error| error.to_string()).unwrap_or_default(),
        )
    })??;
    assert!(output.contains("the last of 16 packets met verdict 1"), "{output}");
    Ok(())
}
