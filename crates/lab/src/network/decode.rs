//! Independent checks of packets: etherparse and tcpdump(8) decode the sent frames and verify all
//! checksums.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use etherparse::checksum::Sum16BitWords;
use etherparse::{IpNumber, NetSlice, SlicedPacket, TransportSlice};

use crate::harness::process::Proc;
use crate::harness::wait::LONG;
use crate::network::host::Host;

/// Port of GUE, assigned by IANA.
const GUE_PORT: u16 = 6080;
/// Length of the GUE base header in bytes.
const GUE_LEN: usize = 4;
/// Length of the header of a capture file, and of the header before each frame (pcap-savefile(5)).
const FILE_HEADER_LEN: usize = 24;
const FRAME_HEADER_LEN: usize = 16;
/// Complaints of tcpdump about wrong checksums.
const COMPLAINTS: [&str; 5] =
    ["incorrect", "bad cksum", "bad udp cksum", "wrong icmp cksum", "bad icmp6 cksum"];

/// Recording of all frames that a host sends on an interface. Dropping the value stops it.
#[derive(Debug)]
pub struct Recording {
    tcpdump: Proc,
    file: PathBuf,
}

impl Host {
    /// Starts to record the frames that the host sends on an interface, at the switch's end.
    pub fn record(&self, interface: usize) -> Result<Recording> {
        let port = &self.interfaces[interface].port;
        let file = self.file(&format!("{port}.pcap"));
        let path = file.to_string_lossy();
        let switch = Host { name: format!("switch.{port}"), netns: self.switch.clone(), ..self.clone() };
        let words =
            ["tcpdump", "-U", "-n", "-Z", "root", "--immediate-mode", "-Q", "in", "-i", port, "-w", &path];
        let mut tcpdump = switch.spawn("record", &words)?;
        tcpdump.wait_for("listening on", LONG)?;
        Ok(Recording { tcpdump, file })
    }
}

impl Recording {
    /// Stops the recording and returns its frames.
    ///
    /// # Errors
    /// Fails if either decoder finds errors; returns the first ones.
    pub fn verified(mut self) -> Result<Vec<Vec<u8>>> {
        std::thread::sleep(Duration::from_millis(100));
        self.tcpdump.sigterm(Duration::from_secs(2))?;
        let frames = frames_of(&fs::read(&self.file).context("There is no recording")?)?;
        let wrong: Vec<String> = frames
            .iter()
            .filter_map(|frame| verify(frame).err().map(|why| format!("{why}: {frame:02x?}")))
            .take(3)
            .collect();
        if !wrong.is_empty() {
            bail!("Of {} frames, some are not as they should be:\n{}", frames.len(), wrong.join("\n"));
        }
        complaints(&self.file)?;
        Ok(frames)
    }
}

/// Returns the frames in a capture file that this machine wrote.
fn frames_of(file: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut rest = file.get(FILE_HEADER_LEN..).context("The recording has no beginning")?;
    let mut frames = Vec::new();
    while let Some((header, behind)) = rest.split_at_checked(FRAME_HEADER_LEN) {
        let len = header.get(8..12).and_then(|len| len.try_into().ok()).map_or(0, u32::from_ne_bytes);
        // the last frame may be incomplete
        let Some((frame, behind)) = behind.split_at_checked(len as usize) else { break };
        frames.push(frame.to_vec());
        rest = behind;
    }
    Ok(frames)
}

/// Returns an error with the complaints of tcpdump.
fn complaints(file: &Path) -> Result<()> {
    let output = Command::new("tcpdump").args(["-n", "-vv", "-r"]).arg(file).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong: Vec<&str> = text
        .lines()
        .filter(|line| COMPLAINTS.iter().any(|complaint| line.contains(complaint)))
        // tunnels over IPv6 may omit the checksum (RFC 6935), which tcpdump does not know
        .filter(|line| !line.contains(&format!(".{GUE_PORT}: [bad udp cksum 0x0000")))
        .take(5)
        .collect();
    if wrong.is_empty() { Ok(()) } else { bail!("tcpdump finds:\n{}", wrong.join("\n")) }
}

/// Verifies lengths and checksums of a frame, also of inner packets.
///
/// # Errors
/// Returns the defect.
pub fn verify(frame: &[u8]) -> Result<(), String> {
    let packet = SlicedPacket::from_ethernet(frame).map_err(|error| error.to_string())?;
    verify_packet(&packet)
}

fn verify_inside(packet: &[u8]) -> Result<(), String> {
    let packet = SlicedPacket::from_ip(packet).map_err(|error| format!("inside: {error}"))?;
    verify_packet(&packet).map_err(|why| format!("inside: {why}"))
}

