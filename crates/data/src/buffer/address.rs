//! Addresses of buffers.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Address of a buffer. Displayed without the password.
#[derive(Clone, PartialEq, Eq)]
pub enum BufferAddress {
    /// `sqlite:///PATH` or `sqlite:PATH`: a database in a file.
    Sqlite(PathBuf),
    /// `postgresql://…` or `postgres://…`: a database on a server.
    Postgres(String),
    /// `….jsonl` or `….json`: a file of JSON lines.
    JsonLines(PathBuf),
    /// `….parquet` or a path that ends with `/`: a folder of Parquet files.
    Parquet(PathBuf),
    /// `queue:NAME` or `queue:`: a queue in the engine.
    Queue(String),
}

/// Storage behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferStorage {
    /// In the process of an engine.
    Queue,
    /// A table, which an address for other processes names.
    Database,
    Files,
}

impl BufferAddress {
    pub const fn storage(&self) -> BufferStorage {
        match self {
            Self::Sqlite(_) | Self::Postgres(_) => BufferStorage::Database,
            Self::JsonLines(_) | Self::Parquet(_) => BufferStorage::Files,
            Self::Queue(_) => BufferStorage::Queue,
        }
    }

    /// Returns the text for processes with another working directory, with the password.
    pub fn for_other_processes(&self) -> String {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        match self {
            Self::Sqlite(path) => Self::Sqlite(absolute(path)).to_string(),
            Self::JsonLines(path) | Self::Parquet(path) => absolute(path).display().to_string(),
            Self::Postgres(url) => url.clone(),
            Self::Queue(_) => self.to_string(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BufferAddressError {
    #[error(
        "`{0}` is not supported as a buffer; use postgresql://… for a server or sqlite:///… for a \
         file"
    )]
    Unsupported(String),
    #[error("`{0}` names no {1}")]
    Incomplete(String, &'static str),
    #[error(
        "`{0}` is not the address of a buffer; write sqlite:///PATH, postgresql://…, a file that \
         ends with .jsonl or .json, a folder that ends with .parquet or /, or queue:NAME"
    )]
    Unknown(String),
}

impl FromStr for BufferAddress {
    type Err = BufferAddressError;

    fn from_str(text: &str) -> Result<Self, BufferAddressError> {
        let (scheme, rest) = match text.split_once(':') {
            // A single letter is a drive.
            Some((scheme, rest)) if scheme.len() > 1 && is_scheme(scheme) => (scheme, rest),
            _ => return path(text),
        };
        // `mysql+pymysql` names a SQLAlchemy driver, which is ignored.
        let kind = scheme.split_once('+').map_or(scheme, |(kind, _)| kind).to_ascii_lowercase();
        match kind.as_str() {
            "sqlite" => {
                let path = rest.strip_prefix("///").unwrap_or(rest);
                if path.is_empty() || path.starts_with("//") && rest == path {
                    return Err(BufferAddressError::Incomplete(text.to_owned(), "file"));
                }
                Ok(Self::Sqlite(path.into()))
            }
            "postgres" | "postgresql" if rest.starts_with("//") && rest.len() > 2 => {
                Ok(Self::Postgres(format!("postgresql:{rest}")))
            }
            "postgres" | "postgresql" => {
                Err(BufferAddressError::Incomplete(text.to_owned(), "server"))
            }
            "queue" => Ok(Self::Queue(rest.trim_start_matches('/').to_owned())),
            "file" => path(rest.strip_prefix("//").unwrap_or(rest)),
            _ => Err(BufferAddressError::Unsupported(format!("{scheme}:"))),
        }
    }
}

fn is_scheme(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

fn path(text: &str) -> Result<BufferAddress, BufferAddressError> {
    let path = PathBuf::from(text);
    if text.ends_with('/') {
        return Ok(BufferAddress::Parquet(path));
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json" | "jsonl") => Ok(BufferAddress::JsonLines(path)),
        Some("parquet") => Ok(BufferAddress::Parquet(path)),
        _ if path.is_dir() => Ok(BufferAddress::Parquet(path)),
        _ => Err(BufferAddressError::Unknown(text.to_owned())),
    }
}

impl fmt::Display for BufferAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:///{}", path.display()),
            Self::Postgres(url) => f.write_str(&without_secrets(url)),
            Self::JsonLines(path) | Self::Parquet(path) => path.display().fmt(f),
            Self::Queue(name) => write!(f, "queue:{name}"),
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
fn without_secrets(url: &str) -> String {
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
        let sqlite = |path: &str| Ok(BufferAddress::Sqlite(path.into()));
        assert_eq!(read("sqlite:///job/buffer.db"), sqlite("job/buffer.db"));
        assert_eq!(read("sqlite:////data/buffer.db"), sqlite("/data/buffer.db"));
        assert_eq!(read("sqlite:buffer.db"), sqlite("buffer.db"));
        let server = Ok(BufferAddress::Postgres("postgresql://me@host/db".into()));
        assert_eq!(read("postgres://me@host/db"), server);
        assert_eq!(read("postgresql+psycopg2://me@host/db"), server);
        assert_eq!(read("out/log.jsonl"), Ok(BufferAddress::JsonLines("out/log.jsonl".into())));
        assert_eq!(
            read("file:///out/log.json"),
            Ok(BufferAddress::JsonLines("/out/log.json".into()))
        );
        assert_eq!(read("out/all.parquet"), Ok(BufferAddress::Parquet("out/all.parquet".into())));
        assert_eq!(read("out/"), Ok(BufferAddress::Parquet("out/".into())));
        assert_eq!(read("queue:trainer"), Ok(BufferAddress::Queue("trainer".into())));
    }

    #[test]
    fn invalid_addresses_are_refused_with_a_remedy() {
        let refused = |text: &str| read(text).unwrap_err();
        let mysql = refused("mysql+pymysql://me:secret@host/db");
        assert!(mysql.starts_with("`mysql+pymysql:` is not supported"), "{mysql}");
        assert!(mysql.contains("postgresql://") && !mysql.contains("secret"), "{mysql}");
        assert!(refused("out/log.txt").contains(".jsonl"));
        assert!(refused("").contains("no address"));
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
