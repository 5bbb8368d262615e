//! Addresses of buffers.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use rollway_base::{BufferAddressError, BufferKind, BufferLocation, BufferStorage};

/// Address of a buffer: kind and location. Displayed without the password.
#[derive(Clone, PartialEq, Eq)]
pub struct BufferAddress {
    kind: BufferKind,
    location: String,
}

impl BufferAddress {
    pub fn new(kind: BufferKind, location: impl Into<String>) -> Self {
        Self { kind, location: location.into() }
    }

    /// Returns the address of a buffer without a configured one. `None`: the folder has no UTF-8
    /// name.
    pub fn default_of(storage: BufferStorage, folder: &Path, name: &str) -> Option<Self> {
        let kind = BufferKind::default_of(storage)?;
        if kind.syntax().location == BufferLocation::Name {
            return Some(Self::new(kind, name));
        }
        let path = folder.join(format!("{name}{}", kind.syntax().default_ending));
        Some(Self::new(kind, path.to_str()?))
    }

    pub const fn kind(&self) -> BufferKind {
        self.kind
    }

    /// Returns the path, the server with its password, or the name.
    pub fn location(&self) -> &str {
        &self.location
    }

    pub const fn storage(&self) -> BufferStorage {
        self.kind.storage()
    }

    /// Returns the text for processes with another working directory, with the password.
    pub fn for_other_processes(&self) -> String {
        let absolute = match self.kind.syntax().location {
            BufferLocation::Path => std::path::absolute(&self.location).ok(),
            BufferLocation::Server | BufferLocation::Name => None,
        };
        let absolute = absolute.and_then(|path| path.into_os_string().into_string().ok());
        self.kind.address(absolute.as_deref().unwrap_or(&self.location))
    }
}

impl FromStr for BufferAddress {
    type Err = BufferAddressError;

    fn from_str(text: &str) -> Result<Self, BufferAddressError> {
        match BufferKind::split(text) {
            Ok((kind, location)) => Ok(Self::new(kind, location)),
            Err(BufferAddressError::Unknown(path)) if Path::new(&path).is_dir() => {
                Ok(Self::new(BufferKind::Parquet, path))
            }
            Err(error) => Err(error),
        }
    }
}

impl fmt::Display for BufferAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.kind.address(&self.location);
        match self.kind.syntax().location {
            BufferLocation::Server => f.write_str(&without_secrets(&address)),
            BufferLocation::Path | BufferLocation::Name => f.write_str(&address),
        }
    }
}

/// Debug output contains no password either.
impl fmt::Debug for BufferAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferAddress({self})")
    }
}

/// Removes the password, before the host or among the parameters.
pub(super) fn without_secrets(url: &str) -> String {
    let (scheme, rest) = url.split_once("//").unwrap_or(("", url));
    // A password may contain unescaped characters: the last `@` separates.
    let shown = match rest.rsplit_once('@') {
        Some((user, host)) => {
            let user = user.split_once(':').map_or(user, |(user, _)| user);
            format!("{scheme}//{user}@{host}")
        }
        None => url.to_owned(),
    };
    let (place, options) = shown.split_once('?').unwrap_or((&shown, ""));
    let harmless = |option: &&str| !option.to_ascii_lowercase().contains("password");
    let options: Vec<&str> =
        options.split('&').filter(|option| !option.is_empty()).filter(harmless).collect();
    if options.is_empty() { place.to_owned() } else { format!("{place}?{}", options.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<BufferAddress, String> {
        text.parse().map_err(|error: BufferAddressError| error.to_string())
    }

    #[test]
    fn addresses_are_parsed() {
        use BufferKind::{JsonLines, Parquet, Postgres, Queue, Sqlite};
        for (text, kind, location) in [
            ("sqlite:///job/buffer.db", Sqlite, "job/buffer.db"),
            ("sqlite:////data/buffer.db", Sqlite, "/data/buffer.db"),
            ("sqlite:buffer.db", Sqlite, "buffer.db"),
            ("postgres://me@host/db", Postgres, "me@host/db"),
            ("postgresql+psycopg2://me@host/db", Postgres, "me@host/db"),
            ("out/log.jsonl", JsonLines, "out/log.jsonl"),
            ("file:///out/log.json", JsonLines, "/out/log.json"),
            ("out/all.parquet", Parquet, "out/all.parquet"),
            ("out/", Parquet, "out/"),
            ("queue:trainer", Queue, "trainer"),
        ] {
            assert_eq!(read(text), Ok(BufferAddress::new(kind, location)), "{text}");
        }
    }

    #[test]
    fn invalid_addresses_are_refused_with_a_remedy() {
        let refused = |text: &str| read(text).unwrap_err();
        let mysql = refused("mysql+pymysql://me:secret@host/db");
        assert!(mysql.starts_with("`mysql+pymysql:` is not supported"), "{mysql}");
        assert!(mysql.contains("postgresql://") && !mysql.contains("secret"), "{mysql}");
        assert!(refused("out/log.txt").contains(".jsonl"));
        assert!(refused("").contains("not the address of a buffer"));
        assert_eq!(refused("sqlite://"), "`sqlite://` names no file");
        assert_eq!(refused("postgres:"), "`postgres:` names no server");
    }

    #[test]
    fn no_password_is_shown() {
        let shown = |text: &str| read(text).map(|address| format!("{address} {address:?}"));
        for text in [
            "postgresql://me:secret@host:5432/db?sslmode=require",
            "postgresql://me@host:5432/db?password=secret&sslmode=require",
            "postgresql://me:sec/r?et@secret@host:5432/db?sslmode=require",
        ] {
            let address = "postgresql://me@host:5432/db?sslmode=require";
            assert_eq!(shown(text), Ok(format!("{address} BufferAddress({address})")));
        }
    }
}
