//! Captures frames with their VLAN tags: the kernel removes the tags before a packet socket sees
//! the frame, and libpcap restores them.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use anyhow::{Context, Result, bail};

/// Length of the header of a capture, and of the header before each frame (pcap-savefile(5)).
const FILE_HEADER_LEN: usize = 24;
const FRAME_HEADER_LEN: usize = 16;

/// Running tcpdump(8) that reports every frame received on an interface. Dropping the value stops
/// it.
#[derive(Debug)]
pub(super) struct Sniffer {
    tcpdump: Child,
    frames: Receiver<Vec<u8>>,
}

impl Sniffer {
    /// Starts to capture on an interface of the caller's namespace.
    pub(super) fn start(interface: &str) -> Result<Sniffer> {
        let mut tcpdump = Command::new("tcpdump")
            .args(["-U", "-Z", "root", "--immediate-mode", "-Q", "in", "-w", "-", "-i", interface])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("The program tcpdump did not start; `make setup` installs it")?;
        let (stdout, stderr) = (tcpdump.stdout.take(), tcpdump.stderr.take());
        let (sender, frames) = channel();
        let sniffer = Sniffer { tcpdump, frames };
        let mut says = BufReader::new(stderr.context("tcpdump has no standard error")?).lines();
        if !says.any(|line| line.is_ok_and(|line| line.contains("listening on"))) {
            bail!("tcpdump does not listen at {interface}");
        }
        let mut stdout = stdout.context("tcpdump has no standard output")?;
        thread::spawn(move || {
            // the thread ends with tcpdump
            let _ = stdout.read_exact(&mut [0; FILE_HEADER_LEN]);
            while let Ok(frame) = next(&mut stdout) {
                if sender.send(frame).is_err() {
                    break;
                }
            }
        });
        Ok(sniffer)
    }

    /// Returns the frames received so far.
    pub(super) fn frames(&self) -> impl Iterator<Item = Vec<u8>> {
        self.frames.try_iter()
    }
}

impl Drop for Sniffer {
    fn drop(&mut self) {
        let _ = self.tcpdump.kill();
        let _ = self.tcpdump.wait();
    }
}

fn next(stdout: &mut ChildStdout) -> std::io::Result<Vec<u8>> {
    let mut header = [0; FRAME_HEADER_LEN];
    stdout.read_exact(&mut header)?;
    let [.., a, b, c, d, _, _, _, _] = header;
    let mut frame = vec![0; u32::from_ne_bytes([a, b, c, d]) as usize];
    stdout.read_exact(&mut frame)?;
    Ok(frame)
}
