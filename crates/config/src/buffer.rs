//! `buffer`: how much is read and trained at a time, where tasks come from and where experiences
//! go.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Args;
use super::seconds::ConfigSeconds;
use super::taskset::Taskset;

/// How much is read and trained at a time, where tasks come from and where experiences go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BufferConfig {
    /// Tasks per explore step.
    #[schemars(range(min = 1))]
    pub batch_size: u32,
    /// Experiences per train step. 0: `batch_size` × `algorithm.repeat_times`. Required in mode
    /// `train`.
    pub train_batch_size: u32,
    /// How often the tasksets are gone through, unless `total_steps` is given.
    #[schemars(range(min = 1))]
    pub total_epochs: u32,
    /// Explore steps after which the job ends. Absent: `total_epochs` decides.
    #[schemars(range(min = 1))]
    pub total_steps: Option<u32>,
    /// Folder for files of buffers that name no path. Absent: `buffer` in the job's folder.
    pub cache_dir: Option<String>,
    /// Where tasks come from.
    pub explorer_input: ExplorerInput,
    /// Where the trainer reads.
    pub trainer_input: TrainerInputConfig,
}

impl Default for BufferConfig {
    fn default() -> Self {
        Self {
            batch_size: 1,
            train_batch_size: 0,
            total_epochs: 1,
            total_steps: None,
            cache_dir: None,
            explorer_input: ExplorerInput::default(),
            trainer_input: TrainerInputConfig::default(),
        }
    }
}

/// Where tasks come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExplorerInput {
    /// The tasks to train on, when they are in one place. Give this or `tasksets`.
    pub taskset: Option<Taskset>,
    /// The tasks to train on, when they are in several places.
    pub tasksets: Vec<Taskset>,
    /// The tasks to evaluate on. Each set is evaluated whole.
    pub eval_tasksets: Vec<Taskset>,
    /// Workflow of tasks that name none. A registered name or `package.module:name`.
    pub default_workflow_type: Option<String>,
    /// Workflow of evaluation tasks that name none. Absent: `default_workflow_type`.
    pub default_eval_workflow_type: Option<String>,
    /// Reward function of tasks that name none.
    pub default_reward_fn_type: Option<String>,
}

impl ExplorerInput {
    /// Returns the tasksets to train on, however they were given.
    pub fn train_tasksets(&self) -> impl Iterator<Item = &Taskset> {
        self.taskset.iter().chain(&self.tasksets)
    }

    /// Returns the workflow of tasks of a set whose rows name none.
    pub fn workflow_of<'a>(&'a self, set: &'a Taskset, is_eval: bool) -> Option<&'a str> {
        let of_evals = self.default_eval_workflow_type.as_ref().filter(|_| is_eval);
        let of_set = set.default_workflow_type.as_ref();
        of_set.or(of_evals).or(self.default_workflow_type.as_ref()).map(String::as_str)
    }

    /// Returns the reward function of tasks of a set whose rows name none.
    pub fn reward_fn_of<'a>(&'a self, set: &'a Taskset) -> Option<&'a str> {
        let of_set = set.default_reward_fn_type.as_ref();
        of_set.or(self.default_reward_fn_type.as_ref()).map(String::as_str)
    }
}

/// Where the trainer reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainerInputConfig {
    /// The buffer between explorer and trainer.
    pub experience_buffer: ExperienceBuffer,
}

/// The buffer between explorer and trainer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExperienceBuffer {
    /// Name, under which others find the buffer and by which its files are called. Its table in a
    /// database is called so too, without a `_buffer` at the end.
    pub name: String,
    /// Kind of storage.
    pub storage_type: StorageType,
    /// Where the storage is. Of a queue: the folder in which it is kept. Of a database:
    /// `sqlite:///PATH` or `postgresql://…`. Of a file: a file that ends with `.jsonl`, or a folder
    /// of Parquet files that ends with `.parquet` or `/`. Absent: called `name`, in
    /// `buffer.cache_dir`.
    pub path: Option<String>,
    /// Batches of experiences that a queue holds before it is full.
    #[schemars(range(min = 1))]
    pub capacity: u32,
    /// Bytes of experiences that a queue holds in memory before it is full. What a kept queue holds
    /// on disk as well counts until it has been read.
    #[schemars(range(min = 1))]
    pub max_bytes: u64,
    /// Bytes that the files of a queue, or a database, may take. Absent: 64 GiB for a queue; of a
    /// database the disk is the limit.
    #[schemars(range(min = 1))]
    pub max_disk_bytes: Option<u64>,
    /// What happens to a batch for which a queue has no room.
    pub on_full: WhenFull,
    /// How long a writer waits for room before it gives up; the batch is kept and can be finalized
    /// again.
    pub max_write_timeout: ConfigSeconds,
    /// How long a reader waits for experiences before it gives up.
    pub max_read_timeout: ConfigSeconds,
    /// How often a failed access to a database is repeated.
    pub max_retry_times: u32,
    /// How long to wait before an access is repeated.
    pub max_retry_interval: ConfigSeconds,
    /// Whether and how experiences are used more than once.
    pub replay_buffer: ReplayBuffer,
}

impl Default for ExperienceBuffer {
    fn default() -> Self {
        Self {
            name: "experience_buffer".to_owned(),
            storage_type: StorageType::default(),
            path: None,
            capacity: 10_000,
            max_bytes: 1 << 30,
            max_disk_bytes: None,
            on_full: WhenFull::default(),
            max_write_timeout: ConfigSeconds::new(300),
            max_read_timeout: ConfigSeconds::new(1800),
            max_retry_times: 3,
            max_retry_interval: ConfigSeconds::new(1),
            replay_buffer: ReplayBuffer::default(),
        }
    }
}

/// Kind of storage of an experience buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StorageType {
    /// A queue in the engine, kept in files so that it survives the engine; a trainer elsewhere
    /// reads it over the network.
    #[default]
    Queue,
    /// A table in a database: SQLite or PostgreSQL.
    Sql,
    /// JSON lines, or a folder of Parquet files.
    File,
}

/// What happens to a batch for which a queue has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// Its writer waits.
    #[default]
    Wait,
    /// It goes to disk, and memory stays within its bounds.
    Spill,
    /// It takes the place of the oldest that nobody has read, which is counted as dropped. The
    /// queue is then in memory alone.
    Replace,
}

/// Whether and how experiences are used more than once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReplayBuffer {
    /// Off: every experience is read once, in order. On: a queue is in memory alone, and when it is
    /// full the least urgent batch gives way.
    pub enable: bool,
    /// What decides which experiences come first.
    pub priority_fn: PriorityFn,
    /// How long an experience rests before it can be read again. Absent: it is read once.
    pub reuse_cooldown_time: Option<ConfigSeconds>,
    /// Arguments of `priority_fn`: `decay`, and for `decay_limit_randomization` also `sigma` and
    /// `use_count_limit`.
    pub priority_fn_args: Args,
}

impl Default for ReplayBuffer {
    fn default() -> Self {
        Self {
            enable: false,
            priority_fn: PriorityFn::default(),
            reuse_cooldown_time: None,
            priority_fn_args: Args::from_iter([("decay".to_owned(), 2.0.into())]),
        }
    }
}

/// What decides which experiences come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PriorityFn {
    /// The newest model version first, less `decay` for each use.
    #[default]
    LinearDecay,
    /// The same with noise, and with a limit on uses.
    DecayLimitRandomization,
}
