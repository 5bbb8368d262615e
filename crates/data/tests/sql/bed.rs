//! What the tests stand on: both databases, lots of made-up samples, and short ways to ask.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use rollway_data::buffer::sql::SqlOptions;
use rollway_data::buffer::{
    Buffer, BufferError, ExperienceReader, PostgresBuffer, ReadRequest, ReadResult, SqliteBuffer,
    WriteResult,
};
use rollway_data::{Sample, WriteBatch};
use rollway_testkit::postgres::Server;
use tempfile::TempDir;

/// Longer than anything takes that is expected to happen.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The one server of this process; it ends with it. Here it is never the machine that dies, so the
/// server need not wait for the disk.
pub(crate) fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(&["fsync=off"]))
}

/// A place for one test: an SQLite file or tables of their own in PostgreSQL.
#[derive(Debug)]
pub(crate) struct Bed {
    pub(crate) address: String,
    pub(crate) table: String,
    _folder: Option<TempDir>,
}

impl Bed {
    pub(crate) fn sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let address = format!("sqlite:///{}", folder.path().join("buffer.db").display());
        Self { address, table: "experience".into(), _folder: Some(folder) }
    }

    pub(crate) fn postgres(table: &str) -> Self {
        Self::at(server().address("postgres"), table)
    }

    /// A place that somebody else has made.
    pub(crate) fn at(address: String, table: &str) -> Self {
        Self { address, table: table.into(), _folder: None }
    }

    /// Both databases in turn.
    pub(crate) fn both(table: &str) -> [Self; 2] {
        [Self::sqlite(), Self::postgres(table)]
    }

    pub(crate) fn options(&self) -> SqlOptions {
        SqlOptions { table: self.table.clone(), ..SqlOptions::default() }
    }

    pub(crate) fn open(&self) -> Box<dyn Buffer> {
        self.open_with(self.options())
    }

    pub(crate) fn open_with(&self, options: SqlOptions) -> Box<dyn Buffer> {
        open(&self.address, options).expect("the database opens")
    }

    /// Does something to the database behind the buffer's back.
    pub(crate) fn sql(&self, text: &str) {
        match self.address.strip_prefix("sqlite:///") {
            Some(path) => {
                let file = rusqlite::Connection::open(path).expect("the file opens");
                file.execute_batch(text).expect("a statement that works");
            }
            None => postgres_sql(&self.address, text),
        }
    }
}

pub(crate) fn open(address: &str, options: SqlOptions) -> Result<Box<dyn Buffer>, BufferError> {
    Ok(if address.starts_with("sqlite") {
        Box::new(SqliteBuffer::open(address, options)?)
    } else {
        Box::new(PostgresBuffer::open(address, options)?)
    })
}

pub(crate) fn postgres_sql(address: &str, text: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let connected = tokio_postgres::connect(address, tokio_postgres::NoTls).await;
        let (client, connection) = connected.expect("the server is there");
        tokio::spawn(connection);
        client.batch_execute(text).await.expect("a statement that works");
    });
}

/// A sample whose name and version follow from a number.
pub(crate) fn sample(number: u64) -> Sample {
    Sample {
        id: format!("7/{}/{}/0/{number:06x}", number / 8, number % 8).into(),
        model_version: number,
        reward: (!number.is_multiple_of(3)).then_some(number as f64 / 4.0),
        payload: vec![number as u8; 100 + number as usize % 50].into(),
    }
}

/// The lot of these numbers, which is named after the first of them.
pub(crate) fn lot(numbers: std::ops::Range<u64>) -> WriteBatch {
    WriteBatch {
        key: format!("lot-{}", numbers.start).into(),
        samples: numbers.map(sample).collect(),
    }
}

pub(crate) fn ask(count: usize, timeout: Duration) -> ReadRequest {
    ReadRequest { count, timeout, min_model_version: 0, keep: false }
}

/// Takes what there is now.
pub(crate) fn take(reader: &mut dyn ExperienceReader, count: usize) -> ReadResult {
    reader.read(&ask(count, Duration::ZERO)).expect("the database answers")
}

/// The numbers of samples, which must be as they were made.
pub(crate) fn numbers(taken: &ReadResult) -> Vec<u64> {
    let number = |found: &Sample| {
        let suffix = found.id.rsplit('/').next().expect("a name has a suffix");
        let number = u64::from_str_radix(suffix, 16).expect("a suffix is a number");
        assert_eq!(*found, sample(number));
        number
    };
    taken.samples.iter().map(number).collect()
}

pub(crate) fn written(stored: usize, known: usize) -> WriteResult {
    WriteResult { stored, known, dropped: BTreeMap::new() }
}
