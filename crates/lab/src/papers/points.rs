//! Measured points, a line of JSON each in `points.jsonl`. A run only appends to the file, so what
//! was measured stays, whatever ends the run.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

/// Name of the file in a folder of points.
pub const FILE: &str = "points.jsonl";

/// Parameters of a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// Series of points that belong together, such as `users`: the meaning of `x`.
    pub sweep: String,
    /// Measured system, such as `every host, 3`.
    pub system: String,
    /// Number of the system's servers.
    pub servers: u8,
    /// Place on the figure's axis, such as users for each server.
    pub x: f64,
    /// Number of the repeat, from 0.
    pub repeat: u32,
    pub seed: u64,
    pub warmup_seconds: f64,
    pub seconds: f64,
}

/// Measured point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub experiment: String,
    #[serde(flatten)]
    pub parameters: Parameters,
    /// End of the measurement in UTC: `2026-01-31 12:00`.
    pub at: String,
    /// Commit of the source, with `+` if files differ from it.
    pub commit: String,
    pub kernel: String,
    /// Results by name, such as `requests_per_second`.
    pub values: BTreeMap<String, f64>,
    /// Number of answered requests, and of failed ones.
    pub requests: u64,
    pub failed: u64,
    /// Part of the processors that was idle.
    pub idle: f64,
    /// Part of the processors that other programs of the machine used.
    pub others: f64,
    /// Processors that clients used, as a part of one.
    pub generator: f64,
    /// Reason why the point doesn't count.
    pub excluded: Option<String>,
}

impl Parameters {
    /// Returns the first measurement of a point, which takes no time.
    pub(super) fn new(sweep: &str, system: &str, servers: u8, x: impl Into<f64>) -> Parameters {
        let (sweep, system, x) = (sweep.to_owned(), system.to_owned(), x.into());
        Parameters { sweep, system, servers, x, repeat: 0, seed: 1, warmup_seconds: 0.0, seconds: 0.0 }
    }

    pub(super) fn repeated(self, repeat: u32) -> Parameters {
        Parameters { repeat, seed: u64::from(repeat) + 1, ..self }
    }

    pub(super) fn lasting(self, warmup_seconds: f64, seconds: f64) -> Parameters {
        Parameters { warmup_seconds, seconds, ..self }
    }

    /// True if both points are measured on the same running system.
    pub(super) fn has_system_of(&self, other: &Parameters) -> bool {
        (&self.sweep, &self.system, self.servers) == (&other.sweep, &other.system, other.servers)
    }
}

impl Point {
    /// True if the point counts.
    pub fn counts(&self) -> bool {
        self.excluded.is_none()
    }
}

/// Open file of points. Only one run at a time has it open.
#[derive(Debug)]
pub struct PointFile {
    path: PathBuf,
    file: Flock<File>,
    points: Vec<Point>,
}

impl PointFile {
    /// Opens the file in a folder, which is created if necessary. A line that a run didn't finish
    /// is removed.
    pub fn open(folder: &Path) -> Result<PointFile> {
        fs::create_dir_all(folder).with_context(|| format!("Making {} failed", folder.display()))?;
        let path = folder.join(FILE);
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("Opening {} failed", path.display()))?;
        let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                bail!(
                    "Another run is measuring into {}: wait for its end, or choose another --out",
                    path.display()
                )
            }
            Err((_, error)) => {
                return Err(error).with_context(|| format!("Locking {} failed", path.display()));
            }
        };
        let (points, len) = parse(&path)?;
        file.set_len(len as u64).with_context(|| format!("Shortening {} failed", path.display()))?;
        Ok(PointFile { path, file, points })
    }

    pub fn points(&self) -> &[Point] {
        &self.points
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a point. If that fails, for instance on a full disk, the file is as before.
    pub fn add(&mut self, point: Point) -> Result<()> {
        let before = self.file.metadata().map(|metadata| metadata.len());
        let before = before.with_context(|| format!("Reading {} failed", self.path.display()))?;
        let line = serde_json::to_string(&point)? + "\n";
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        if written.is_err() {
            // the next run removes what this doesn't
            let _ = self.file.set_len(before);
        }
        written.with_context(|| format!("Writing a point to {} failed", self.path.display()))?;
        self.points.push(point);
        Ok(())
    }
}

