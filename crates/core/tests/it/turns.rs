//! The exchange of client and server, for the corpus and for fuzzing: records of one byte that says
//! who speaks (its lowest bit: the server) and whether that comes late (the next ones: so many
//! bytes), two for the length, and the data.
#![allow(clippy::unwrap_used, unreachable_pub)]

use evener_core::server::{Exchange, Head, Payload};

/// How often each was seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub requests: u32,
    pub answers: u32,
    pub chunked: u32,
    pub doubts: u32,
}

/// The numbers that both begin at: soon after, they begin anew.
const BEGIN: [u32; 2] = [u32::MAX - 100, u32::MAX - 40];

pub fn follow_and_check(bytes: &[u8]) -> Seen {
    let (mut seen, mut next, mut rest) = (Seen::default(), BEGIN, bytes);
    let mut exchange: Option<Exchange> = None;
    while let Some((&[who, high, low], more)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes([high, low])).min(more.len());
        let (data, more) = more.split_at(len);
        rest = more;
        check_head(data);
        let (from, to) = (usize::from(who & 1), usize::from(!who & 1));
        let sequence = next[from].wrapping_sub(u32::from(who >> 1));
        let payload = Payload { sequence, acknowledgment: next[to], urgent: false, data };
        let before = exchange.clone();
        match &mut exchange {
            None => exchange = Some(Exchange::begin(&payload)),
            Some(exchange) if from == 0 => exchange.follow_request(&payload),
            Some(exchange) => exchange.answer(&payload, data.is_empty()),
        }
        next[from] = sequence.wrapping_add(len as u32);
        let now = exchange.as_ref().unwrap();
        seen.requests += u32::from(before.as_ref().is_none_or(|before| before.request != now.request));
        let Some(before) = before else { continue };
        assert!(before.plain || *now == before, "what is in doubt stays so");
        seen.doubts += u32::from(before.plain && !now.plain);
        if now.answered == before.answered || !now.plain {
            continue;
        }
        assert!(from == 1 && now.answered.begin == now.request.begin, "{now:?}");
        seen.answers += 1;
        seen.chunked += u32::from(now.chunked);
        let is_whole = now.answered.end.wrapping_sub(next[1]) as i32 >= 0;
        assert!(
            is_whole || now.chunked && now.answered.end == now.answered.begin,
            "{now:?} ends before {next:?}"
        );
    }
    seen
}

/// A head is whole from its last byte on, and others read it alike.
fn check_head(data: &[u8]) {
    let Some(head) = Head::read(data) else { return };
    assert!(data[..head.len].ends_with(b"\r\n"));
    assert_eq!(Head::read(&data[..head.len]), Some(head));
    assert_eq!(Head::read(&data[..head.len - 1]), None);
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    if response.parse(data) != Ok(httparse::Status::Complete(head.len)) {
        return;
    }
    let named =
        |name: &str| response.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name)).count();
    assert_eq!(named("content-length"), head.lengths as usize);
    assert_eq!(named("transfer-encoding"), head.codings as usize);
}
