//! Compares encoded messages with the fields that tshark shows for them, by the Wireshark
//! dissector.

use core::fmt::Write as _;
use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::format;
use std::path::Path;
use std::process::Command;
use std::string::{String, ToString};

use super::super::wire::{Addresses, LEN_MIN};
use super::*;
use crate::net::checksum;

/// Header of a capture file (draft-ietf-opsawg-pcap): version 2.4, IP packets without a link
/// header.
const CAPTURE: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 0xffff, 101];

/// Values of a message's fields, by the names of the fields in the dissector.
type Fields = BTreeMap<&'static str, String>;

fn captured(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes: Vec<u8> = CAPTURE.iter().flat_map(|word| word.to_le_bytes()).collect();
    for packet in packets {
        let len = packet.len() as u32;
        bytes.extend([0, 0, len, len].iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(packet);
    }
    bytes
}

fn packet(addresses: Addresses, message: &[u8]) -> Vec<u8> {
    match (addresses.source, addresses.destination) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let [high, low] = (20 + message.len() as u16).to_be_bytes();
            let start = [0x45, 0, high, low, 0, 0, 0x40, 0, 64, PROTOCOL, 0, 0];
            let mut header = [&start[..], &from.octets(), &to.octets()].concat();
            let sum = checksum::finish(checksum::add(0, &header));
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            [&header, message].concat()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let [high, low] = (message.len() as u16).to_be_bytes();
            [&[0x60, 0, 0, 0, high, low, PROTOCOL, 64], &from.octets()[..], &to.octets(), message].concat()
        }
        _ => panic!("ends are of one family"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn flag(is_set: bool) -> String {
    u8::from(is_set).to_string()
}

/// Returns the dissector's fields for a selected server.
fn chosen(server: SocketAddr) -> Fields {
    let address = match server.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    BTreeMap::from([("chosen", address.to_string()), ("chosen_port", server.port().to_string())])
}

fn state_fields(state: &TcpState) -> Fields {
    let TcpState { snd_una, snd_nxt, rcv_nxt, mss, scales, sack, timestamp, window, .. } = *state;
    let Scales { snd, rcv } = scales.unwrap_or_default();
    let numbers = [
        ("snd_una", snd_una),
        ("snd_nxt", snd_nxt),
        ("rcv_nxt", rcv_nxt),
        ("timestamp", timestamp.unwrap_or_default()),
        ("snd_wl1", window.snd_wl1),
        ("snd_wnd", window.snd_wnd),
        ("max_window", window.max_window),
        ("rcv_wnd", window.rcv_wnd),
        ("rcv_wup", window.rcv_wup),
        ("send_len", state.send_len),
        ("receive_len", state.receive_len),
        ("mss", mss.into()),
        ("snd_scale", snd.into()),
        ("rcv_scale", rcv.into()),
    ];
    let flags = [
        ("options.scales", scales.is_some()),
        ("options.sack", sack),
        ("options.timestamps", timestamp.is_some()),
    ];
    let numbers = numbers.map(|(name, number)| (name, number.to_string()));
    numbers.into_iter().chain(flags.map(|(name, is_set)| (name, flag(is_set)))).collect()
}

/// Returns the number of the command, and the dissector's fields for it.
fn body_fields(body: &MessageBody) -> (u32, Fields) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.into()).unwrap();
    match body {
        MessageBody::Init { components } | MessageBody::InitAck { components } => {
            let has = [
                ("components.distributor", Receptor::Distributor),
                ("components.dispatcher", Receptor::Dispatcher),
                ("components.forwarder", Receptor::Forwarder),
                ("components.agent", Receptor::Agent),
            ];
            let command = if matches!(body, MessageBody::Init { .. }) { 1 } else { 2 };
            (command, has.map(|(name, receptor)| (name, flag(components.contains(receptor)))).into())
        }
        MessageBody::DispatchRequest { content, .. } => {
            let parts = [("host", content.host()), ("method", content.method()), ("path", content.path())];
            (3, parts.map(|(name, bytes)| (name, text(bytes))).into())
        }
        MessageBody::DispatchReply { route, server, .. } => {
            let mut fields = chosen(*server);
            fields.insert("route", route.to_string());
            (4, fields)
        }
        MessageBody::Handoff { piece, .. } => {
            let mut fields = state_fields(piece.state());
            fields.insert("offset", piece.offset().to_string());
            fields.insert("bytes", hex(piece.bytes()));
            (5, fields)
        }
        MessageBody::HandoffAck { missing, .. } => (6, BTreeMap::from([("missing", missing.to_string())])),
        MessageBody::Forward { server, .. } => (7, chosen(*server)),
        MessageBody::ForwardAck { .. } => (8, Fields::new()),
        MessageBody::Close { .. } => (9, Fields::new()),
        MessageBody::Error { code, .. } => (10, BTreeMap::from([("error", (*code as u32).to_string())])),
        MessageBody::Release { rcv_nxt, snd_nxt, .. } => {
            let (rcv_nxt, snd_nxt) = (*rcv_nxt, *snd_nxt);
            (11, state_fields(&TcpState { rcv_nxt, snd_una: snd_nxt, snd_nxt, ..TcpState::default() }))
        }
        MessageBody::Released { state, .. } => (12, state_fields(state)),
    }
}

