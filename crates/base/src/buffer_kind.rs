//! Kinds of experience buffers, and the syntax of their addresses.

use crate::suggest;

/// Kind of the storage of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferStorage {
    /// In the process of an engine.
    Queue,
    /// A table, which an address for other processes names.
    Database,
    Files,
}

/// Form of the location in an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferLocation {
    /// A path, after a scheme as `SCHEME:///PATH` or `SCHEME:PATH`.
    Path,
    /// A server: `SCHEME://…`, which may contain a password.
    Server,
    /// A name, which may be empty: `SCHEME:NAME`.
    Name,
}

/// Syntax of the addresses of a kind.
#[derive(Clone, Copy, Debug)]
pub struct BufferSyntax {
    pub storage: BufferStorage,
    pub location: BufferLocation,
    /// Schemes, in lower case; the first is the preferred one.
    pub schemes: &'static [&'static str],
    /// Ends of paths without a scheme, in lower case.
    pub endings: &'static [&'static str],
    /// Ending of the file that a buffer without an address gets, by the first kind of its storage.
    pub default_ending: &'static str,
    /// Environment variables with a secret.
    pub secret_variables: &'static [&'static str],
    /// Description in error messages.
    pub example: &'static str,
}

/// Declares the kinds with the syntax of their addresses.
macro_rules! buffer_kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident { $($syntax:tt)+ })+) => {
        /// Kind of a buffer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum BufferKind {
            $($(#[doc = $doc])+ $kind,)+
        }

        impl BufferKind {
            /// All kinds.
            pub const ALL: [Self; [$(stringify!($kind)),+].len()] = [$(Self::$kind),+];

            pub const fn syntax(self) -> BufferSyntax {
                match self { $(Self::$kind => BufferSyntax { $($syntax)+ ..NO_NAMES },)+ }
            }
        }
    };
}

const NO_NAMES: BufferSyntax = BufferSyntax {
    storage: BufferStorage::Files,
    location: BufferLocation::Path,
    schemes: &[],
    endings: &[],
    default_ending: "",
    secret_variables: &[],
    example: "",
};

