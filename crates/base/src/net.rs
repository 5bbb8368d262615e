//! Addresses of this machine as other machines see them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Returns a URL that other machines can use: an unspecified host is replaced by this machine's
/// address.
pub fn advertised_url(url: &str) -> String {
    let parts = url.split_once("://");
    let address = parts.and_then(|(_, rest)| rest.parse::<SocketAddr>().ok());
    match (parts, address) {
        (Some((scheme, _)), Some(address)) if address.ip().is_unspecified() => {
            let address = SocketAddr::new(source_address(address.ip()), address.port());
            format!("{scheme}://{address}")
        }
        _ => url.to_owned(),
    }
}

/// Returns the IPv4 address of this machine on its default route.
pub fn own_address() -> IpAddr {
    source_address(Ipv4Addr::UNSPECIFIED.into())
}

/// Returns `HOST:PORT`, with brackets around an IPv6 address.
pub fn host_port(host: &str, port: u16) -> String {
    let bare_v6 = host.contains(':') && !host.starts_with('[');
    if bare_v6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Returns the host of `HOST:PORT` or `HOST`, without the brackets of an IPv6 address.
pub fn host_of(address: &str) -> &str {
    let host = match address.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => address,
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    bare.unwrap_or(host)
}

/// Returns whether a host is this machine's loopback interface, by name or address.
pub fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns the source address of packets to other machines; sends none. Falls back to loopback.
fn source_address(listening: IpAddr) -> IpAddr {
    let (any, remote, loopback): (SocketAddr, SocketAddr, IpAddr) = match listening {
        IpAddr::V4(_) => (
            (Ipv4Addr::UNSPECIFIED, 0).into(),
            (Ipv4Addr::new(192, 0, 2, 1), 9).into(),
            Ipv4Addr::LOCALHOST.into(),
        ),
        IpAddr::V6(_) => (
            (Ipv6Addr::UNSPECIFIED, 0).into(),
            (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9).into(),
            Ipv6Addr::LOCALHOST.into(),
        ),
    };
    let route = || {
        let socket = UdpSocket::bind(any)?;
        socket.connect(remote)?;
        socket.local_addr()
    };
    route().map_or(loopback, |address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_hosts_are_recognized() {
        for address in ["localhost:8010", "LOCALHOST", "127.0.0.1:80", "127.1.2.3", "[::1]:80"] {
            assert!(is_loopback(host_of(address)), "{address}");
        }
        for address in ["", ":80", "0.0.0.0:80", "[::]:80", "localhost.example:80", "127.0.0.1.a"] {
            assert!(!is_loopback(host_of(address)), "{address}");
        }
    }

    #[test]
    fn unspecified_host_is_replaced() {
        assert_eq!(advertised_url("http://127.0.0.1:80"), "http://127.0.0.1:80");
        let url = advertised_url("https://0.0.0.0:8010");
        assert!(
            url.starts_with("https://") && url.ends_with(":8010") && !url.contains("0.0.0.0"),
            "{url}"
        );
    }
}