/// Returns all fields of a message.
fn fields(message: &LccpMessage, bytes: &[u8]) -> Fields {
    let (command, mut fields) = body_fields(&message.body);
    let LccpMessage { numbers, echo, receptor, .. } = message;
    let socket = message.body.socket();
    let is_v6 = socket.is_some_and(|socket| socket.client().is_ipv6());
    let [client, server] = if is_v6 { ["client6", "server6"] } else { ["client", "server"] };
    let nobody = SocketAddr::new([0, 0, 0, 0].into(), 0);
    let [from, to] = socket.map_or([nobody; 2], |socket| [socket.client(), socket.server()]);
    fields.extend([
        ("magic", "LCCP".to_string()),
        ("version", "1".to_string()),
        ("flags.ipv6", flag(is_v6)),
        ("length", bytes.len().to_string()),
        ("key", keys().own().0.to_string()),
        ("incarnation", format!("{:#018x}", numbers.incarnation)),
        ("sequence", numbers.sequence.to_string()),
        ("echo.incarnation", format!("{:#018x}", echo.incarnation)),
        ("echo.sequence", echo.sequence.to_string()),
        ("receptor", (*receptor as u32).to_string()),
        ("command", command.to_string()),
        (client, from.ip().to_string()),
        ("client_port", from.port().to_string()),
        (server, to.ip().to_string()),
        ("server_port", to.port().to_string()),
        ("tag", hex(&bytes[bytes.len() - 16..])),
    ]);
    fields
}

/// Names of the dissector's fields, except those that only contain other fields.
const NAMES: [&str; 54] = [
    "magic",
    "version",
    "flags.ipv6",
    "length",
    "key",
    "incarnation",
    "sequence",
    "echo.incarnation",
    "echo.sequence",
    "receptor",
    "command",
    "components.distributor",
    "components.dispatcher",
    "components.forwarder",
    "components.agent",
    "route",
    "offset",
    "missing",
    "error",
    "client",
    "client6",
    "client_port",
    "server",
    "server6",
    "server_port",
    "chosen",
    "chosen_port",
    "snd_una",
    "snd_nxt",
    "rcv_nxt",
    "timestamp",
    "snd_wl1",
    "snd_wnd",
    "max_window",
    "rcv_wnd",
    "rcv_wup",
    "send_len",
    "receive_len",
    "mss",
    "options.scales",
    "options.sack",
    "options.timestamps",
    "snd_scale",
    "rcv_scale",
    "host",
    "method",
    "path",
    "bytes",
    "tag",
    "malformed",
    "foreign",
    "flags",
    "data",
    "socket",
];
/// Number of names in [`NAMES`] that are compared. The last three are left out, since other fields
/// have the same content.
const COMPARED: usize = NAMES.len() - 3;