/// Returns the points in a folder.
pub fn read(folder: &Path) -> Result<Vec<Point>> {
    let path = folder.join(FILE);
    if !path.is_file() {
        bail!("{} is missing: `evener-lab paper NAME --out {}` makes it", path.display(), folder.display());
    }
    Ok(parse(&path)?.0)
}

/// Returns a file's points, and the length of its finished lines.
fn parse(path: &Path) -> Result<(Vec<Point>, usize)> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            bail!("{} isn't a file of points: it isn't text", path.display())
        }
        text => text.with_context(|| format!("Reading {} failed", path.display()))?,
    };
    let len = text.rfind('\n').map_or(0, |end| end + 1);
    let lines = text.get(..len).unwrap_or_default().lines().enumerate();
    let point = |(number, line)| {
        serde_json::from_str(line)
            .with_context(|| format!("Line {} of {} is no point", number + 1, path.display()))
    };
    Ok((lines.map(point).collect::<Result<_>>()?, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn point(repeat: u32) -> Point {
        Point {
            experiment: "dpr".to_owned(),
            parameters: Parameters {
                sweep: "users".to_owned(),
                system: "every host, 3".to_owned(),
                servers: 3,
                x: 40.0,
                repeat,
                seed: 7,
                warmup_seconds: 1.5,
                seconds: 5.0,
            },
            at: "2026-01-31 12:00".to_owned(),
            commit: "abc".to_owned(),
            kernel: "6.18".to_owned(),
            values: BTreeMap::from([("megabits".to_owned(), 29.5)]),
            requests: 1_000,
            failed: 0,
            idle: 0.4,
            others: 0.1,
            generator: 0.3,
            excluded: None,
        }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("evener-points-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn unfinished_line_is_removed_and_points_stay() -> Result<()> {
        let folder = folder("torn");
        let mut file = PointFile::open(&folder)?;
        file.add(point(0))?;
        file.add(point(1))?;
        drop(file);
        let path = folder.join(FILE);
        let whole = fs::read_to_string(&path)?;
        fs::write(&path, format!("{whole}{{\"experiment\":\"dp"))?;
        assert_eq!(read(&folder)?.len(), 2);
        let mut file = PointFile::open(&folder)?;
        assert_eq!(file.points(), [point(0), point(1)]);
        file.add(point(2))?;
        assert_eq!(read(&folder)?, [point(0), point(1), point(2)]);
        fs::remove_dir_all(folder)?;
        Ok(())
    }

    #[test]
    fn second_run_is_refused_while_first_has_file() -> Result<()> {
        let folder = folder("twice");
        let first = PointFile::open(&folder)?;
        let second = PointFile::open(&folder).map_err(|error| error.to_string());
        assert!(second.is_err_and(|error| error.starts_with("Another run is measuring into")));
        drop(first);
        PointFile::open(&folder)?;
        fs::remove_dir_all(folder)?;
        Ok(())
    }

    #[test]
    fn damaged_line_is_named_and_nothing_is_removed() -> Result<()> {
        let folder = folder("damaged");
        PointFile::open(&folder)?.add(point(0))?;
        let path = folder.join(FILE);
        let damaged = fs::read_to_string(&path)? + "{}\n";
        fs::write(&path, &damaged)?;
        let refused = PointFile::open(&folder).map_err(|error| error.to_string());
        assert!(refused.is_err_and(|error| error.starts_with("Line 2 of")));
        assert_eq!(fs::read_to_string(&path)?, damaged);
        fs::remove_dir_all(folder)?;
        Ok(())
    }

    #[test]
    fn full_disk_is_told_and_file_stays_whole() -> Result<()> {
        // a limit of the file's size acts as a full disk
        let folder = folder("full");
        let mut file = PointFile::open(&folder)?;
        file.add(point(0))?;
        let len = fs::metadata(folder.join(FILE))?.len();
        file.path = PathBuf::from("/dev/full");
        let full = OpenOptions::new().append(true).open("/dev/full")?;
        file.file = Flock::lock(full, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error)?;
        let refused = file.add(point(1)).map_err(|error| format!("{error:#}"));
        assert!(refused.is_err_and(|error| error.contains("No space left on device")));
        assert_eq!((file.points().len(), fs::metadata(folder.join(FILE))?.len()), (1, len));
        fs::remove_dir_all(folder)?;
        Ok(())
    }
}