fn verify_packet(packet: &SlicedPacket<'_>) -> Result<(), String> {
    match &packet.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header().to_header();
            if header.header_checksum != header.calc_header_checksum() {
                return Err("the IPv4 header's checksum is wrong".into());
            }
            if ip.is_payload_fragmented() {
                return Ok(());
            }
            let payload = ip.payload();
            match payload.ip_number {
                IpNumber::IPV4 | IpNumber::IPV6 => return verify_inside(payload.payload),
                _ => {}
            }
        }
        Some(NetSlice::Ipv6(ip)) => {
            if ip.is_payload_fragmented() {
                return Ok(());
            }
            let payload = ip.payload();
            match payload.ip_number {
                IpNumber::IPV4 | IpNumber::IPV6 => return verify_inside(payload.payload),
                _ => {}
            }
        }
        _ => return Ok(()),
    }
    verify_transport(packet)
}

fn verify_transport(packet: &SlicedPacket<'_>) -> Result<(), String> {
    let right = match (&packet.net, &packet.transport) {
        (_, Some(TransportSlice::Udp(udp))) if udp.destination_port() == GUE_PORT => {
            let words = udp.payload().first().ok_or("GUE is cut off")? & 0x1f;
            let inner = udp.payload().get(GUE_LEN + 4 * usize::from(words)..).ok_or("GUE is cut off")?;
            return verify_inside(inner);
        }
        (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) if udp.checksum() == 0 => {
            // UDP without a checksum (RFC 768), which IPv6 does not allow
            ip.header().version() == 4
        }
        (Some(NetSlice::Ipv4(ip)), Some(transport)) => {
            let (src, dst) = (ip.header().source(), ip.header().destination());
            match transport {
                TransportSlice::Tcp(tcp) => is_same(tcp.calc_checksum_ipv4(src, dst), tcp.checksum()),
                TransportSlice::Udp(udp) => {
                    udp.to_header().calc_checksum_ipv4_raw(src, dst, udp.payload()) == Ok(udp.checksum())
                }
                // the sum over the whole message with a right checksum is zero
                TransportSlice::Icmpv4(icmp) => {
                    Sum16BitWords::new().add_slice(icmp.slice()).ones_complement() == 0
                }
                TransportSlice::Icmpv6(_) => false,
                TransportSlice::Igmp(_) => true,
            }
        }
        (Some(NetSlice::Ipv6(ip)), Some(transport)) => {
            let (src, dst) = (ip.header().source(), ip.header().destination());
            match transport {
                TransportSlice::Tcp(tcp) => is_same(tcp.calc_checksum_ipv6(src, dst), tcp.checksum()),
                TransportSlice::Udp(udp) => {
                    udp.to_header().calc_checksum_ipv6_raw(src, dst, udp.payload()) == Ok(udp.checksum())
                }
                TransportSlice::Icmpv6(icmp) => icmp.is_checksum_valid(src, dst),
                TransportSlice::Icmpv4(_) => false,
                TransportSlice::Igmp(_) => true,
            }
        }
        _ => true,
    };
    if right { Ok(()) } else { Err("the transport's checksum is wrong".into()) }
}

/// True if a checksum is right. Zero has two forms in ones' complement, and stacks send either.
fn is_same<E>(right: Result<u16, E>, found: u16) -> bool {
    right.is_ok_and(|right| right % 0xffff == found % 0xffff)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::cases;

    /// Frames that the project's cases expect are right, except in cases about damaged frames.
    #[test]
    fn frames_of_the_cases_are_right_and_damaged_ones_are_not() {
        let mut count = 0;
        for file in cases::load(&cases::directory()).unwrap() {
            let name = file.path.file_name().unwrap().to_string_lossy().into_owned();
            if !["nat.case", "nat6.case", "source-nat.case", "too-big.case", "neighbour.case"]
                .contains(&&*name)
            {
                continue;
            }
            for step in file.cases.iter().flat_map(|case| &case.steps) {
                let cases::Action::Packet(packet) = &step.action else { continue };
                let cases::Exit::Interface(_) = packet.expected.exit else { continue };
                let mut frame = packet.expected.frame.clone();
                assert_eq!(verify(&frame), Ok(()), "{name}:{}", step.line);
                count += 1;
                if let Some(last) = frame.last_mut().filter(|_| !name.contains("neighbour")) {
                    *last ^= 1;
                    let silent = verify(&frame).is_ok();
                    // a fragment has no transport checksum
                    let without = ["sum=0", "frag6 "].iter().any(|words| step.text.contains(words));
                    assert!(!silent || frame[12..14] == [8, 6] || without, "{}", step.line);
                }
            }
        }
        assert!(count > 50, "{count}");
    }
}
