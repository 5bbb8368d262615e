//! All SQL statements.
//!
//! `consumed` counts the uses of a row in the pool; `-1` marks a row skipped as too old. `claim` is
//! the number of the read that last claimed the row, `reader` its name.

use super::{ReadOrder, SqlDialect, SqlOptions};

#[derive(Debug)]
pub(super) struct Queries {
    pub(super) state_name: String,
    pub(super) all_names: String,
    pub(super) existing: String,
    pub(super) create: Vec<String>,
    pub(super) set_version: String,
    pub(super) version: String,
    pub(super) pool_index: Option<String>,
    pub(super) create_owner: String,
    pub(super) owner: String,
    pub(super) set_owner: String,

    pub(super) open_writer: String,
    pub(super) close_writer: String,
    pub(super) insert_lot: String,
    pub(super) size: Option<String>,

    pub(super) open_reader: String,
    pub(super) cursor: String,
    pub(super) lock_cursor: String,
    pub(super) move_cursor: String,
    pub(super) newest: String,
    pub(super) log_ready: String,
    pub(super) log_end: String,
    pub(super) log_rows: String,
    pub(super) log_stale: String,

    pub(super) ticket: String,
    pub(super) next_ticket: String,
    pub(super) pool_ready: String,
    pub(super) pool_stale: String,
    pub(super) pool_take: String,
    pub(super) pool_take_fresh: String,
    pub(super) pool_undo: String,
}

impl Queries {
    pub(super) fn new(options: &SqlOptions, dialect: &SqlDialect) -> Self {
        let table = &options.table;
        let named = |text: &str| {
            text.replace("{experience}", &format!("\"{table}\""))
                .replace("{lot}", &format!("\"{table}_lot\""))
                .replace("{writer}", &format!("\"{table}_writer\""))
                .replace("{reader}", &format!("\"{table}_reader\""))
                .replace("{state}", &format!("\"{table}_state\""))
                .replace("{owner}", &format!("\"{table}_owner\""))
                .replace("{pool}", &format!("\"{table}_pool\""))
                .replace("{serial}", dialect.serial)
                .replace("{time}", dialect.time)
                .replace("{bytes}", dialect.bytes)
                .replace("{for_update}", dialect.for_update)
        };
        let pool = options.reuse || options.order == ReadOrder::NewestFirst;
        let again = if options.reuse { "consumed >= 0" } else { "consumed = 0" };
        let newest_first = if options.order == ReadOrder::NewestFirst { "DESC" } else { "ASC" };
        let named_pool = |text: &str, which: &str| {
            named(&text.replace("{which}", which).replace("{order}", newest_first))
        };
        let create = CREATE.split(';').chain(dialect.tune.split(';')).map(str::trim);
        Self {
            state_name: format!("{table}_state"),
            all_names: format!("{table},{table}_lot,{table}_writer,{table}_reader,{table}_owner"),
            existing: dialect.existing.into(),
            create: create.filter(|text| !text.is_empty()).map(&named).collect(),
            set_version: named("INSERT INTO {state} (version, ticket) VALUES ($1, 0)"),
            version: named("SELECT version FROM {state}"),
            pool_index: pool.then(|| named(POOL_INDEX)),
            create_owner: named(CREATE_OWNER),
            owner: named("SELECT id, name FROM {owner}"),
            set_owner: named("INSERT INTO {owner} (id, name) VALUES ($1, $2)"),

            open_writer: named(OPEN_WRITER),
            close_writer: named("UPDATE {writer} SET is_open = 0 WHERE name = $1"),
            insert_lot: named(INSERT_LOT),
            size: dialect.size.map(&named),

            open_reader: named(OPEN_READER),
            cursor: named("SELECT position FROM {reader} WHERE name = $1"),
            lock_cursor: named("SELECT position FROM {reader} WHERE name = $1 {for_update}"),
            move_cursor: named("UPDATE {reader} SET position = $1 WHERE name = $2"),
            newest: named(NEWEST),
            log_ready: named(LOG_READY),
            log_end: named(LOG_END),
            log_rows: named(LOG_ROWS),
            log_stale: named(LOG_STALE),

            ticket: named("SELECT ticket FROM {state}"),
            next_ticket: named("UPDATE {state} SET ticket = ticket + 1 RETURNING ticket"),
            pool_ready: named_pool(POOL_READY, again),
            pool_stale: named(POOL_STALE),
            pool_take: named_pool(POOL_TAKE, again),
            pool_take_fresh: named_pool(POOL_TAKE, "consumed = 0"),
            pool_undo: named(POOL_UNDO),
        }
    }
}

