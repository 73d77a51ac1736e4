//! Pieces of a connection are joined again.

use proptest::prelude::*;
use std::vec::Vec;

use super::*;

fn queue(len: u32, step: usize) -> Vec<u8> {
    (0..len as usize).map(|at| ((at * step) >> 3) as u8).collect()
}

fn transfer(send_len: u32, receive_len: u32) -> TransferImage {
    let state = TcpState { send_len, receive_len, ..state() };
    TransferImage::new(state, &queue(send_len, 3), &queue(receive_len, 5)).unwrap()
}

#[test]
fn lost_piece_is_requested_again() {
    let transfer = transfer(100, 4_000);
    let mut pieces = transfer.pieces(0).filter(|piece| piece.offset() != 1_024);
    let mut assembly = Assembly::new(pieces.next().unwrap());
    assert!(pieces.all(|piece| assembly.add(piece)));
    assert_eq!((assembly.missing(), assembly.handed()), (1_024, None));
    let again: Vec<u32> = transfer.pieces(assembly.missing()).map(|piece| piece.offset()).collect();
    assert_eq!(again, [1_024, 2_048, 3_072, 4_096]);
    assert!(transfer.pieces(1_024).take(1).all(|piece| assembly.add(piece)));
    assert_eq!(assembly.missing(), transfer.queued_len());
    let handed = assembly.handed().unwrap();
    assert_eq!((handed.send, handed.receive), (queue(100, 3), queue(4_000, 5)));
    assert_eq!(transfer.pieces(4_100).count(), 1, "the last piece, though nothing is missing");
    assert_eq!(transfer.pieces(u32::MAX).count(), 0);
}

#[test]
fn a_connection_without_queues_is_one_piece() {
    let transfer = transfer(0, 0);
    let pieces: Vec<Piece> = transfer.pieces(0).collect();
    assert_eq!(pieces.len(), 1);
    let assembly = Assembly::new(pieces.into_iter().next().unwrap());
    assert_eq!(assembly.missing(), transfer.queued_len());
    let state = TcpState { send_len: 0, receive_len: 0, ..state() };
    assert_eq!(assembly.handed(), Some(ReceivedConnection { state, send: Vec::new(), receive: Vec::new() }));
}

#[test]
fn another_state_is_another_handoff() {
    let first = transfer(0, 10).pieces(0).next().unwrap();
    let mut assembly = Assembly::new(first);
    let later = TcpState { send_len: 0, receive_len: 10, snd_nxt: 1_001, snd_una: 1_001, ..state() };
    let piece = TransferImage::new(later, &[], &[0; 10]).unwrap().pieces(0).next().unwrap();
    assert!(!assembly.add(piece));
    assert_eq!(assembly.handed().unwrap().receive, queue(10, 5));
}

#[test]
fn impossible_tcp_state_is_not_handed_off() {
    let sound = TcpState { send_len: 5, receive_len: 0, ..state() };
    let new = |state| TransferImage::new(state, &[0; 5], &[]).is_some();
    assert!(new(sound) && new(TcpState { snd_nxt: 1_005, ..sound }));
    assert!(!new(TcpState { snd_nxt: 1_006, ..sound }), "a FIN was sent");
    assert!(!new(TcpState { snd_nxt: 999, ..sound }));
    assert!(!new(TcpState { send_len: 4, ..sound }));
    assert!(!new(TcpState { mss: 0, ..sound }));
    assert!(!new(TcpState { scales: Some(Scales { snd: 15, rcv: 0 }), ..sound }));
    let long = TcpState { send_len: QUEUE_MAX + 1, ..sound };
    assert!(TransferImage::new(long, &std::vec![0; QUEUE_MAX as usize + 1], &[]).is_none());
}

proptest! {
    #[test]
    fn pieces_come_in_any_order_and_number(
        send_len in 0u32..5_000, receive_len in 0u32..5_000, order in prop::collection::vec(any::<usize>(), 0..60),
    ) {
        let transfer = transfer(send_len, receive_len);
        let pieces: Vec<Piece> = transfer.pieces(0).collect();
        let mut assembly = Assembly::new(pieces[0].clone());
        for at in order {
            assembly.add(pieces[at % pieces.len()].clone());
            prop_assert_eq!(assembly.handed().is_some(), assembly.missing() == transfer.queued_len());
        }
        for piece in transfer.pieces(assembly.missing()) {
            assembly.add(piece);
        }
        let handed = assembly.handed().unwrap();
        prop_assert_eq!((handed.send, handed.receive), (queue(send_len, 3), queue(receive_len, 5)));
    }
}
