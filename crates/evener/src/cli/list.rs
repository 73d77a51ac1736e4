//! Arguments of `evener services` and `evener servers`.

use clap::Args;

use super::ViewArgs;

/// Rows of a list, and how they are shown.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only those of this service
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// Show them again every 2 s, until interrupted; with --json a list a line
    #[arg(long)]
    pub watch: bool,
    /// How to show them.
    #[command(flatten)]
    pub view: ViewArgs,
}

/// `evener services`
#[derive(Debug, Args)]
pub struct ServicesArgs {
    /// Only those in this state: ok has all servers up, partial some, empty none; degraded has too
    /// few, so that failing ones are used
    #[arg(long, value_name = "STATE", value_parser = ["ok", "partial", "degraded", "empty"])]
    pub state: Option<String>,
    /// Which others, and how to show them.
    #[command(flatten)]
    pub list: ListArgs,
}

/// `evener servers`
#[derive(Debug, Args)]
pub struct ServersArgs {
    /// Only those in this state
    #[arg(long, value_name = "STATE", value_parser = ["up", "down", "draining", "maintenance"])]
    pub state: Option<String>,
    /// Which others, and how to show them.
    #[command(flatten)]
    pub list: ListArgs,
}
