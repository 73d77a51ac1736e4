//! Arguments of the commands that change the farm at run time.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};

use super::{ServerArg, ViewArgs, count, time, weight};

/// A change of the farm at run time.
#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// Change nothing, and show what would differ
    #[arg(long)]
    pub dry_run: bool,
    /// How to show it.
    #[command(flatten)]
    pub view: ViewArgs,
}

/// The server or director that takes nothing new.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct DrainedArgs {
    /// The server: of a service, or of a name that is answered for
    #[arg(value_name = "SERVICE/SERVER")]
    pub server: Option<ServerArg>,
    /// This director: it isn't ready any more, so that what is in front sends clients elsewhere
    #[arg(long)]
    pub director: bool,
}

/// `evener undrain`
#[derive(Debug, Args)]
pub struct UndrainArgs {
    /// The server or director.
    #[command(flatten)]
    pub drained: DrainedArgs,
    /// How to change it.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// `evener drain`
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// The server or director.
    #[command(flatten)]
    pub drained: DrainedArgs,
    /// Return once it has no session any more, or after this time: then with 1, and the drain stays
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        conflicts_with = "dry_run",
        value_parser = time
    )]
    pub wait: Option<Option<Duration>>,
    /// The same time, with a bare --wait
    #[arg(long, value_name = "TIME", requires = "wait", value_parser = time)]
    pub timeout: Option<Duration>,
    /// How to change it.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// `evener maintenance`
#[derive(Debug, Args)]
pub struct ServerStateArgs {
    /// The server: of a service, or of a name that is answered for
    #[arg(value_name = "SERVICE/SERVER")]
    pub server: ServerArg,
    /// How to change it.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// `evener weight`
#[derive(Debug, Args)]
pub struct WeightArgs {
    /// The server
    #[arg(value_name = "SERVICE/SERVER")]
    pub server: ServerArg,
    /// Its share relative to the others; 0 drains
    #[arg(value_name = "WEIGHT", value_parser = weight)]
    pub weight: u16,
    /// How to change it.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// `evener add`
#[derive(Debug, Args)]
pub struct AddArgs {
    /// The service, and the name of the server
    #[arg(value_name = "SERVICE/SERVER")]
    pub server: ServerArg,
    /// Its address, with a port for method nat; or its URL for method redirect
    #[arg(value_name = "ADDRESS|URL")]
    pub address: String,
    /// Its share relative to the others
    #[arg(long, value_name = "N", value_parser = weight)]
    pub weight: Option<u16>,
    /// How to change it.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// `evener remove`
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// The server
    #[arg(value_name = "SERVICE/SERVER")]
    pub server: ServerArg,
    /// How to change it.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// `evener undo`
#[derive(Debug, Args)]
pub struct UndoArgs {
    /// The number of the change in `evener state --changes`; the last change unless given
    #[arg(value_name = "NUMBER", value_parser = count::<u64>)]
    pub number: Option<u64>,
    /// How to change it.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// `evener state`
#[derive(Debug, Args)]
pub struct StateArgs {
    /// Put this state in force, as it was printed and then edited; refused if the farm has changed
    /// meanwhile
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "changes")]
    pub file: Option<PathBuf>,
    /// List the run-time changes that can be undone
    #[arg(long)]
    pub changes: bool,
    /// How to change it.
    #[command(flatten)]
    pub change: ChangeArgs,
}
