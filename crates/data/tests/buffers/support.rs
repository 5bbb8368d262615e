//! Buffers of every backend, samples and reads.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rollway_data::buffer::queue::{QueueFullPolicy, QueueOptions};
use rollway_data::buffer::sql::SqlOptions;
use rollway_data::buffer::{
    self, Buffer, BufferOptions, BufferOwner, ExperienceQueue, ExperienceReader, ExperienceWriter,
    PostgresBuffer, ReadEnd, ReadRequest, ReadResult, Result, SqliteBuffer, WriteResult,
};
use rollway_data::{Sample, WriteBatch};
use rollway_experience::{Eid, Experience, ExperienceFields, Json};
use rollway_testkit::postgres::Server;
use tempfile::TempDir;

/// Longer than any expected event takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The server of this process. Only processes are killed here, so it need not sync.
pub(crate) fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(&["fsync=off"]))
}

/// A buffer of one test: in a folder or in its own tables of the server.
#[derive(Debug)]
pub(crate) struct Bed {
    pub(crate) address: String,
    pub(crate) table: String,
    _folder: Option<TempDir>,
}

impl Bed {
    /// An existing address.
    pub(crate) fn at(address: String, table: &str) -> Self {
        Self { address, table: table.into(), _folder: None }
    }

    pub(crate) fn postgres(table: &str) -> Self {
        Self::at(server().address("postgres"), table)
    }

    fn in_folder(prefix: &str, name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("{prefix}{}", folder.path().join(name).display());
        Self { address, table: "experience".into(), _folder: Some(folder) }
    }

    pub(crate) fn sqlite() -> Self {
        Self::in_folder("sqlite:///", "buffer.db")
    }

    pub(crate) fn parquet() -> Self {
        Self::in_folder("", "lots/")
    }

    pub(crate) fn jsonl() -> Self {
        Self::in_folder("", "lots.jsonl")
    }

    pub(crate) fn sql(table: &str) -> [Self; 2] {
        [Self::sqlite(), Self::postgres(table)]
    }

    pub(crate) fn files() -> [Self; 2] {
        [Self::parquet(), Self::jsonl()]
    }

    /// A durable queue.
    pub(crate) fn queue() -> Self {
        Self::in_folder("queue:", "queue")
    }

    pub(crate) fn all(table: &str) -> impl Iterator<Item = Self> {
        Self::sql(table).into_iter().chain(Self::files()).chain([Self::queue()])
    }

    pub(crate) fn path(&self) -> PathBuf {
        let path = self.address.trim_start_matches("sqlite:///").trim_start_matches("queue:");
        path.trim_end_matches('/').into()
    }

    pub(crate) fn options(&self) -> SqlOptions {
        SqlOptions { table: self.table.clone(), ..SqlOptions::default() }
    }

    pub(crate) fn try_open(&self) -> Result<Arc<dyn Buffer>> {
        self.open_as(None)
    }

    /// Opens the buffer for a job.
    pub(crate) fn open_as(&self, owner: Option<BufferOwner>) -> Result<Arc<dyn Buffer>> {
        let path = self.address.strip_prefix("queue:").map(PathBuf::from);
        let queue = QueueOptions { path, ..QueueOptions::default() };
        let options = BufferOptions { queue, sql: self.options(), owner };
        buffer::open(&self.address.parse().unwrap(), &options)
    }

    pub(crate) fn open(&self) -> Arc<dyn Buffer> {
        self.try_open().unwrap()
    }

    pub(crate) fn open_with(&self, options: SqlOptions) -> Arc<dyn Buffer> {
        open_sql(&self.address, options).unwrap()
    }

    /// Executes statements in the database, bypassing the buffer.
    pub(crate) fn execute(&self, text: &str) {
        match self.address.strip_prefix("sqlite:///") {
            Some(path) => rusqlite::Connection::open(path).unwrap().execute_batch(text).unwrap(),
            None => execute_postgres(&self.address, text),
        }
    }
}

pub(crate) fn open_sql(address: &str, options: SqlOptions) -> Result<Arc<dyn Buffer>> {
    Ok(if address.starts_with("sqlite") {
        Arc::new(SqliteBuffer::open(address, options)?)
    } else {
        Arc::new(PostgresBuffer::open(address, options)?)
    })
}

pub(crate) fn execute_postgres(address: &str, text: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let connected = tokio_postgres::connect(address, tokio_postgres::NoTls).await;
        let (client, connection) = connected.unwrap();
        tokio::spawn(connection);
        client.batch_execute(text).await.unwrap();
    });
}

/// A sample that follows from its number, which is also its model version.
pub(crate) fn sample(number: u64) -> Sample {
    sample_of(number, number as usize % 50)
}