buffer_kinds! {
    /// A database in a file.
    Sqlite {
        storage: BufferStorage::Database,
        location: BufferLocation::Path,
        schemes: &["sqlite"],
        default_ending: ".db",
        example: "sqlite:///PATH",
    }
    /// A database on a server.
    Postgres {
        storage: BufferStorage::Database,
        location: BufferLocation::Server,
        schemes: &["postgresql", "postgres"],
        secret_variables: &["PGPASSWORD"],
        example: "postgresql://…",
    }
    /// A file of JSON lines.
    JsonLines {
        storage: BufferStorage::Files,
        location: BufferLocation::Path,
        endings: &[".jsonl", ".json"],
        default_ending: ".jsonl",
        example: "a file that ends with .jsonl or .json",
    }
    /// A folder of Parquet files.
    Parquet {
        storage: BufferStorage::Files,
        location: BufferLocation::Path,
        endings: &[".parquet", "/"],
        example: "a folder that ends with .parquet or /",
    }
    /// A queue in the engine.
    Queue {
        storage: BufferStorage::Queue,
        location: BufferLocation::Name,
        schemes: &["queue"],
        example: "queue:NAME",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BufferAddressError {
    #[error("`{0}` is not supported as a buffer; write {all}", all = BufferKind::examples())]
    Unsupported(String),
    #[error("`{0}` names no {1}")]
    Incomplete(String, &'static str),
    #[error("`{0}` is not the address of a buffer; write {all}", all = BufferKind::examples())]
    Unknown(String),
}

impl BufferKind {
    pub const fn storage(self) -> BufferStorage {
        self.syntax().storage
    }

    /// Splits an address into its kind and its location. Reads no file.
    pub fn split(address: &str) -> Result<(Self, &str), BufferAddressError> {
        let (scheme, rest) = match address.split_once(':') {
            // A single letter is a drive.
            Some((scheme, rest)) if scheme.len() > 1 && is_scheme(scheme) => (scheme, rest),
            _ => return Self::of_path(address),
        };
        // `mysql+pymysql` names a SQLAlchemy driver, which is ignored.
        let name = scheme.split_once('+').map_or(scheme, |(name, _)| name).to_ascii_lowercase();
        if name == "file" {
            return Self::of_path(rest.strip_prefix("//").unwrap_or(rest));
        }
        let found = Self::ALL.into_iter().find(|kind| kind.syntax().schemes.contains(&&*name));
        let kind = found.ok_or_else(|| BufferAddressError::Unsupported(format!("{scheme}:")))?;
        let incomplete = |what| BufferAddressError::Incomplete(address.to_owned(), what);
        let location = match kind.syntax().location {
            BufferLocation::Path => {
                let path = match rest.strip_prefix("///") {
                    None if !rest.starts_with("//") => Some(rest),
                    path => path,
                };
                path.filter(|path| !path.is_empty()).ok_or_else(|| incomplete("file"))?
            }
            BufferLocation::Server => {
                let server = rest.strip_prefix("//").filter(|server| !server.is_empty());
                server.ok_or_else(|| incomplete("server"))?
            }
            BufferLocation::Name => rest.trim_start_matches('/'),
        };
        Ok((kind, location))
    }

    fn of_path(path: &str) -> Result<(Self, &str), BufferAddressError> {
        let lower = path.to_ascii_lowercase();
        let has_ending =
            |kind: &Self| kind.syntax().endings.iter().any(|ending| lower.ends_with(ending));
        let found = Self::ALL.into_iter().find(has_ending);
        found.map(|kind| (kind, path)).ok_or_else(|| BufferAddressError::Unknown(path.to_owned()))
    }

    /// Returns the address of a location. The location may contain a password.
    pub fn address(self, location: &str) -> String {
        let syntax = self.syntax();
        let slashes = match syntax.location {
            BufferLocation::Path => "///",
            BufferLocation::Server => "//",
            BufferLocation::Name => "",
        };
        match syntax.schemes.first() {
            Some(scheme) => format!("{scheme}:{slashes}{location}"),
            None => location.to_owned(),
        }
    }

    /// Returns the kind of buffers without an address, by their storage.
    pub fn default_of(storage: BufferStorage) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.storage() == storage)
    }

    fn examples() -> String {
        suggest::either(Self::ALL.into_iter().map(|kind| kind.syntax().example))
    }
}

impl BufferStorage {
    /// Returns the endings of paths, for error messages.
    pub fn endings(self) -> String {
        let kinds = BufferKind::ALL.into_iter().filter(|kind| kind.storage() == self);
        suggest::either(kinds.flat_map(|kind| kind.syntax().endings.iter().copied()))
    }

    /// Returns the schemes of addresses, for error messages.
    pub fn schemes(self) -> String {
        let kinds = BufferKind::ALL.into_iter().filter(|kind| kind.storage() == self);
        let schemes: Vec<String> =
            kinds.filter_map(|kind| Some(format!("{}:", kind.syntax().schemes.first()?))).collect();
        suggest::either(schemes.iter().map(String::as_str))
    }
}

fn is_scheme(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_made_and_split() {
        let locations =
            [("a/b.db", "a/b.db"), ("me@host/db", "me@host/db"), ("x.jsonl", "x.jsonl")];
        for (kind, (location, expected)) in BufferKind::ALL.into_iter().zip(locations) {
            let address = kind.address(location);
            assert_eq!(BufferKind::split(&address), Ok((kind, expected)), "{address}");
        }
        assert_eq!(
            BufferKind::split("OUT/LOG.JSONL"),
            Ok((BufferKind::JsonLines, "OUT/LOG.JSONL"))
        );
        assert_eq!(BufferKind::split("sqlite:/a.db"), Ok((BufferKind::Sqlite, "/a.db")));
        assert_eq!(BufferKind::split("queue://q"), Ok((BufferKind::Queue, "q")));
    }

    #[test]
    fn messages_name_all_kinds() {
        let error = BufferKind::split("x.txt").expect_err("no ending of a buffer").to_string();
        for kind in BufferKind::ALL {
            assert!(error.contains(kind.syntax().example), "{error}");
        }
        assert_eq!(BufferStorage::Files.endings(), ".jsonl, .json, .parquet or /");
        assert_eq!(BufferStorage::Database.schemes(), "sqlite: or postgresql:");
    }
}
