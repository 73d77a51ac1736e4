//! EDNS records and options in answers (RFC 6891).

use core::net::IpAddr;

use super::query::Subnet;
use super::wire::{Rcode, RecordSection, SizeExceeded, SizeLimit, Writer, option, rtype};

/// Maximum length of an answer by UDP, which avoids fragmentation (dnsflagday.net/2020).
pub const UDP_MAX: usize = 1_232;
/// Maximum length of the options of an answer, without the server identifier.
pub(super) const OPTIONS_MAX: usize = 128;

/// Writes an OPT record without options.
pub(super) fn bare_edns(writer: &mut Writer<'_>, limit: SizeLimit, rcode: Rcode) -> Result<(), SizeExceeded> {
    let (class, ttl) = (UDP_MAX as u16, u32::from(rcode.code() >> 4) << 24);
    writer.record(limit, RecordSection::Additional, &[0], (rtype::OPT, class), ttl, &[])
}

/// Options of an answer. Options that don't fit are left out.
pub(super) struct EdnsOptions {
    bytes: [u8; OPTIONS_MAX + 64],
    len: usize,
}

impl Default for EdnsOptions {
    fn default() -> Self {
        EdnsOptions { bytes: [0; OPTIONS_MAX + 64], len: 0 }
    }
}

impl EdnsOptions {
    pub(super) fn push_option(&mut self, code: u16, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let Ok(len_field) = u16::try_from(len) else { return };
        let Some(mut place) = self.bytes.get_mut(self.len..self.len + 4 + len) else { return };
        for part in
            [&code.to_be_bytes()[..], &len_field.to_be_bytes()].into_iter().chain(parts.iter().copied())
        {
            let (now, rest) = place.split_at_mut(part.len());
            now.copy_from_slice(part);
            place = rest;
        }
        self.len += 4 + len;
    }

    /// Adds the client subnet of the query, with the scope of the answer (RFC 7871, section 7.2.1).
    pub(super) fn put_subnet(&mut self, subnet: Subnet, scope: u8) {
        let mut octets = [0; 16];
        let family = match subnet.address {
            None => 0,
            Some(IpAddr::V4(address)) => {
                octets[..4].copy_from_slice(&address.octets());
                1
            }
            Some(IpAddr::V6(address)) => {
                octets = address.octets();
                2
            }
        };
        let cut = octets.get(..usize::from(subnet.prefix_len).div_ceil(8)).unwrap_or_default();
        self.push_option(option::SUBNET, &[&[0, family, subnet.prefix_len, scope], cut]);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}
