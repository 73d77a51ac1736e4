//! Nothing that a stranger, or a node with the right secret and the wrong program, sends makes a
//! node panic or believe what it would not write itself.
#![no_main]

use evener_core::node::lccp::wire::{Addresses, LEN_MIN, LccpMessage, seal};
use evener_core::node::lccp::{
    Assembly, Components, EPOCH_S, HourlyKeys, LccpSession, LocalNode, MessageBody, Receptor,
};
use evener_core::node::secret::Secret;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // messages without their tags, each behind its length in two bytes
    let secret = Secret::new(std::array::from_fn(|i| i as u8));
    let keys = HourlyKeys::at(&secret, 500_000 * EPOCH_S + EPOCH_S / 2);
    let addresses = Addresses { source: [192, 0, 2, 11].into(), destination: [192, 0, 2, 12].into() };
    let components = Components::new(&[Receptor::Dispatcher]);
    let own = LocalNode { address: addresses.destination, incarnation: 200, components };
    let mut session = LccpSession::new(own, addresses.source, 0);
    let mut assembly: Option<Assembly> = None;
    let mut rest = bytes;
    while let Some((length, more)) = rest.split_first_chunk() {
        let (message, more) = more.split_at(usize::from(u16::from_be_bytes(*length)).min(more.len()));
        rest = more;
        assert_eq!(session.receive(0, &keys, message).message, None);
        let sealed = seal(message.to_vec(), addresses, keys.own().1);
        if let Ok(heard) = LccpMessage::read(&sealed, addresses, &keys) {
            let mut again = heard.write(addresses, &keys);
            // the key may be the other one that is believed
            again[8..12].copy_from_slice(&sealed[8..12]);
            assert_eq!(again[..again.len() - 16], *message);
        }
        let received = session.receive(0, &keys, &sealed);
        assert!(received.answer.is_none_or(|answer| answer.len() == LEN_MIN));
        if let Some(MessageBody::Handoff { piece, .. }) = received.message.map(|message| message.body) {
            let same = assembly.as_mut().is_some_and(|assembly| assembly.add(piece.clone()));
            if !same {
                assembly = Some(Assembly::new(piece));
            }
            let handed = assembly.as_ref().and_then(Assembly::handed);
            assert!(handed.is_none_or(|handed| handed.receive.len() == handed.state.receive_len as usize));
        }
    }
});
