//! Finds other installations of Evener on this host. A shell or systemd may use another
//! installation than the upgraded one.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::views::Finding;

/// Usual folders of programs, in a shell's order, independent of PATH.
const PROGRAMS: [&str; 4] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];
/// Unit folders of systemd, in its order.
const UNITS: [&str; 4] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
];
const UNIT_NAMES: [&str; 2] = ["evener.service", "evener-agent.service"];

/// Returns notes on other installations.
pub(super) fn findings() -> Vec<Finding> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(PROGRAMS.map(PathBuf::from));
    let programs = found(folders.map(|folder| folder.join("evener")));
    let units = UNIT_NAMES.map(|name| found(UNITS.iter().map(|folder| Path::new(folder).join(name))));
    programs_shadow(&programs)
        .into_iter()
        .chain(units.iter().filter_map(|units| unit_shadows(units)))
        .collect()
}

/// Returns the existing files, without duplicates through links.
fn found(paths: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    for file in paths.filter_map(|path| fs::canonicalize(path).ok()).filter(|path| path.is_file()) {
        if !files.contains(&file) {
            files.push(file);
        }
    }
    files
}

fn names(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" and ")
}

fn programs_shadow(programs: &[PathBuf]) -> Option<Finding> {
    let [first, _, ..] = programs else {
        return None;
    };
    let message = format!(
        "There are {}: a shell runs {}; remove what you don't want, by `make uninstall` or as a package.",
        names(programs),
        first.display()
    );
    Some(Finding::warn("installs", message))
}

fn unit_shadows(units: &[PathBuf]) -> Option<Finding> {
    let [first, _, ..] = units else {
        return None;
    };
    let text = fs::read_to_string(first).unwrap_or_default();
    let command = text.lines().find_map(|line| line.strip_prefix("ExecStart="));
    let program = command.and_then(|command| command.split_whitespace().next()).unwrap_or("nothing");
    let message = format!(
        "There are {}: systemd goes by the first, which starts {program}; remove what you don't want, or change the unit by \
         `systemctl edit`.",
        names(units)
    );
    Some(Finding::warn("units", message))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn first_binary_in_path_is_reported_among_several() {
        let folder = env::temp_dir().join(format!("evener-installs-{}", std::process::id()));
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        };
        let [local, usr] = ["local/evener.service", "usr/evener.service"]
            .map(|name| file(name, "[Service]\nExecStart=/usr/local/bin/evener run --keep\n"));
        std::os::unix::fs::symlink(folder.join("usr"), folder.join("lib")).unwrap();
        let paths = [local.clone(), folder.join("none"), usr, folder.join("lib/evener.service")];

        let all = found(paths.into_iter());
        assert_eq!(all.len(), 2, "{all:?}");
        let program = programs_shadow(&all).unwrap().message;
        assert!(program.contains(&format!("a shell runs {};", local.display())), "{program}");
        let unit = unit_shadows(&all).unwrap().message;
        assert!(unit.contains("the first, which starts /usr/local/bin/evener;"), "{unit}");
        assert!(programs_shadow(&all[..1]).is_none() && unit_shadows(&all[..1]).is_none());
        fs::remove_dir_all(folder).unwrap();
    }
}
