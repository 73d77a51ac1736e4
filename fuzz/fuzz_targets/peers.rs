//! Nothing that a stranger, or a host with the right secret and the wrong program, sends makes a
//! host panic.
#![no_main]

use evener_core::node::peers::wire::LEN;
use evener_core::node::peers::{HostSetting, PeerSettings, Peers, Publishable};
use evener_core::node::secret::{Key, Secret, TAG_LEN};
use libfuzzer_sys::fuzz_target;

const KEY: Key = Key([9; 32]);

fn settings() -> PeerSettings {
    let host = |name: &str, last| HostSetting { name: name.into(), address: [10, 0, 0, last].into() };
    let addresses = [Some("web1"), Some("web2"), None];
    PeerSettings {
        name: "web1".into(),
        hosts: vec![host("web1", 1), host("web2", 2)],
        services: vec!["web".into()],
        addresses: (100..)
            .zip(addresses)
            .map(|(last, publisher)| Publishable {
                address: [192, 0, 2, last].into(),
                publisher: publisher.map(Into::into),
            })
            .collect(),
        generation: 1,
        interval_ms: 500,
        silence_ms: 3_000,
        key: KEY,
    }
}

fuzz_target!(|bytes: &[u8]| {
    let _ = std::str::from_utf8(bytes).map(Secret::parse);
    let mut peers = Peers::new(settings(), 1, 0);
    for (now_ms, datagram) in (0..).step_by(500).zip(bytes.chunks(LEN - TAG_LEN)) {
        peers.tick(now_ms);
        peers.receive(now_ms, datagram);
        let answer = peers.receive(now_ms, &KEY.seal(&[], datagram.to_vec())).answer;
        assert!(answer.is_none_or(|(_, answer)| answer.len() == LEN));
    }
    assert!(peers.hosts().len() == 2 && peers.owned().len() <= 3);
});
