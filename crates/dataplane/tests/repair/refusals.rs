//! Connections that cannot be moved and that keep working unchanged.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;

use evener_dataplane::repair::{NotSaved, RepairError, restore, save};
use socket2::SockRef;

use crate::farm::{Farm, finish, pass};
use crate::skipped;

/// Runs `work` on a thread without root's capabilities.
fn unprivileged<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let without = scope.spawn(|| {
            // SAFETY: the call takes three numbers. Without the C library, it changes this thread
            // only, and the thread ends here.
            let done = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65_534, -1) };
            assert_eq!(done, 0);
            work()
        });
        without.join().unwrap()
    })
}

#[test]
fn without_the_capability_a_connection_stays() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up(false);
    let (client, server) = farm.connection();
    let NotSaved { socket, error } = unprivileged(|| save(server, &[])).unwrap_err();
    assert!(matches!(error, RepairError::Privilege), "{error}");
    farm.hold();
    let saved = save(socket, &[]).unwrap();
    let error = farm.server(0).enter(|| unprivileged(|| restore(&saved))).unwrap_err();
    assert!(matches!(error, RepairError::Privilege), "{error}");
    finish(client, farm.restore(&saved, 0));
}

#[test]
fn a_half_closed_connection_stays() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up(false);
    let (client, server) = farm.connection();
    pass(&client, &server, b"the last words");
    client.shutdown(Shutdown::Write).unwrap();
    // The end of the stream has arrived.
    assert_eq!(server.peek(&mut [0]).unwrap(), 0);
    let NotSaved { socket, error } = save(server, &[]).unwrap_err();
    assert!(matches!(error, RepairError::HalfClosed), "{error}");
    pass(&socket, &client, b"an answer, all the same");

    let (client, server) = farm.connection();
    server.shutdown(Shutdown::Write).unwrap();
    let NotSaved { socket, error } = save(server, &[]).unwrap_err();
    assert!(matches!(error, RepairError::HalfClosed), "{error}");
    pass(&client, &socket, b"a question, all the same");
}

#[test]
fn a_connection_with_urgent_data_stays() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up(false);
    let (client, server) = farm.connection();
    SockRef::from(&client).send_out_of_band(b"before!").unwrap();
    (&client).write_all(b"behind").unwrap();
    // Only the bytes before the urgent byte are read here.
    let mut received = [0; 6];
    server.peek(&mut received).unwrap();
    let NotSaved { socket, error } = save(server, &[]).unwrap_err();
    assert!(matches!(error, RepairError::Urgent), "{error}");
    let options = SockRef::from(&socket);
    assert!(options.reuse_address().unwrap() && !options.out_of_band_inline().unwrap());
    for expected in [b"before", b"behind"] {
        (&socket).read_exact(&mut received).unwrap();
        assert_eq!(&received, expected);
    }
    pass(&client, &socket, b"is heard");
    // After the urgent byte is read, the connection can be moved.
    finish(client, farm.give(socket, &[], 1));
}

#[test]
fn socket_that_is_not_established_is_refused() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up(false);
    let listener = farm.listener.try_clone().unwrap();
    let refused = save(TcpStream::from(OwnedFd::from(listener)), &[]).unwrap_err();
    assert!(matches!(refused.error, RepairError::Listening), "{refused}");

    let (client, server) = farm.connection();
    // With a linger time of zero, closing sends a reset.
    SockRef::from(&client).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    assert!(server.peek(&mut [0]).is_err());
    let refused = save(server, &[]).unwrap_err();
    assert!(matches!(refused.error, RepairError::NotConnected), "{refused}");
}

#[test]
fn a_connection_that_could_not_be_restored_can_be_elsewhere() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up(false);
    let (client, server) = farm.connection();
    (&client).write_all(b"a question").unwrap();
    farm.hold();
    let saved = save(server, &[]).unwrap();
    // The client's host does not have the service's address.
    let error = farm.client.enter(|| restore(&saved)).unwrap_err();
    assert!(matches!(error, RepairError::System { .. }), "{error}");
    let server = farm.restore(&saved, 1);
    // A second restore fails.
    let error = farm.server(1).enter(|| restore(&saved)).unwrap_err();
    assert!(matches!(error, RepairError::System { .. }), "{error}");
    let mut received = [0; 10];
    (&server).read_exact(&mut received).unwrap();
    assert_eq!(&received, b"a question");
    finish(client, server);
}
