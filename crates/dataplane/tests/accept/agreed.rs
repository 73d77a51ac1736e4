//! Compares the options of the kernel's sockets with the options that `evener_core::server`
//! predicts.

use std::net::SocketAddr;

use evener_core::net::wire::Mac;
use evener_core::path::cookie::FourTuple;
use evener_core::server::{Arrived, Expectation, Host, Made, Outcome, Socket, Terms};
use evener_dataplane::server::ConnectionState;

use crate::call::{Call, Offered};
use crate::talk::{ANSWER, GET, Seen, Talk, where_turns_are_followed};
use crate::world::{FAMILIES, PORT, listen};

/// A host with a listener and no connections.
struct Listening;

impl Host for Listening {
    fn socket(&self, _client: SocketAddr, _own: SocketAddr) -> Socket {
        Socket::Listener
    }

    fn expected(&self, _ends: &FourTuple) -> Option<Expectation> {
        None
    }

    fn made(&self, _ends: &FourTuple) -> Option<Made> {
        None
    }
}

#[test]
fn sockets_have_the_terms_that_were_agreed_on() {
    where_turns_are_followed(|world| {
        let tables = world.tables(Some(PORT));
        let mut port = 40_000;
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            for mss in [400, 536, 1_219, 1_220, 1_300, 1_420, 1_440, 1_460, 9_000] {
                for scale in [None, Some(0), Some(7), Some(14), Some(200)] {
                    for timestamps in [None, Some((5_000, 7))] {
                        port += 1;
                        let call = world.call_with(v6, port, 1_000, Offered { mss, scale });
                        let call = Call { timestamps, ..call };
                        let any = Mac([2, 0, 0, 0, 0, 1]);
                        let frame = call.frame(any, any, &call.first(GET));
                        let outcome =
                            Arrived::read(&tables, &frame).unwrap().outcome(&world.keys, &Listening);
                        let Outcome::Connection(terms, PORT) = outcome else { panic!("{outcome:?}") };
                        let mut talk = Talk::begin(world, &listener, call, GET);
                        talk.send(ANSWER);
                        talk.comes_to(Seen::Idle);
                        let ConnectionState::Idle(idle) = talk.look() else { panic!("it rests") };
                        let has = Terms {
                            mss: idle.mss,
                            window_scales: idle.window_scales,
                            sack: idle.sack,
                            timestamps: idle.timestamps,
                        };
                        assert_eq!(has, terms, "{mss} {scale:?} {timestamps:?}");
                    }
                }
            }
        }
    });
}
