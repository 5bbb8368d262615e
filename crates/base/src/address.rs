//! Addresses of listeners, in the spelling of gRPC libraries.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::Fingerprint;

/// An address: `unix:/run/job/engine.sock`, `127.0.0.1:7000` or `tls:10.0.0.5:7000#FINGERPRINT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// `HOST:PORT`.
    Tcp(String),
    /// `HOST:PORT` of a listener that speaks TLS with the certificate of this fingerprint.
    Tls { host_port: String, fingerprint: Fingerprint },
}

impl Address {
    /// Returns a loopback address whose port the operating system chooses.
    pub fn loopback() -> Self {
        Self::Tcp("127.0.0.1:0".to_owned())
    }

    /// Returns `HOST:PORT`. `None`: a Unix socket.
    pub fn host_port(&self) -> Option<&str> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp(host_port) | Self::Tls { host_port, .. } => Some(host_port),
        }
    }

    /// Returns the fingerprint of the certificate. `None`: no TLS.
    pub const fn fingerprint(&self) -> Option<Fingerprint> {
        match self {
            Self::Unix(_) | Self::Tcp(_) => None,
            Self::Tls { fingerprint, .. } => Some(*fingerprint),
        }
    }

    /// Returns the same address with another `HOST:PORT`. A Unix socket stays as it is.
    #[must_use]
    pub fn at(&self, host_port: String) -> Self {
        match self {
            Self::Unix(_) => self.clone(),
            Self::Tcp(_) => Self::Tcp(host_port),
            Self::Tls { fingerprint, .. } => Self::Tls { host_port, fingerprint: *fingerprint },
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(host_port) => f.write_str(host_port),
            Self::Tls { host_port, fingerprint } => write!(f, "tls:{host_port}#{fingerprint}"),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError { text: text.to_owned() };
        if let Some(path) = text.strip_prefix("unix:") {
            // `unix:///run/x` is the same as `unix:/run/x`.
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err(error()),
                path => Ok(Self::Unix(path.into())),
            };
        }
        if let Some(rest) = text.strip_prefix("tls:") {
            let (host_port, fingerprint) = rest.split_once('#').ok_or_else(error)?;
            let fingerprint = fingerprint.parse().map_err(|_| error())?;
            return match host_port.parse()? {
                Self::Tcp(host_port) => Ok(Self::Tls { host_port, fingerprint }),
                _ => Err(error()),
            };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let plain = !host.is_empty() && !host.contains('/');
        // A bare IPv6 address would be cut in the middle.
        let bracketed = !host.contains(':') || (host.starts_with('[') && host.ends_with(']'));
        if !plain || !bracketed || port.parse::<u16>().is_err() {
            return Err(error());
        }
        Ok(Self::Tcp(text.to_owned()))
    }
}

/// Error: the text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not an address, expected `unix:PATH`, `HOST:PORT` or `tls:HOST:PORT#FINGERPRINT`: `{text}`"
)]
pub struct AddressError {
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_they_print() {
        for text in ["unix:/run/a b.sock", "unix:relative", "127.0.0.1:80", "[::1]:0", "host:7"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let tls = format!("tls:[::1]:7#{}", "0a".repeat(32));
        let address: Address = tls.parse().unwrap();
        assert_eq!((address.to_string(), address.host_port()), (tls, Some("[::1]:7")));
        assert_eq!("unix:///a".parse(), Ok(Address::Unix("/a".into())));
    }

    #[test]
    fn other_texts_are_no_addresses() {
        for text in [
            "",
            "unix:",
            "host",
            ":80",
            "host:",
            "host:70000",
            "::1:80",
            "http://h:80",
            "tls:h:80",
            "tls:h:80#0a",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