fn sample_of(number: u64, tokens: usize) -> Sample {
    let mut random = number as u32;
    let mut token = || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        random as i32
    };
    let (task, suffix) = ((number as i64 / 8).into(), format!("{number:06x}"));
    let experience = Experience::new(ExperienceFields {
        eid: Eid { batch: 7.into(), task, run: number % 8, step: 0, suffix },
        tokens: (0..tokens + 2).map(|_| token()).collect(),
        logprobs: Some(vec![f32::NAN; tokens + 1].into()),
        reward: (!number.is_multiple_of(3)).then_some(number as f64 / 4.0),
        info: Json::new(format!(r#"{{"model_version":{number}}}"#)).unwrap(),
        ..ExperienceFields::default()
    });
    Sample::new(&experience.unwrap()).unwrap()
}

/// The write batch of these samples, named after the first of them.
pub(crate) fn lot(numbers: Range<u64>) -> WriteBatch {
    WriteBatch {
        key: format!("lot/{}", numbers.start).into(),
        samples: numbers.map(sample).collect(),
    }
}

/// The write batch of a number: five samples with a given number of tokens.
pub(crate) fn large_lot(number: u64, tokens: usize) -> WriteBatch {
    let samples = (number * 5..number * 5 + 5).map(|number| sample_of(number, tokens)).collect();
    WriteBatch { key: format!("lot/{number}").into(), samples }
}

pub(crate) fn samples(lots: impl IntoIterator<Item = WriteBatch>) -> Vec<Sample> {
    lots.into_iter().flat_map(|lot| lot.samples).collect()
}

pub(crate) fn request(count: usize, timeout: Duration) -> ReadRequest {
    ReadRequest { count, timeout, min_model_version: 0, keep: false }
}

pub(crate) fn now(count: usize) -> ReadRequest {
    request(count, Duration::ZERO)
}

pub(crate) fn keep(count: usize) -> ReadRequest {
    ReadRequest { keep: true, ..now(count) }
}

/// Reads available samples.
pub(crate) fn take(reader: &mut dyn ExperienceReader, count: usize) -> ReadResult {
    reader.read(&now(count)).unwrap()
}

/// Reads a buffer whose writers have closed, from the beginning.
pub(crate) fn everything(buffer: &dyn Buffer) -> Vec<Sample> {
    let taken = take(&mut *buffer.reader("everything").unwrap(), usize::MAX >> 1);
    assert_eq!(taken.end, ReadEnd::Finished);
    taken.samples
}

/// Returns the numbers of samples after comparing each with the one that was written.
pub(crate) fn numbers(taken: &ReadResult) -> Vec<u64> {
    let number = |found: &Sample| {
        let number = u64::from_str_radix(found.id.rsplit('/').next().unwrap(), 16).unwrap();
        assert_eq!(*found, sample(number));
        number
    };
    taken.samples.iter().map(number).collect()
}

pub(crate) fn written(stored: usize, known: usize) -> WriteResult {
    WriteResult { stored, known, ..WriteResult::default() }
}

/// Options with which a full queue refuses at once.
pub(crate) fn queue_options() -> QueueOptions {
    QueueOptions {
        when_full: QueueFullPolicy::Wait { timeout: Duration::ZERO },
        ..QueueOptions::default()
    }
}

pub(crate) fn open_queue(options: QueueOptions) -> Arc<ExperienceQueue> {
    ExperienceQueue::open(options).unwrap()
}

pub(crate) fn writer(queue: &ExperienceQueue) -> Box<dyn ExperienceWriter> {
    queue.writer("explorer").unwrap()
}

pub(crate) fn reader(queue: &ExperienceQueue) -> Box<dyn ExperienceReader> {
    queue.reader("trainer").unwrap()
}

/// A sample with an opaque payload, which queues never decode.
pub(crate) fn opaque(id: &str, model_version: u64, bytes: usize) -> Sample {
    let payload = vec![id.len() as u8; bytes].into();
    Sample { id: id.into(), model_version, reward: Some(0.5), payload }
}

/// A write batch of small opaque samples of one version.
pub(crate) fn batch_of(key: &str, version: u64, ids: &[&str]) -> WriteBatch {
    WriteBatch { key: key.into(), samples: ids.iter().map(|id| opaque(id, version, 8)).collect() }
}

pub(crate) fn batch(key: &str, ids: &[&str]) -> WriteBatch {
    batch_of(key, 0, ids)
}

/// A write batch of `count` opaque samples, named after its number.
pub(crate) fn numbered(number: usize, count: usize, bytes: usize) -> WriteBatch {
    let sample = |at: usize| opaque(&format!("{number}/{at}"), 0, bytes);
    WriteBatch { key: number.to_string().into(), samples: (0..count).map(sample).collect() }
}

pub(crate) fn ids(taken: &ReadResult) -> Vec<&str> {
    taken.samples.iter().map(|sample| &*sample.id).collect()
}

/// Waits for a condition that another thread establishes.
pub(crate) fn until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}
