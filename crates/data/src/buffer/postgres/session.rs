//! One connection to a PostgreSQL server.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::time::{timeout, timeout_at};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, Error, Row, SimpleQueryMessage, Socket, Statement,
};

use super::super::sql::{
    Session, SqlCell, SqlError, SqlOptions, SqlValue, TransactionId, parts, signed,
};
use super::super::{BufferError, Result};
use super::error_class::{connection_lost, fault, timed_out};
use super::tls::{PostgresTls, PostgresTlsStream};
use crate::Sample;

/// Maximum bytes of samples per statement; a protocol message is limited to 1 GiB.
const STATEMENT_BYTES: usize = 32 << 20;

/// A connection and the runtime that drives it during a call.
pub(in crate::buffer) struct PostgresSession {
    runtime: Runtime,
    client: Client,
    name: String,
    table: String,
    statements: HashMap<String, Statement>,
    /// Notified of announced changes and of the end of the connection.
    changed: Arc<Notify>,
    deadline: Instant,
    call_timeout: Duration,
    token: Option<TransactionId>,
}

impl PostgresSession {
    pub(super) fn connect(
        config: &Config,
        tls: PostgresTls,
        name: &str,
        options: &SqlOptions,
    ) -> Result<Self, SqlError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime
            .map_err(|cause| BufferError::unavailable(name, format!("no runtime: {cause}")))?;
        let changed = Arc::new(Notify::new());
        let table = &options.table;
        // The server ends transactions of a lost client, so that they do not lock out others.
        let setup = format!(
            "SET statement_timeout = {limit}; SET lock_timeout = {limit};
             SET idle_in_transaction_session_timeout = {limit}; LISTEN \"rollway_{table}\"",
            limit = options.call_timeout.as_millis().max(1),
        );
        let connecting = async {
            let (client, connection) = config.connect(tls).await?;
            tokio::spawn(drive(connection, Arc::clone(&changed)));
            client.batch_execute(&setup).await?;
            Ok(client)
        };
        let limit = options.connect_timeout;
        let connected = runtime.block_on(async { timeout(limit, connecting).await });
        let client = connected
            .map_err(|_| timed_out(name, "connecting", limit.as_secs_f64()))?
            .map_err(|cause: Error| fault(name, &cause))?;
        Ok(Self {
            runtime,
            client,
            name: name.into(),
            table: table.clone(),
            statements: HashMap::new(),
            changed,
            deadline: Instant::now() + options.call_timeout,
            call_timeout: options.call_timeout,
            token: None,
        })
    }

    /// Waits for the response until the deadline.
    fn answer<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, SqlError> {
        let answered =
            self.runtime.block_on(async { timeout_at(self.deadline.into(), request).await });
        answered
            .map_err(|_| timed_out(&self.name, "the answer", self.call_timeout.as_secs_f64()))?
            .map_err(|cause| fault(&self.name, &cause))
    }

    fn batch(&self, sql: &str) -> Result<(), SqlError> {
        self.answer(self.client.batch_execute(sql))
    }

    fn statement(&mut self, sql: &str) -> Result<Statement, SqlError> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.answer(self.client.prepare(sql))?;
        self.statements.insert(sql.into(), statement.clone());
        Ok(statement)
    }

    fn insert_some(&mut self, samples: &[Sample]) -> Result<usize, SqlError> {
        let sql = INSERT.replace("{experience}", &self.table);
        let statement = self.statement(&sql)?;
        let names: Vec<_> = samples.iter().map(|sample| parts(&sample.id)).collect();
        let ids: Vec<&str> = samples.iter().map(|sample| &*sample.id).collect();
        let tasks: Vec<_> = names.iter().map(|(task, _, _)| *task).collect();
        let runs: Vec<_> = names.iter().map(|(_, run, _)| *run).collect();
        let suffixes: Vec<_> = names.iter().map(|(_, _, suffix)| *suffix).collect();
        let versions: Vec<_> = samples.iter().map(|sample| signed(sample.model_version)).collect();
        let rewards: Vec<_> = samples.iter().map(|sample| sample.reward).collect();
        let payloads: Vec<&[u8]> = samples.iter().map(|sample| &*sample.payload).collect();
        let inserted = self.answer(self.client.execute(
            &statement,
            &[&self.table, &ids, &tasks, &runs, &suffixes, &versions, &rewards, &payloads],
        ))?;
        Ok(usize::try_from(inserted).unwrap_or(usize::MAX))
    }
}

/// Lock of transactions that insert or create tables.
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || $1, 0))";

/// Takes the lock after the samples arrived and before the first id is assigned: ids are committed
/// in order, and others wait for the insertion, not for the network.
const INSERT: &str = "
WITH alone AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || $1, 0))
)
INSERT INTO \"{experience}\"
    (uid, task_id, run_id, msg_id, model_version, reward, experience_bytes)
SELECT unnest($2::text[]), unnest($3::text[]), unnest($4::bigint[]), unnest($5::text[]),
    unnest($6::bigint[]), unnest($7::double precision[]), unnest($8::bytea[])
FROM alone ON CONFLICT (uid) DO NOTHING";

/// Ends an open transaction of a lost session; does not stop a commit in progress.
const TERMINATE: &str = "
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = $1::bigint AND backend_xid::text::bigint = $2::bigint & 4294967295";

