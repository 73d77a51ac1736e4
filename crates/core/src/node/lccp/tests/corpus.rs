//! Replays inputs that fuzzing has found.

use std::fs;
use std::path::Path;

use super::super::wire::seal;
use super::*;

/// Each file contains messages without tags. Before each message is its length in two bytes.
#[test]
fn the_corpus_is_taken_in_without_harm() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/lccp");
    let (mut files, mut hellos, mut accepted) = (0, 0, 0);
    for entry in fs::read_dir(corpus).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        let own = LocalNode { address: address(12), incarnation: 200, components: Components::new(&[]) };
        let mut session = LccpSession::new(own, address(11), 0);
        let keys = keys();
        let mut rest = bytes.as_slice();
        while let Some((length, more)) = rest.split_first_chunk() {
            let length = usize::from(u16::from_be_bytes(*length));
            let (message, more) = more.split_at(length.min(more.len()));
            rest = more;
            let known = session.is_known();
            session.receive(0, &keys, message);
            assert_eq!(session.is_known(), known, "without its tag it says nothing");
            session.receive(0, &keys, &seal(message.to_vec(), there(), keys.own().1));
        }
        hellos += session.counters().hellos;
        accepted += session.counters().accepted;
        files += 1;
    }
    assert!(files >= 5 && hellos > 0 && accepted > 0, "{files} files, {hellos} hellos, {accepted} accepted");
}
