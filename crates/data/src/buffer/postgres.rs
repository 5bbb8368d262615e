//! Buffer in a PostgreSQL database.
//!
//! Every session has its own current-thread runtime, which runs during a call, so that a call
//! without a response ends at its deadline.

mod error_class;
mod session;
mod tls;

use std::time::Duration;

use tokio_postgres::Config;

use self::session::PostgresSession;
use self::tls::{PostgresTls, SslParameters};
use super::address::without_secrets;
use super::sql::{self, SqlBuffer, SqlDatabase, SqlDialect, SqlError, SqlOptions};
use super::{BufferError, Result};

/// Buffer in a PostgreSQL database. Its calls block and must not be made from async code.
pub type PostgresBuffer = SqlBuffer<PostgresServer>;

impl PostgresBuffer {
    /// Opens `postgresql://user:password@host:port/database`. A driver name, as in
    /// `postgresql+psycopg://`, is ignored. `?sslmode=` and `&sslrootcert=` have the meaning of
    /// libpq; without `sslmode`, connections to other machines are encrypted.
    pub fn open(address: &str, options: SqlOptions) -> Result<Self> {
        let (mut config, tls) = parse(address)?;
        // Keepalives have a resolution of one second.
        let quiet = options.connect_timeout.max(Duration::from_secs(1));
        config
            .application_name("rollway")
            .connect_timeout(options.connect_timeout)
            .tcp_user_timeout(options.call_timeout)
            .keepalives_idle(quiet)
            .keepalives_interval(quiet)
            .keepalives_retries(3);
        let name = without_secrets(address);
        sql::open(PostgresServer { config, tls, name }, options)
    }
}

#[derive(Debug)]
pub struct PostgresServer {
    config: Config,
    tls: PostgresTls,
    name: String,
}

impl SqlDatabase for PostgresServer {
    type SqlSession = PostgresSession;

    fn name(&self) -> &str {
        &self.name
    }

    fn dialect(&self) -> SqlDialect {
        SqlDialect {
            serial: "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
            time: "TIMESTAMPTZ NOT NULL DEFAULT now()",
            bytes: "BYTEA",
            existing: "SELECT count(to_regclass(quote_ident(name)))
                FROM unnest(string_to_array($1, ',')) AS name",
            for_update: "FOR UPDATE",
            // Compressing token ids costs more time than the disk.
            tune: "ALTER TABLE {experience} ALTER COLUMN experience_bytes SET STORAGE EXTERNAL",
            size: Some("SELECT pg_total_relation_size('{experience}')"),
        }
    }

    fn connect(&self, options: &SqlOptions) -> Result<PostgresSession, SqlError> {
        PostgresSession::connect(&self.config, self.tls.clone(), &self.name, options)
    }
}

/// Parses an address. Errors do not repeat it: it may contain a password.
fn parse(address: &str) -> Result<(Config, PostgresTls)> {
    let unsupported = |message: String| BufferError::unsupported("the PostgreSQL address", message);
    let (scheme, rest) = address.split_once("://").unwrap_or(("", ""));
    if !matches!(scheme.split('+').next(), Some("postgresql" | "postgres")) {
        return Err(unsupported(
            "it must have the form `postgresql://user:password@host:port/database`".into(),
        ));
    }
    let (rest, parameters) = SslParameters::split(rest).map_err(unsupported)?;
    let config = format!("postgresql://{rest}").parse();
    let mut config: Config = config.map_err(|_: tokio_postgres::Error| {
        unsupported(
            "the address cannot be parsed; characters like `@`, `/` and `:` in a user name or a \
             password are written as `%40`, `%2F` and `%3A`"
                .into(),
        )
    })?;
    let tls = parameters.apply(&mut config).map_err(unsupported)?;
    Ok((config, tls))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_errors_do_not_contain_the_password() {
        for bad in ["mysql://me:secret@db/runs", "postgresql://me:sec@ret@db:x/runs", "secret"] {
            let message = parse(bad).unwrap_err().to_string();
            assert!(!message.contains("sec"), "{message}");
        }
    }
}
