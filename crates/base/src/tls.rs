//! Settings of TLS for the listeners of a job.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Listeners that speak TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// Those on an address that other machines can reach.
    #[default]
    Auto,
    Off,
    /// All TCP listeners.
    Required,
}

/// Source of the certificate of the listeners of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// PEM files of the operator: the certificate with its chain, and the private key.
    Files { certificate: PathBuf, key: PathBuf },
    /// A self-signed certificate of the job, kept in this folder.
    Folder(PathBuf),
    /// A self-signed certificate of the listener, which ends with it.
    Memory,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    pub mode: TlsMode,
    pub source: CertificateSource,
    /// Host names of the job for other machines, which a self-signed certificate contains.
    pub hosts: Vec<String>,
}

impl TlsOptions {
    /// Returns options without TLS.
    pub fn off() -> Self {
        Self { mode: TlsMode::Off, source: CertificateSource::Memory, hosts: Vec::new() }
    }

    /// Returns whether a listener speaks TLS.
    pub fn covers(&self, address: SocketAddr) -> bool {
        match self.mode {
            TlsMode::Auto => !address.ip().is_loopback(),
            TlsMode::Off => false,
            TlsMode::Required => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_covers_addresses_that_other_machines_reach() {
        let with = |mode| TlsOptions { mode, ..TlsOptions::off() };
        let addresses =
            ["127.0.0.1:1", "[::1]:1", "0.0.0.0:1", "10.0.0.1:1"].map(|it| it.parse().unwrap());
        let covers = |mode| addresses.map(|address| with(mode).covers(address));
        assert_eq!(covers(TlsMode::Auto), [false, false, true, true]);
        assert_eq!(covers(TlsMode::Off), [false; 4]);
        assert_eq!(covers(TlsMode::Required), [true; 4]);
    }
}
