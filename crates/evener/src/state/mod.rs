//! Changes of the farm at run time: edits of the file's services that last beside the file.
//!
//! The [`FarmDocument`] is the file's farm as tables. A [`Record`] has the changes that operators
//! made since, each of them [`Edit`]s of places in the document; the farm in force is the document
//! with all of them made. So every rule of the file holds for changes too, and a change is undone
//! by leaving it out. Nothing here does IO but [`store`].

mod batch;
mod document;
mod edit;
mod order;
mod record;
pub(crate) mod store;

use std::sync::Arc;

pub(crate) use batch::{Batch, NextState, batch};
pub use batch::{Difference, Outcome, Request};
pub use document::FarmDocument;
pub(crate) use edit::places;
pub use edit::{Edit, EditTarget, operator_state, operator_value};
pub use order::{OrderError, ServerFields, StateChange, StateOrder};
pub use record::Override;
pub use record::{Author, Change, OperatorStates, Overrides, Record};
pub use store::time;

use crate::config::{self, Config, LoadedConfig, Problems, Sources};

/// A file, the changes over it, and the farm that both make.
#[derive(Clone, Debug, Default)]
pub struct FarmState {
    /// The file's farm.
    pub file: Arc<FarmDocument>,
    /// The files that it was read from.
    pub sources: Arc<Sources>,
    /// By which the farms of files are told apart.
    file_sum: u64,
    /// The changes over it.
    pub record: Record,
    /// The farm that both make.
    pub farm: FarmDocument,
    /// The operator's word on servers: those that are not ready.
    pub states: OperatorStates,
    /// Where the farm isn't the file's.
    pub overrides: Overrides,
    /// Another one for each farm (RFC 9110, section 8.8.3), without its quotes.
    pub tag: String,
}

impl FarmState {
    /// A file with changes over it.
    pub fn new(file: Arc<FarmDocument>, sources: Arc<Sources>, record: Record) -> FarmState {
        let (farm, states) = (record.farm(&file), record.operator_states());
        let (file_sum, tag) = (sum(&file), String::new());
        let empty = FarmState { file, sources, file_sum, tag, ..FarmState::default() };
        empty.changed(record, farm, states)
    }

    /// The same file with other changes over it.
    fn changed(&self, record: Record, farm: FarmDocument, states: OperatorStates) -> FarmState {
        let (tag, overrides) = (tag(record.generation, self.file_sum), record.overrides(&self.file));
        let (file, sources) = (Arc::clone(&self.file), Arc::clone(&self.sources));
        FarmState { file, sources, file_sum: self.file_sum, record, farm, states, overrides, tag }
    }
}

/// A file with the changes over it.
pub struct RebasedFile {
    /// Both.
    pub state: FarmState,
    /// Their meaning.
    pub config: Config,
    /// Edits of places that the file itself has changed.
    pub dropped: Vec<Edit>,
}

/// Lays changes over a file that was read.
///
/// # Errors
/// When the farm breaks rules of the file with them.
pub fn rebase(file: LoadedConfig, mut record: Record) -> Result<RebasedFile, Problems> {
    let LoadedConfig { config, tables, sources } = file;
    let file = Arc::new(FarmDocument::new(tables, &config).unwrap_or_default());
    let dropped = record.rebase(&file);
    let state = FarmState::new(Arc::clone(&file), sources, record);
    let config = match state.farm == *file {
        true => config,
        false => config::parse_changed(&state.farm.text().unwrap_or_default(), &state.sources)?,
    };
    Ok(RebasedFile { state, config, dropped })
}

/// The tag of a farm: the record's generation tells people which one is newer, and the sum of the
/// file's text tells apart those of one generation.
fn tag(generation: u64, file_sum: u64) -> String {
    format!("{generation}-{:08x}", file_sum as u32)
}

/// The sum of a file's farm, by FNV-1a.
fn sum(file: &FarmDocument) -> u64 {
    let text = file.text().unwrap_or_default();
    let add = |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, add)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
mod tests;