/// Returns the fields that tshark shows for each packet; `None` if tshark is not installed.
fn shown(name: &str, packets: &[Vec<u8>]) -> Option<Vec<Fields>> {
    let capture = std::env::temp_dir().join(format!("evener-{name}-{}.pcap", std::process::id()));
    std::fs::write(&capture, captured(packets)).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/wireshark/lccp.lua");
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&capture).arg("-X").arg(format!("lua_script:{}", script.display()));
    tshark.args(["-n", "-T", "fields", "-E", "separator=|", "-E", "occurrence=a"]);
    for name in &NAMES[..COMPARED] {
        tshark.args(["-e", &format!("lccp.{name}")]);
    }
    let output = tshark.output();
    let _ = std::fs::remove_file(&capture);
    let output = match output {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            std::println!("skipped: there is no tshark to run the dissector");
            return None;
        }
        output => output.unwrap(),
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("lua"), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| -> Fields {
        let pairs = NAMES[..COMPARED].iter().copied().zip(line.split('|').map(str::to_string));
        pairs.filter(|(_, value)| !value.is_empty()).collect()
    };
    Some(text.lines().map(line).collect())
}

#[test]
fn dissector_shows_message_fields() {
    let [v4, v6] = [false, true].map(samples);
    let six =
        Addresses { source: "2001:db8::11".parse().unwrap(), destination: "2001:db8::12".parse().unwrap() };
    let pairs = v4.iter().chain(&v6).flat_map(|message| [there(), six].map(|addresses| (message, addresses)));
    let (mut packets, mut expected) = (Vec::new(), Vec::new());
    for (message, addresses) in pairs {
        let bytes = message.write(addresses, &keys());
        packets.push(packet(addresses, &bytes));
        expected.push(fields(message, &bytes));
    }
    let Some(shown) = shown("whole", &packets) else { return };
    assert_eq!(shown.len(), expected.len());
    for (shown, expected) in shown.iter().zip(&expected) {
        assert_eq!(shown, expected);
    }
    let never: Vec<_> = NAMES[..COMPARED]
        .iter()
        .filter(|name| {
            !["malformed", "foreign"].contains(name) && !expected.iter().any(|one| one.contains_key(*name))
        })
        .collect();
    assert!(never.is_empty(), "never shown: {never:?}");
}

#[test]
fn dissector_reports_malformed_messages() {
    let whole = samples(false)[2].write(there(), &keys());
    let changed = |at: usize, to: u8| {
        let mut bytes = whole.clone();
        bytes[at] = to;
        bytes
    };
    let runt = [&b"LCCP\x01\x00\x00\x3c"[..], &[0; 52]].concat();
    let cases = [
        (changed(4, 2), "foreign"),
        (changed(6, 9), "malformed"),
        // Invalid lengths of host, method and path.
        (changed(52, 99), "malformed"),
        (whole[..LEN_MIN].to_vec(), "malformed"),
        (runt, "malformed"),
    ];
    let packets: Vec<_> = cases.iter().map(|(bytes, _)| packet(there(), bytes)).collect();
    let others = [packet(there(), b"LCCQ"), packet(there(), &changed(0, b'X'))];
    let Some(shown) = shown("wrong", &[&packets[..], &others].concat()) else { return };
    assert_eq!(shown.len(), cases.len() + others.len());
    for (shown, (_, wrong)) in shown.iter().zip(&cases) {
        assert!(shown.contains_key(wrong) && shown["magic"] == "LCCP", "{wrong}: {shown:?}");
    }
    assert!(shown[cases.len()..].iter().all(Fields::is_empty), "not of this protocol: {shown:?}");
}
