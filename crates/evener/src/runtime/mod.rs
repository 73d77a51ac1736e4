//! Environment of every Evener program on its host: file paths, locks, secrets, log, signals and
//! exit status.

pub(crate) mod accept;
pub(crate) mod certificate_names;
pub(crate) mod connection_limit;
pub(crate) mod cookie_secret;
pub(crate) mod day;
pub mod descriptors;
mod exit;
pub(crate) mod files;
pub(crate) mod folder_watch;
pub mod folders;
pub(crate) mod fresh_file;
pub(crate) mod group_tokens;
pub mod lock;
pub mod log;
pub(crate) mod member_token;
pub(crate) mod program;
pub(crate) mod reader;
pub(crate) mod receive_buffer;
pub mod secret;
pub(crate) mod shown;
pub mod signals;
pub(crate) mod slots_by_source;
pub mod spelling;
pub mod terminal;
pub(crate) mod tls;
pub mod token;

pub use exit::Exit;
