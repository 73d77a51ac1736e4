//! Service bindings (RFC 9460): address hints of HTTPS and SVCB records.
//!
//! Clients that use hints connect without waiting for an A record. Hints from a file could lead to
//! failed servers. So a record for the balanced name itself gets hints with the addresses of its A
//! and AAAA records.

/// Parameters that are replaced (RFC 9460, section 14.3.2).
pub(super) const IPV4_HINT: u16 = 4;
pub(super) const IPV6_HINT: u16 = 6;

/// Data of a record without its address hints. Parameters are sorted by key (RFC 9460, section
/// 2.2), and keys may lie between those of the two hints.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SvcbRecord<'d> {
    pub(super) before: &'d [u8],
    pub(super) between: &'d [u8],
    pub(super) behind: &'d [u8],
}

/// Splits a record's data; `None` if its target isn't the owner, or parameters are not sorted.
pub(super) fn around<'d>(data: &'d [u8], owner: &[u8]) -> Option<SvcbRecord<'d>> {
    let (priority, rest) = data.split_first_chunk::<2>()?;
    // Priority 0 means an alias. An empty target means the owner (RFC 9460, section 2.5).
    let target_len = name_len(rest)?;
    let target = rest.get(..target_len)?;
    if *priority == [0, 0] || target_len > 1 && !target.eq_ignore_ascii_case(owner) {
        return None;
    }
    let begin = 2 + target_len;
    // For each of the keys 4 to 7: offset of the first parameter with this key or a greater one.
    let mut ends = [None; 4];
    let (mut at, mut last) = (begin, None);
    while at < data.len() {
        let [key_high, key_low, len_high, len_low] = *data.get(at..)?.first_chunk::<4>()?;
        let key = u16::from_be_bytes([key_high, key_low]);
        if last.is_some_and(|last| last >= key) {
            return None;
        }
        for (end, limit) in ends.iter_mut().zip([IPV4_HINT, IPV4_HINT + 1, IPV6_HINT, IPV6_HINT + 1]) {
            if key >= limit {
                end.get_or_insert(at);
            }
        }
        last = Some(key);
        at += 4 + usize::from(u16::from_be_bytes([len_high, len_low]));
    }
    let [four, behind_four, six, behind_six] = ends.map(|end| end.unwrap_or(data.len()));
    (at == data.len()).then_some(())?;
    Some(SvcbRecord {
        before: data.get(..four)?,
        between: data.get(behind_four..six)?,
        behind: data.get(behind_six..)?,
    })
}

/// Returns the length of the name at the start of these bytes, including the zero byte.
fn name_len(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match usize::from(*bytes.get(at)?) {
            0 => return Some(at + 1),
            len => at += 1 + len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const OWNER: &[u8] = b"\x03www\x07example\x03com\x00";

    fn param(key: u16, value: &[u8]) -> Vec<u8> {
        [&key.to_be_bytes()[..], &(value.len() as u16).to_be_bytes(), value].concat()
    }

    fn record(priority: u16, target: &[u8], params: &[Vec<u8>]) -> Vec<u8> {
        [&priority.to_be_bytes()[..], target, &params.concat()].concat()
    }

    #[test]
    fn hints_are_taken_out_and_all_else_stays() {
        let (alpn, ech, other) = (param(1, b"\x02h2"), param(5, b"key"), param(7, b"dohpath"));
        let hints = [param(IPV4_HINT, &[192, 0, 2, 1]), param(IPV6_HINT, &[0x20; 16])];
        let head = record(1, &[0], &[]);
        let all = [alpn.clone(), hints[0].clone(), ech.clone(), hints[1].clone(), other.clone()];
        for params in [all.to_vec(), [alpn.clone(), ech.clone(), other.clone()].to_vec()] {
            let data = record(1, &[0], &params);
            let found = around(&data, OWNER).unwrap();
            assert_eq!(found.before, [&head[..], &alpn].concat());
            assert_eq!((found.between, found.behind), (&ech[..], &other[..]));
        }
        let bare = record(3, &OWNER.to_ascii_uppercase(), &[]);
        assert_eq!(around(&bare, OWNER).unwrap(), SvcbRecord { before: &bare, between: &[], behind: &[] });
    }

    #[test]
    fn bindings_of_other_targets_are_left_unchanged() {
        assert_eq!(around(&record(0, &[0], &[]), OWNER), None, "an alias");
        assert_eq!(around(&record(1, b"\x03cdn\x00", &[]), OWNER), None);
        assert_eq!(around(&record(1, &[0], &[param(3, b""), param(1, b"")]), OWNER), None, "not in order");
        let whole = record(1, &[0], &[param(1, b"\x02h2"), param(IPV4_HINT, &[192, 0, 2, 1])]);
        // A record may also end after its first parameter.
        let ends = [3, 10, whole.len()];
        for len in 0..whole.len() {
            assert_eq!(around(&whole[..len], OWNER).is_some(), ends.contains(&len), "cut off at {len}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_svcb_data_never_panics(data in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Some(found) = around(&data, OWNER) {
                prop_assert!(found.before.len() + found.between.len() + found.behind.len() <= data.len());
            }
        }
    }
}
