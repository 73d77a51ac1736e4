//! A TLS ClientHello (RFC 8446, section 4.1.2).

/// Returns bytes behind a length of two bytes.
fn counted(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

/// Returns a ClientHello with this server name, or without one.
pub(super) fn hello(name: Option<&[u8]>) -> Vec<u8> {
    let mut extensions = Vec::new();
    if let Some(name) = name {
        // a list of one entry of type host_name (RFC 6066, section 3)
        let entry = [&[0][..], &counted(name)].concat();
        extensions.extend([&[0, 0][..], &counted(&counted(&entry))].concat());
    }
    // supported_versions: TLS 1.3
    extensions.extend([0, 43, 0, 3, 2, 3, 4]);
    let mut body = vec![3, 3];
    body.extend([0x5a; 32]);
    body.push(0);
    body.extend(counted(&[0x13, 1]));
    body.extend([1, 0]);
    body.extend(counted(&extensions));
    let [_, len @ ..] = (body.len() as u32).to_be_bytes();
    let message = [&[1][..], &len, &body].concat();
    [&[0x16, 3, 1][..], &counted(&message)].concat()
}
