//! Listening addresses in the spelling of gRPC libraries.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A listening address: `unix:/run/job/engine.sock` or `127.0.0.1:7000`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// `HOST:PORT`.
    Tcp(String),
}

impl Address {
    /// Returns a loopback address whose port the operating system chooses.
    pub fn loopback() -> Self {
        Self::Tcp("127.0.0.1:0".to_owned())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(host_port) => f.write_str(host_port),
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
#[error("not an address, expected `unix:PATH` or `HOST:PORT`: `{text}`")]
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
        assert_eq!("unix:///a".parse(), Ok(Address::Unix("/a".into())));
    }

    #[test]
    fn other_texts_are_no_addresses() {
        for text in ["", "unix:", "host", ":80", "host:", "host:70000", "::1:80", "http://h:80"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
