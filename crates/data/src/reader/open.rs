//! Readers by address, wherever the buffer is.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rollway_base::{Address as Endpoint, Secret};

use super::remote::{Patience, connect};
use crate::buffer::{self, Address, AddressError, Buffer, BufferError, Reader, Result};

/// The variable of the environment that holds the secret of a server.
pub const SECRET: &str = "ROLLWAY_READER_SECRET";

/// What can be read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A buffer that is opened here.
    Local(Address),
    /// `rollway://HOST:PORT` or `rollway+unix:PATH`: a buffer that a server offers.
    Remote(Endpoint),
}

impl FromStr for Target {
    type Err = AddressError;

    fn from_str(text: &str) -> std::result::Result<Self, AddressError> {
        let incomplete = |what| AddressError::Incomplete(text.to_owned(), what);
        if text.starts_with("rollway") && text.contains('?') {
            return Err(incomplete(
                "secret that would stay secret; leave out `?…` and set ROLLWAY_READER_SECRET",
            ));
        }
        if let Some(path) = text.strip_prefix("rollway+unix:") {
            let endpoint = format!("unix:{path}").parse();
            return endpoint.map(Self::Remote).map_err(|_| incomplete("socket"));
        }
        if let Some(host_port) = text.strip_prefix("rollway://") {
            return match host_port.trim_end_matches('/').parse() {
                Ok(endpoint @ Endpoint::Tcp(_)) => Ok(Self::Remote(endpoint)),
                _ => Err(incomplete("HOST:PORT")),
            };
        }
        text.parse().map(Self::Local)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(address) => address.fmt(f),
            Self::Remote(Endpoint::Tcp(host_port)) => write!(f, "rollway://{host_port}"),
            Self::Remote(Endpoint::Unix(path)) => write!(f, "rollway+unix:{}", path.display()),
        }
    }
}

/// Opens a reader. A server needs its secret; nothing else does. Blocks.
pub fn open(target: &Target, name: &str, secret: Option<Secret>) -> Result<Box<dyn Reader>> {
    let Target::Local(address) = target else {
        let Some(secret) = secret else {
            return Err(BufferError::Unsupported {
                storage: target.to_string(),
                message: format!("its secret is needed: give it, or set {SECRET}"),
            });
        };
        let remote = connect(&target.to_string(), secret, name, Patience::default())?;
        return Ok(Box::new(remote));
    };
    storage(address)?.reader(name)
}

/// Opens a buffer that others fill. A queue is in the process of its engine, and one that was made
/// here would stay empty for ever.
pub fn storage(address: &Address) -> Result<Arc<dyn Buffer>> {
    if let Address::Queue(_) = address {
        return Err(BufferError::Unsupported {
            storage: address.to_string(),
            message: "a queue is in the process of its engine; read it from the coordinator, or \
                      from the rollway:// address of a server that offers it"
                .to_owned(),
        });
    }
    buffer::open(address, &buffer::Options::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_buffers_have_addresses() {
        for text in ["rollway://10.0.0.1:7000", "rollway+unix:/run/x.sock"] {
            let target: Target = text.parse().unwrap();
            assert!(matches!(target, Target::Remote(_)));
            assert_eq!(target.to_string(), text);
        }
        assert!(matches!("sqlite:///x.db".parse(), Ok(Target::Local(Address::Sqlite(_)))));
        for text in ["rollway://", "rollway://host", "rollway+unix:", "rollway://unix:/a"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
        let error = "rollway://h:1?secret=x".parse::<Target>().unwrap_err().to_string();
        assert!(error.contains("ROLLWAY_READER_SECRET"), "{error}");
    }
}
