//! Changes of the farm at run time: edits of the file's services, stored beside the file.
//!
//! The [`FarmDocument`] is the file's farm as tables. A [`Record`] contains the operators' changes
//! of that farm. Each change is a list of [`Edit`]s of places in the document. The farm in force is
//! the document with all changes applied. The result is parsed like a file, so every rule of the
//! file holds for changes too. An undo removes a change from the record. Only [`store`] does I/O.

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

/// A file, the run-time changes over it, and the resulting farm.
#[derive(Clone, Debug, Default)]
pub struct FarmState {
    pub file: Arc<FarmDocument>,
    pub sources: Arc<Sources>,
    /// Hash of the file's farm. Part of the tag, so that farms of different files have different
    /// tags.
    file_sum: u64,
    pub record: Record,
    pub farm: FarmDocument,
    /// Operator states of servers that are not ready.
    pub states: OperatorStates,
    /// Values in force that differ from the file's.
    pub overrides: Overrides,
    /// Unique tag of this farm, as an ETag without quotes (RFC 9110, section 8.8.3).
    pub tag: String,
}

impl FarmState {
    /// Applies changes to a file.
    pub fn new(file: Arc<FarmDocument>, sources: Arc<Sources>, record: Record) -> FarmState {
        let (farm, states) = (record.farm(&file), record.operator_states());
        let (file_sum, tag) = (sum(&file), String::new());
        let empty = FarmState { file, sources, file_sum, tag, ..FarmState::default() };
        empty.changed(record, farm, states)
    }

    /// Returns the state of this file with other changes.
    fn changed(&self, record: Record, farm: FarmDocument, states: OperatorStates) -> FarmState {
        let (tag, overrides) = (tag(record.generation, self.file_sum), record.overrides(&self.file));
        let (file, sources) = (Arc::clone(&self.file), Arc::clone(&self.sources));
        FarmState { file, sources, file_sum: self.file_sum, record, farm, states, overrides, tag }
    }
}

/// A file with the stored changes applied.
pub struct RebasedFile {
    pub state: FarmState,
    /// Configuration of the resulting farm.
    pub config: Config,
    /// Run-time edits that were dropped, because the file has other values at their places now.
    pub dropped: Vec<Edit>,
}

/// Applies stored changes to a file that was read.
///
/// # Errors
/// If the resulting farm would be invalid as a file.
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

/// Returns the tag of a farm. The generation shows people which farm is newer. The hash of the
/// file's text distinguishes farms of the same generation.
fn tag(generation: u64, file_sum: u64) -> String {
    format!("{generation}-{:08x}", file_sum as u32)
}

/// Returns the FNV-1a hash of a file's farm.
fn sum(file: &FarmDocument) -> u64 {
    let text = file.text().unwrap_or_default();
    let add = |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, add)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
mod tests;
