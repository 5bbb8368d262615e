//! Addresses under which workers on other machines reach this one.

use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};

use rollway_base::net::{self, host_port};
use rollway_config::{ClusterBackend, ClusterConfig, Config};

/// Environment variable with the address of Ray's head.
const RAY_ADDRESS: &str = "RAY_ADDRESS";

/// Address of a job for other machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvertisedAddress {
    /// Host name or address for other machines.
    pub host: String,
    /// Port for workers. 0: any.
    pub port: u16,
    /// Port of the model gateway. 0: any.
    pub gateway_port: u16,
    /// Host to bind.
    bind: String,
}

impl AdvertisedAddress {
    /// `None`: the job is local.
    pub fn of(config: &Config) -> Option<Self> {
        if config.cluster.backend == ClusterBackend::Local {
            return None;
        }
        let (address, warning) = Self::with_warning(config);
        if let Some(warning) = warning {
            tracing::warn!("{warning}");
        }
        Some(address)
    }

    /// Returns the address, and a warning if it listens where it was not told to.
    fn with_warning(config: &Config) -> (Self, Option<String>) {
        let cluster = &config.cluster;
        let mut warning = None;
        let gateway_port = cluster.gateway_port.unwrap_or(0);
        let listen = cluster.listen.as_deref().and_then(ClusterConfig::host_and_port);
        let (host, bind, port) = match listen {
            Some((host, port)) if is_all(&host) => (own(cluster), host, port),
            Some((host, port)) if is_mine(&host) => (host.clone(), host, port),
            // A name of this machine for others, which this machine need not resolve.
            Some((host, port)) => {
                warning = Some(format!(
                    "`cluster.listen`: {host} is no address of this machine, so that workers and \
                     the gateway listen on all of its networks (0.0.0.0); workers get the name \
                     {host}"
                ));
                (host, "0.0.0.0".to_owned(), port)
            }
            None => {
                let host = own(cluster);
                (host.clone(), host, 0)
            }
        };
        (Self { host, port, gateway_port, bind }, warning)
    }

    /// Returns the address to bind.
    pub fn listens_at(&self, port: u16) -> String {
        host_port(&self.bind, port)
    }
}

fn is_all(host: &str) -> bool {
    host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_unspecified())
}

/// Tells whether a name resolves to this machine.
fn is_mine(host: &str) -> bool {
    let addresses = (host, 0).to_socket_addrs();
    addresses.is_ok_and(|mut found| found.any(|address| UdpSocket::bind(address).is_ok()))
}

/// Returns the address of this machine towards the cluster; sends nothing.
fn own(cluster: &ClusterConfig) -> String {
    let named = cluster.address.clone().or_else(|| std::env::var(RAY_ADDRESS).ok());
    // Ray starts a cluster on this machine, so that no other machine has to connect.
    if cluster.backend == ClusterBackend::Ray && named.as_deref() == Some("local") {
        return "127.0.0.1".to_owned();
    }
    let head = named.and_then(|address| {
        let address = address.rsplit('/').next()?.to_owned();
        address.to_socket_addrs().ok()?.next()
    });
    let towards = |head: SocketAddr| {
        let any = if head.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(head).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    head.and_then(towards).unwrap_or_else(net::own_address).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_on_this_machine_uses_the_loopback() {
        let keys = serde_json::json!({ "cluster": { "backend": "ray", "address": "local" } });
        let address = AdvertisedAddress::of(&Config::from_value(&keys).unwrap()).unwrap();
        assert_eq!((&*address.host, &*address.listens_at(7)), ("127.0.0.1", "127.0.0.1:7"));
    }

    #[test]
    fn listening_on_all_networks_is_warned_of_unless_it_was_asked_for() {
        for (listen, bind, is_warned) in [
            ("127.0.0.1:7000", "127.0.0.1:7", false),
            ("0.0.0.0:7000", "0.0.0.0:7", false),
            // A documentation address, which no machine has.
            ("192.0.2.1:7000", "0.0.0.0:7", true),
        ] {
            let keys = serde_json::json!({ "cluster": { "backend": "manual", "listen": listen } });
            let config = Config::from_value(&keys).unwrap();
            let (address, warning) = AdvertisedAddress::with_warning(&config);
            assert_eq!(address.listens_at(7), bind);
            let warning = warning.unwrap_or_default();
            assert_eq!(warning.contains("192.0.2.1") && warning.contains("0.0.0.0"), is_warned);
        }
    }
}
