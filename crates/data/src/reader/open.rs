//! Readers by address.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rollway_base::{Address as Endpoint, Secret};

use super::remote::{RetryTimeouts, connect};
use crate::buffer::{
    self, Buffer, BufferAddress, BufferAddressError, BufferError, BufferStorage, ExperienceReader,
    Result,
};

/// Environment variable with the secret of a server.
pub const SECRET: &str = "ROLLWAY_READER_SECRET";

/// Source of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReaderTarget {
    /// A buffer opened in this process. A database may name the table: `…?table=NAME`.
    Local(BufferAddress, Option<String>),
    /// A served buffer: `rollway://HOST:PORT`, `rollway+tls://HOST:PORT#FINGERPRINT` or
    /// `rollway+unix:PATH`.
    Remote(Endpoint),
}

impl FromStr for ReaderTarget {
    type Err = BufferAddressError;

    fn from_str(text: &str) -> std::result::Result<Self, BufferAddressError> {
        let incomplete = |what| BufferAddressError::Incomplete(text.to_owned(), what);
        if text.starts_with("rollway") && text.contains('?') {
            return Err(incomplete(
                "secret that would stay secret; leave out `?…` and set ROLLWAY_READER_SECRET",
            ));
        }
        if let Some(path) = text.strip_prefix("rollway+unix:") {
            let endpoint = format!("unix:{path}").parse();
            return endpoint.map(Self::Remote).map_err(|_| incomplete("socket"));
        }
        if let Some(address) = text.strip_prefix("rollway+tls://") {
            let endpoint = format!("tls:{address}").parse();
            return endpoint.map(Self::Remote).map_err(|_| incomplete("HOST:PORT#FINGERPRINT"));
        }
        if let Some(host_port) = text.strip_prefix("rollway://") {
            return match host_port.trim_end_matches('/').parse() {
                Ok(endpoint @ Endpoint::Tcp(_)) => Ok(Self::Remote(endpoint)),
                _ => Err(incomplete("HOST:PORT")),
            };
        }
        let (address, table) = split_table(text);
        let address: BufferAddress = address.parse()?;
        if table.is_some() && address.storage() != BufferStorage::Database {
            return Err(incomplete("table; leave out `?table=…`"));
        }
        Ok(Self::Local(address, table))
    }
}

impl fmt::Display for ReaderTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(address, None) => address.fmt(f),
            Self::Local(address, Some(table)) => {
                f.write_str(&with_table(&address.to_string(), table))
            }
            Self::Remote(Endpoint::Tcp(host_port)) => write!(f, "rollway://{host_port}"),
            Self::Remote(Endpoint::Tls { host_port, fingerprint }) => {
                write!(f, "rollway+tls://{host_port}#{fingerprint}")
            }
            Self::Remote(Endpoint::Unix(path)) => write!(f, "rollway+unix:{}", path.display()),
        }
    }
}

/// Opens a reader. Only servers need the secret. Blocks.
pub fn open(
    target: &ReaderTarget,
    name: &str,
    secret: Option<Secret>,
) -> Result<Box<dyn ExperienceReader>> {
    let ReaderTarget::Local(address, table) = target else {
        let Some(secret) = secret else {
            return Err(BufferError::unsupported(
                target.to_string(),
                format!("its secret is needed: give it, or set {SECRET}"),
            ));
        };
        let remote = connect(&target.to_string(), secret, name, RetryTimeouts::default())?;
        return Ok(Box::new(remote));
    };
    storage(address, table.as_deref())?.reader(name)
}

/// Opens a buffer that another process fills. Refuses queues, which exist in the process of the
/// engine only. Without a table, a database has the default one.
pub fn storage(address: &BufferAddress, table: Option<&str>) -> Result<Arc<dyn Buffer>> {
    if address.storage() == BufferStorage::Queue {
        return Err(BufferError::unsupported(
            address.to_string(),
            "a queue is in memory of its engine: read it from the coordinator, or from the \
             rollway:// address of its server",
        ));
    }
    let mut options = buffer::BufferOptions::default();
    if let Some(table) = table {
        options.sql.table = table.to_owned();
    }
    buffer::open(address, &options)
}

/// Returns the text of an address with the table of a database.
pub fn with_table(address: &str, table: &str) -> String {
    let separator = if address.contains('?') { '&' } else { '?' };
    format!("{address}{separator}table={table}")
}

/// Splits the parameter `table`, the last one, off an address.
fn split_table(text: &str) -> (&str, Option<String>) {
    let found = text.rfind("?table=").or_else(|| text.rfind("&table="));
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match found.map(|at| (&text[..at], &text[at + "?table=".len()..])) {
        Some((address, table)) if !table.is_empty() && table.chars().all(plain) => {
            (address, Some(table.to_owned()))
        }
        _ => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::BufferKind;

    #[test]
    fn servers_and_buffers_have_addresses() {
        let tls = format!("rollway+tls://host:7000#{}", "0a".repeat(32));
        for text in ["rollway://10.0.0.1:7000", "rollway+unix:/run/x.sock", &tls] {
            let target: ReaderTarget = text.parse().unwrap();
            assert!(matches!(target, ReaderTarget::Remote(_)));
            assert_eq!(target.to_string(), text);
        }
        let sqlite = BufferAddress::new(BufferKind::Sqlite, "x.db");
        assert_eq!("sqlite:///x.db".parse(), Ok(ReaderTarget::Local(sqlite, None)));
        for text in ["sqlite:///x.db", "postgresql://me@host/db?application_name=a"] {
            let named = with_table(text, "mine");
            let target: ReaderTarget = named.parse().unwrap();
            let ReaderTarget::Local(address, table) = &target else { panic!("{target}") };
            assert_eq!((address.to_string(), table.as_deref()), (text.to_owned(), Some("mine")));
            assert_eq!(target.to_string(), named);
        }
        assert!("out.jsonl?table=mine".parse::<ReaderTarget>().is_err());
        for text in [
            "rollway://",
            "rollway://host",
            "rollway+unix:",
            "rollway://unix:/a",
            "rollway+tls://h:1",
        ] {
            assert!(text.parse::<ReaderTarget>().is_err(), "{text}");
        }
        let error = "rollway://h:1?secret=x".parse::<ReaderTarget>().unwrap_err().to_string();
        assert!(error.contains("ROLLWAY_READER_SECRET"), "{error}");
    }
}
