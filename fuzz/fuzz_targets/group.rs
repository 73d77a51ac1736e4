//! Nothing that a stranger says to a group's director makes it panic, and what it takes for good it
//! says the same.
#![no_main]

use evener_core::farm::group::Joiner;
use evener_core::node::group::{GroupMessage, Verb, write_inform, write_joiners};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, body)) = bytes.split_first() else { return };
    let verb = Verb::ALL[usize::from(*first) % Verb::ALL.len()];
    match GroupMessage::read(verb, body) {
        Ok(GroupMessage::Add(joiners)) => {
            assert!(
                joiners.iter().all(|one: &Joiner| one
                    .url
                    .as_str()
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic()))
            );
            assert_eq!(
                GroupMessage::read(verb, write_joiners(&joiners).as_bytes()),
                Ok(GroupMessage::Add(joiners))
            );
        }
        Ok(GroupMessage::Inform(report)) => {
            let Ok(GroupMessage::Inform(again)) = GroupMessage::read(verb, write_inform(&report).as_bytes())
            else {
                panic!("{report:?} is not read again");
            };
            assert!(again.load == report.load && again.url == report.url);
        }
        Ok(_) => {}
        Err(malformed) => assert!([400, 413, 422].contains(&malformed.status())),
    }
});