impl Session for PostgresSession {
    fn limit(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    fn begin(&mut self) -> Result<(), SqlError> {
        let sql = "BEGIN; SELECT txid_current(), pg_backend_pid()";
        let rows = self.answer(self.client.simple_query(sql))?;
        let number = |row: &SimpleQueryMessage, column| match row {
            SimpleQueryMessage::Row(row) => row.get(column).and_then(|text| text.parse().ok()),
            _ => None,
        };
        self.token = rows.iter().find_map(|row| {
            Some(TransactionId { transaction: number(row, 0)?, session: number(row, 1)? })
        });
        Ok(())
    }

    fn commit(&mut self) -> Result<(), (SqlError, Option<TransactionId>)> {
        self.batch("COMMIT").map_err(|fault| {
            // Only without a response is the outcome unknown.
            let open = fault.breaks;
            (fault, self.token.filter(|_| open))
        })
    }

    fn rollback(&mut self) -> Result<(), SqlError> {
        self.batch("ROLLBACK")
    }

    fn settled(&mut self, token: &TransactionId) -> Result<bool, SqlError> {
        let number = SqlValue::Int(token.transaction);
        let rows = self.query("SELECT txid_status($1)", &[number])?;
        match rows.first().and_then(|row| row.first()) {
            Some(SqlCell::Text(status)) if status == "committed" => Ok(true),
            Some(SqlCell::Text(status)) if status == "aborted" => Ok(false),
            Some(SqlCell::Text(_)) => {
                self.query(TERMINATE, &[SqlValue::Int(token.session), number])?;
                let mut fault =
                    connection_lost(&self.name, "an earlier transaction is still under way");
                fault.breaks = false;
                Err(fault)
            }
            _ => Err(BufferError::damaged(
                self.name.clone(),
                format!(
                    "the server no longer knows the outcome of transaction {}; seek to a position \
                     that was saved before it",
                    token.transaction
                ),
            )
            .into()),
        }
    }

    fn execute(&mut self, sql: &str, values: &[SqlValue<'_>]) -> Result<usize, SqlError> {
        let statement = self.statement(sql)?;
        let changed = self.answer(self.client.execute_raw(&statement, values))?;
        Ok(usize::try_from(changed).unwrap_or(usize::MAX))
    }

    fn query(&mut self, sql: &str, values: &[SqlValue<'_>]) -> Result<Vec<Vec<SqlCell>>, SqlError> {
        let statement = self.statement(sql)?;
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as _).collect();
        let rows = self.answer(self.client.query(&statement, &values))?;
        let cells = |row: &Row| (0..row.len()).map(|column| cell(row, column)).collect();
        rows.iter().map(cells).collect::<Result<_, Error>>().map_err(|cause| {
            let (storage, message) = (self.name.clone(), cause.to_string());
            BufferError::damaged(storage, message).into()
        })
    }

    fn lock(&mut self) -> Result<(), SqlError> {
        let table = self.table.clone();
        self.query(LOCK, &[SqlValue::Text(&table)]).map(drop)
    }

    fn insert(&mut self, mut samples: &[Sample]) -> Result<usize, SqlError> {
        let mut stored = 0;
        while !samples.is_empty() {
            let mut bytes = 0;
            let mut fits = |sample: &Sample| {
                bytes += sample.payload.len();
                bytes <= STATEMENT_BYTES
            };
            let count = samples.iter().take_while(|sample| fits(sample)).count().max(1);
            let (some, rest) = samples.split_at(count);
            stored += self.insert_some(some)?;
            samples = rest;
        }
        Ok(stored)
    }

    fn announce(&mut self) -> Result<(), SqlError> {
        let channel = format!("rollway_{}", self.table);
        self.query("SELECT pg_notify($1, '')", &[SqlValue::Text(&channel)]).map(drop)
    }

    /// A notification since the last wait ends the next one.
    fn mark(&mut self) -> Result<(), SqlError> {
        Ok(())
    }

    fn wait(&mut self, until: Instant) -> Result<(), SqlError> {
        // Not `answer`: a timeout is no error here.
        let waiting = async { timeout_at(until.into(), self.changed.notified()).await };
        let _ = self.runtime.block_on(waiting);
        if self.client.is_closed() {
            return Err(connection_lost(&self.name, "the connection was closed"));
        }
        Ok(())
    }
}

/// Drives the connection until it ends.
async fn drive(
    mut connection: Connection<Socket, PostgresTlsStream<Socket>>,
    changed: Arc<Notify>,
) {
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        if let AsyncMessage::Notification(_) = message {
            changed.notify_one();
        }
    }
    // The client must see the closed connection when it is notified.
    drop(connection);
    changed.notify_one();
}

fn cell(row: &Row, column: usize) -> Result<SqlCell, Error> {
    let kind = row.columns()[column].type_();
    Ok(match *kind {
        Type::INT8 => row.try_get::<_, Option<i64>>(column)?.map_or(SqlCell::Null, SqlCell::Int),
        Type::FLOAT8 => row.try_get::<_, Option<f64>>(column)?.map_or(SqlCell::Null, SqlCell::Real),
        Type::BYTEA => {
            row.try_get::<_, Option<Vec<u8>>>(column)?.map_or(SqlCell::Null, SqlCell::Bytes)
        }
        Type::TEXT => {
            row.try_get::<_, Option<String>>(column)?.map_or(SqlCell::Null, SqlCell::Text)
        }
        // Functions called for their side effects.
        _ => SqlCell::Null,
    })
}

impl ToSql for SqlValue<'_> {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Int(number) => number.to_sql(kind, out),
            Self::Text(text) => text.to_sql(kind, out),
        }
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::INT8 || *kind == Type::TEXT
    }

    to_sql_checked!();
}
