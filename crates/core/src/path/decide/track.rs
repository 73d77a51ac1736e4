//! The memory of first fragments.

use super::{DecisionContext, Reason};
use crate::path::fragments::{FragmentKey, LIFETIME_MS, Track};
use crate::path::parse::Layers;
use crate::path::sessions::ticks;

/// Remembers a first fragment, if the packet is one.
///
/// # Errors
/// Another first fragment of the same packet was seen, and says otherwise: one would be written
/// over the other.
pub(super) fn note_track(
    known: &DecisionContext<'_>,
    at: &Layers,
    server: u16,
    vip: u16,
    port: u16,
    answer: bool,
) -> Result<(), Reason> {
    let Some(fragment) = at.fragment else {
        return Ok(());
    };
    let expires = known.now.wrapping_add(ticks(LIFETIME_MS));
    let track = Track { expires, server, vip, port, first_end: fragment.end, answer };
    let key = FragmentKey::of(at, fragment.id);
    match find(known, &key) {
        Some(seen) if (Track { expires, ..seen }) != track => return Err(Reason::FragmentOverlap),
        Some(_) => {}
        None => known.memory.fragments.note(&key, track),
    }
    Ok(())
}

/// The first one's decision, while it is remembered.
pub(super) fn find(known: &DecisionContext<'_>, key: &FragmentKey) -> Option<Track> {
    let track = known.memory.fragments.find(key)?;
    // An entry that was never cleared may be met again for five seconds each 52 days, when ticks
    // have wrapped: of that one fragment is lost, as networks lose them.
    let left = track.expires.wrapping_sub(known.now).wrapping_sub(1);
    (left < ticks(LIFETIME_MS)).then_some(track)
}
