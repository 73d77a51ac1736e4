//! What fuzzing has found interesting is tried again: nothing panics, and a frame's length never changes.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use evener_core::decide::{Memory, Verdict, decide};
use evener_core::farm::Protocol;
use evener_core::select::Counts;
use evener_core::sessions::{Bucket, Seed, Sessions, buckets_for};
use evener_core::tables::{
    HASH_SLOTS, IdleTicks, Pick, Ring, SERVER_SLOTS, ServerEntry, Tables, Vip, VipKey,
};
use evener_core::wire::Mac;

/// A service for every address that the corpus names, so that frames get as far as they can.
fn tables(frame: &[u8]) -> Tables {
    let mut tables = Tables::default();
    let own = frame.get(..6).and_then(|mac| mac.try_into().ok()).map_or(Mac([2, 0, 0, 0, 0, 1]), Mac);
    tables.interfaces.insert(1, own);
    let server = ServerEntry {
        identity: 1,
        mac: Mac([2, 0, 0, 0, 1, 1]),
        ifindex: 1,
        weight: 1,
        up: true,
        local: false,
    };
    tables.servers.insert(1, server);
    let idle = IdleTicks { syn: 100, tcp: 100, closing: 100, udp: 100 };
    let address = frame.get(30..34).map_or([192, 0, 2, 100], |bytes| bytes.try_into().unwrap()).into();
    let port = frame.get(36..38).map_or(80, |bytes| u16::from_be_bytes(bytes.try_into().unwrap()));
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let vip = Vip { id: 1, service: 0, announce: true, pick: Pick::Cursor, idle };
        tables.vips.insert(VipKey { address, port, protocol }, vip);
    }
    tables.rings.insert(0, Ring { order: vec![1], hash: vec![1; HASH_SLOTS] }.into());
    tables
}

#[test]
fn the_corpus_of_frames_is_decided_without_harm() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/parse");
    let buckets: Vec<Bucket> = (0..buckets_for(16)).map(|_| Bucket::default()).collect();
    let active: Vec<AtomicU64> = (0..SERVER_SLOTS).map(|_| AtomicU64::new(0)).collect();
    let memory = Memory {
        sessions: Sessions::new(&buckets, &active),
        counts: Counts { cursors: &active[..64], active: &active },
        seed: Seed(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f),
    };
    let (mut files, mut forwarded) = (0, 0);
    for entry in fs::read_dir(corpus).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        let mut frame = bytes.clone();
        let decision = decide(&tables(&bytes), &memory, &mut frame, 1, 7);
        assert_eq!(frame.len(), bytes.len());
        match decision.verdict {
            Verdict::Forward { .. } => forwarded += 1,
            Verdict::Pass | Verdict::Drop => assert_eq!(frame, bytes, "{decision:?} leaves the frame alone"),
        }
        files += 1;
    }
    assert!(files >= 10 && forwarded > 0, "{files} files, {forwarded} of them forwarded: the corpus is thin");
}
