//! Driver of an interface, and the settings that prevent native XDP (ethtool(8)).

use std::io;
use std::os::fd::AsRawFd;

use socket2::{Domain, Socket, Type};

const ETHTOOL_GDRVINFO: u32 = 3;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// Flag of large receive offload (linux/ethtool.h).
const ETH_FLAG_LRO: u32 = 1 << 15;
/// Largest MTU in bytes with which a frame with headroom and tailroom fits one page. Some drivers
/// refuse XDP above it.
const ONE_PAGE_MTU: i32 = 3498;

#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

#[repr(C)]
struct Flags {
    command: u32,
    value: u32,
}

/// `struct ethtool_channels`: maximum and current number of receive, transmit, other and combined
/// queues.
#[repr(C)]
struct Channels {
    command: u32,
    max: [u32; 4],
    count: [u32; 4],
}

/// Returns the driver of an interface, as `ethtool -i` names it.
pub(super) fn driver(interface: &str) -> io::Result<String> {
    let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
    run(interface, &mut info)?;
    let len = info.driver.iter().position(|byte| *byte == 0).unwrap_or(info.driver.len());
    debug_assert_eq!(info.rest.len(), 160);
    Ok(String::from_utf8_lossy(&info.driver[..len]).into_owned())
}

/// Returns the settings that would allow native XDP on an interface that refused it with `error`.
pub(super) fn remedy(interface: &str, error: &io::Error) -> String {
    let driver = driver(interface).unwrap_or_else(|_| "of unknown name".into());
    let has_lro = has_lro(interface);
    if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP)) && !has_lro {
        return format!("its driver {driver} has no XDP");
    }
    let mut settings = Vec::new();
    if has_lro {
        settings.push(format!("`ethtool -K {interface} lro off`"));
    }
    if mtu(interface).is_ok_and(|mtu| mtu > ONE_PAGE_MTU) {
        settings.push(format!("an MTU of at most {ONE_PAGE_MTU}"));
    }
    if let Ok((count, max)) = combined_queues(interface)
        && count > 1
        && count * 2 > max
    {
        settings.push(format!("fewer queues, `ethtool -L {interface} combined {}`", max / 2));
    }
    match settings.is_empty() {
        true => format!("the kernel log may have the reason of its driver {driver}"),
        false => format!("its driver {driver} may want {}", settings.join(", ")),
    }
}

fn has_lro(interface: &str) -> bool {
    let mut flags = Flags { command: ETHTOOL_GFLAGS, value: 0 };
    run(interface, &mut flags).is_ok() && flags.value & ETH_FLAG_LRO != 0
}

/// Returns current and maximum number of combined queues.
fn combined_queues(interface: &str) -> io::Result<(u32, u32)> {
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, max: [0; 4], count: [0; 4] };
    run(interface, &mut channels)?;
    Ok((channels.count[3], channels.max[3]))
}

fn mtu(interface: &str) -> io::Result<i32> {
    let mut request = request_for(interface)?;
    control(libc::SIOCGIFMTU, &mut request)?;
    // SAFETY: the kernel has written the MTU there; any bits are a number.
    Ok(unsafe { request.ifr_ifru.ifru_mtu })
}

/// Runs an ethtool command. `data` is the command's struct, which begins with the command number.
fn run<T>(interface: &str, data: &mut T) -> io::Result<()> {
    let mut request = request_for(interface)?;
    request.ifr_ifru.ifru_data = (&raw mut *data).cast();
    control(libc::SIOCETHTOOL, &mut request)
}

fn request_for(interface: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *place = byte as libc::c_char;
    }
    Ok(request)
}

fn control(command: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    // SAFETY: the kernel writes to the request. For ethtool it writes at most the length of the
    // command's struct to ifru_data, and the callers above pass that struct.
    match unsafe { libc::ioctl(socket.as_raw_fd(), command, &raw mut *request) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
