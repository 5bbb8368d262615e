//! Where the worker processes of a configuration come from.

use std::sync::Arc;

use rollway_wire::Address;

use super::ray::{Ray, RayError, RayOptions};
use super::{ChildOptions, Children};
use crate::config::{Backend, Config};

/// Why there is no place for workers: what, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {hint}")]
pub struct ClusterError {
    /// What is the matter.
    pub what: String,
    /// What can be done about it.
    pub hint: String,
}

impl From<RayError> for ClusterError {
    fn from(error: RayError) -> Self {
        Self { what: error.what, hint: error.hint }
    }
}

impl Children {
    /// Begins to listen for workers from where a configuration says; none is started yet. Needs a
    /// tokio runtime.
    ///
    /// # Errors
    /// If there is no such cluster, or nothing can be listened on.
    pub async fn of(config: &Config, mut options: ChildOptions) -> Result<Self, ClusterError> {
        let listening = match config.cluster.backend {
            Backend::Ray => {
                let ray = Ray::open(RayOptions::new(config, &options)).await?;
                options.address = Some(reached(config.cluster.listen.as_deref(), ray.ip()));
                Self::with_launcher(options, Arc::new(ray)).await
            }
            Backend::Local | Backend::Manual => Self::new(options).await,
        };
        listening.map_err(|error| ClusterError {
            what: format!("workers cannot be listened for: {error}"),
            hint: match config.cluster.backend {
                Backend::Local => "see that the folder for temporary files can be written to",
                Backend::Ray | Backend::Manual => {
                    "name an address of this machine with cluster.listen"
                }
            }
            .to_owned(),
        })
    }
}

/// Returns where workers on other machines reach this one: as named, or at the address that it has
/// in their cluster, at any free port.
fn reached(named: Option<&str>, here: &str) -> Address {
    let host = named.unwrap_or(here);
    let is_bare = host.parse::<std::net::Ipv6Addr>().is_ok();
    let has_port = !is_bare && host.rsplit_once(':').is_some_and(|(_, port)| is_port(port));
    Address::Tcp(match (is_bare, has_port) {
        (true, _) => format!("[{host}]:0"),
        (false, true) => host.to_owned(),
        (false, false) => format!("{host}:0"),
    })
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_any_unless_it_is_named() {
        let cases = [
            (None, "10.0.0.1", "10.0.0.1:0"),
            (None, "fe80::1", "[fe80::1]:0"),
            (Some("head"), "10.0.0.1", "head:0"),
            (Some("head:7000"), "10.0.0.1", "head:7000"),
            (Some("[::1]:7000"), "10.0.0.1", "[::1]:7000"),
        ];
        for (named, here, expected) in cases {
            assert_eq!(reached(named, here).to_string(), expected);
        }
    }
}