const CREATE: &str = "
CREATE TABLE {experience} (
    id {serial},
    time {time},
    uid TEXT NOT NULL UNIQUE,
    task_id TEXT,
    run_id BIGINT,
    msg_id TEXT,
    model_version BIGINT NOT NULL,
    reward DOUBLE PRECISION,
    consumed BIGINT NOT NULL DEFAULT 0,
    claim BIGINT NOT NULL DEFAULT 0,
    reader TEXT,
    experience_bytes {bytes} NOT NULL
);
CREATE TABLE {lot} (key TEXT NOT NULL PRIMARY KEY, samples BIGINT NOT NULL, time {time});
CREATE TABLE {writer} (name TEXT NOT NULL PRIMARY KEY, is_open BIGINT NOT NULL);
CREATE TABLE {reader} (name TEXT NOT NULL PRIMARY KEY, position BIGINT NOT NULL);
CREATE TABLE {state} (version BIGINT NOT NULL, ticket BIGINT NOT NULL)";

const POOL_INDEX: &str = "CREATE INDEX IF NOT EXISTS {pool} ON {experience} (consumed, id)";

const CREATE_OWNER: &str =
    "CREATE TABLE IF NOT EXISTS {owner} (id TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL)";

const OPEN_WRITER: &str = "
INSERT INTO {writer} (name, is_open) VALUES ($1, 1)
ON CONFLICT (name) DO UPDATE SET is_open = 1";

const INSERT_LOT: &str =
    "INSERT INTO {lot} (key, samples) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING";

const OPEN_READER: &str =
    "INSERT INTO {reader} (name, position) VALUES ($1, 0) ON CONFLICT (name) DO NOTHING";

/// Largest position that can have been returned, even if rows were deleted since.
const NEWEST: &str = "
SELECT max(id) FROM (
    SELECT max(id) AS id FROM {experience} UNION ALL SELECT max(position) FROM {reader}
) AS known";

/// Number of waiting rows up to a limit, of writers and of open writers. One statement sees one
/// state: rows of a closed writer are included.
const LOG_READY: &str = "
SELECT (
    SELECT count(*) FROM (
        SELECT 1 FROM {experience}
        WHERE id > (SELECT position FROM {reader} WHERE name = $1) AND model_version >= $2
        LIMIT $3
    ) AS waiting
), (SELECT count(*) FROM {writer}), (SELECT count(*) FROM {writer} WHERE is_open = 1)";

const LOG_END: &str = "
SELECT (SELECT max(id) FROM {experience}),
    (SELECT count(*) FROM {writer}), (SELECT count(*) FROM {writer} WHERE is_open = 1)";

const LOG_ROWS: &str = "
SELECT id, uid, model_version, reward, experience_bytes, consumed FROM {experience}
WHERE id > $1 AND id <= $2 AND model_version >= $3 ORDER BY id LIMIT $4";

const LOG_STALE: &str = "
SELECT count(*) FROM {experience} WHERE id > $1 AND id <= $2 AND model_version < $3";

const POOL_READY: &str = "
SELECT (
    SELECT count(*) FROM (
        SELECT 1 FROM {experience} WHERE {which} AND model_version >= $1 LIMIT $2
    ) AS waiting
), (SELECT count(*) FROM {writer}), (SELECT count(*) FROM {writer} WHERE is_open = 1)";

const POOL_STALE: &str = "
UPDATE {experience} SET consumed = -1, claim = $1, reader = $2
WHERE consumed = 0 AND model_version < $3";

const POOL_TAKE: &str = "
UPDATE {experience} SET consumed = consumed + 1, claim = $1, reader = $2 WHERE id IN (
    SELECT id FROM {experience} WHERE {which} AND model_version >= $3
    ORDER BY consumed, id {order} LIMIT $4
) RETURNING id, uid, model_version, reward, experience_bytes, consumed";

const POOL_UNDO: &str = "
UPDATE {experience}
SET consumed = CASE WHEN consumed < 0 THEN 0 ELSE consumed - 1 END, claim = 0, reader = NULL
WHERE claim > $1 AND reader = $2";
