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

use std::path::Path;
use std::sync::Arc;

pub(crate) use batch::{Batch, NextState, batch};
pub use batch::{Difference, Outcome, Request};
pub use document::FarmDocument;
pub use edit::{Edit, Place, operator_state, operator_value};
pub use order::{OrderError, ServerFields, StateOrder};
pub use record::Override;
pub use record::{Author, Change, OperatorStates, Overrides, Record};
pub use store::time;
use toml::Table;

use crate::config::{self, Config, Problems};

/// A file, the changes over it, and the farm that both make.
#[derive(Clone, Debug, Default)]
pub struct FarmState {
    /// The file's farm.
    pub file: Arc<FarmDocument>,
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
    pub fn new(file: Arc<FarmDocument>, record: Record) -> FarmState {
        let (farm, states) = (record.farm(&file), record.operator_states());
        FarmState::of(file, record, farm, states)
    }

    fn of(file: Arc<FarmDocument>, record: Record, farm: FarmDocument, states: OperatorStates) -> FarmState {
        let (tag, overrides) = (tag(record.generation, &farm, &states), record.overrides(&file));
        FarmState { file, record, farm, states, overrides, tag }
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

/// Lays changes over a file that was read as `config`.
///
/// # Errors
/// When the farm breaks rules of the file with them.
pub fn rebase(
    tables: Table,
    config: Config,
    mut record: Record,
    path: &Path,
) -> Result<RebasedFile, Problems> {
    let file = Arc::new(FarmDocument::new(tables, &config).unwrap_or_default());
    let dropped = record.rebase(&file);
    let state = FarmState::new(Arc::clone(&file), record);
    let config = match state.farm == *file {
        true => config,
        false => config::parse_changed(&state.farm.text().unwrap_or_default(), path)?,
    };
    Ok(RebasedFile { state, config, dropped })
}

/// The generation tells people which farm is the newer one; the sum, by FNV-1a, tells farms of one
/// generation apart, since a file can change while no daemon runs.
fn tag(generation: u64, farm: &FarmDocument, states: &OperatorStates) -> String {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |text: &str| {
        for byte in text.bytes() {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    add(&farm.text().unwrap_or_default());
    for (name, state) in states {
        add(&format!("{}/{} {}\n", name.service, name.server, state.name()));
    }
    format!("{generation}-{:08x}", sum as u32)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
mod tests;
