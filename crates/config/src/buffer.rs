//! `buffer`: batch sizes, tasksets and experience buffer.

use rollway_base::BufferStorage;

use super::Args;
use super::seconds::ConfigSeconds;
use super::taskset::Taskset;

section! {
    /// Batch sizes, tasksets and experience buffer.
    pub struct BufferConfig {
        /// Tasks per explore step.
        #[schemars(range(min = 1))]
        pub batch_size: u32 = 1,
        /// Experiences per train step. 0: `batch_size` × `algorithm.repeat_times`. Required in mode
        /// `train`.
        pub train_batch_size: u32,
        /// Passes over the tasksets, unless `total_steps` is given.
        #[schemars(range(min = 1))]
        pub total_epochs: u32 = 1,
        /// Explore steps after which the job ends. Absent: `total_epochs` decides.
        #[schemars(range(min = 1))]
        pub total_steps: Option<u32>,
        /// Folder for files of buffers without a path. Absent: `buffer` in the job's folder.
        pub cache_dir: Option<String>,
        pub explorer_input: ExplorerInput,
        pub trainer_input: TrainerInputConfig,
    }

    /// Tasksets of the explorer.
    pub struct ExplorerInput {
        /// The train taskset, if there is one. Give this or `tasksets`.
        pub taskset: Option<Taskset>,
        /// The train tasksets, if there are several.
        pub tasksets: Vec<Taskset>,
        /// The eval tasksets. An evaluation runs all tasks of each.
        pub eval_tasksets: Vec<Taskset>,
        /// Workflow of tasks that name none. A registered name or `package.module:name`.
        pub default_workflow_type: Option<String>,
        /// Workflow of eval tasks that name none. Absent: `default_workflow_type`.
        pub default_eval_workflow_type: Option<String>,
        /// Reward function of tasks that name none.
        pub default_reward_fn_type: Option<String>,
    }

    /// Input of the trainer.
    pub struct TrainerInputConfig {
        pub experience_buffer: ExperienceBuffer,
    }

    /// Buffer between explorer and trainer.
    pub struct ExperienceBuffer {
        /// Name of the buffer for readers and in file names. A table in a database has this name
        /// without a final `_buffer`.
        pub name: String = "experience_buffer".to_owned(),
        pub storage_type: StorageType,
        /// Location of the storage. Queue: a folder. Database: `sqlite:///PATH` or
        /// `postgresql://…`. File: a file that ends with `.jsonl`, or a folder of Parquet files
        /// that ends with `.parquet` or `/`. Absent: `name` in `buffer.cache_dir`.
        pub path: Option<String>,
        /// Maximum write batches in a queue.
        #[schemars(range(min = 1))]
        pub capacity: u32 = 10_000,
        /// Maximum bytes of experiences in the memory of a queue. Experiences that are also on disk
        /// count until they are read.
        #[schemars(range(min = 1))]
        pub max_bytes: u64 = 1 << 30,
        /// Maximum bytes of the files of a queue, or of a database. Absent: 64 GiB for a queue, no
        /// limit for a database.
        #[schemars(range(min = 1))]
        pub max_disk_bytes: Option<u64>,
        pub on_full: WhenFull,
        /// Maximum time that a writer waits for a full queue; then the delivery fails, the batch is
        /// kept and can be finalized again.
        pub max_write_timeout: ConfigSeconds = ConfigSeconds::new(300),
        /// Maximum time that a reader waits for experiences.
        pub max_read_timeout: ConfigSeconds = ConfigSeconds::new(1800),
        /// Maximum retries of a failed database access.
        pub max_retry_times: u32 = 3,
        /// Delay before a failed database access is retried.
        pub max_retry_interval: ConfigSeconds = ConfigSeconds::new(1),
        /// Lets several jobs use one table or file: each trains on the experiences of all. Off: a
        /// database table or a file belongs to the first job that opens it, other jobs are refused.
        pub shared: bool,
        pub replay_buffer: ReplayBuffer,
    }

    /// Repeated use of experiences.
    pub struct ReplayBuffer {
        /// Reads experiences by priority. The queue is in memory only, and a full queue drops the
        /// batch with the lowest priority. Off: every experience is read once, in order.
        pub enable: bool,
        pub priority_fn: PriorityFn,
        /// Time before an experience can be read again. Absent: it is read once.
        pub reuse_cooldown_time: Option<ConfigSeconds>,
        /// Arguments of `priority_fn`: `decay`, and for `decay_limit_randomization` also `sigma`
        /// and `use_count_limit`.
        pub priority_fn_args: Args = Args::from_iter([("decay".to_owned(), 2.0.into())]),
    }
}

impl StorageType {
    pub const fn storage(self) -> BufferStorage {
        match self {
            Self::Queue => BufferStorage::Queue,
            Self::Sql => BufferStorage::Database,
            Self::File => BufferStorage::Files,
        }
    }
}

impl ExplorerInput {
    /// Returns the train tasksets of `taskset` and `tasksets`.
    pub fn train_tasksets(&self) -> impl Iterator<Item = &Taskset> {
        self.taskset.iter().chain(&self.tasksets)
    }

    /// Returns the workflow of tasks of a taskset that name none.
    pub fn workflow_of<'a>(&'a self, set: &'a Taskset, is_eval: bool) -> Option<&'a str> {
        let of_evals = self.default_eval_workflow_type.as_ref().filter(|_| is_eval);
        let of_set = set.default_workflow_type.as_ref();
        of_set.or(of_evals).or(self.default_workflow_type.as_ref()).map(String::as_str)
    }

    /// Returns the reward function of tasks of a taskset that name none.
    pub fn reward_fn_of<'a>(&'a self, set: &'a Taskset) -> Option<&'a str> {
        let of_set = set.default_reward_fn_type.as_ref();
        of_set.or(self.default_reward_fn_type.as_ref()).map(String::as_str)
    }
}

choices! {
    /// Kind of storage of an experience buffer.
    pub enum StorageType {
        /// A queue in the engine, backed by files, so that it survives a restart. Trainers in other
        /// processes read it over the network.
        #[default]
        Queue,
        /// A table in a database: SQLite or PostgreSQL.
        Sql,
        /// JSON lines, or a folder of Parquet files.
        File,
    }

    /// Handling of a write batch that does not fit into a queue.
    pub enum WhenFull {
        /// The writer waits.
        #[default]
        Wait,
        /// The batch is written to disk only.
        Spill,
        /// The batch replaces the oldest unread one, which is counted as dropped. The queue is in
        /// memory only.
        Replace,
    }

    /// Priority of experiences.
    pub enum PriorityFn {
        /// The newest model version first, less `decay` for each use.
        #[default]
        LinearDecay,
        /// The same with noise and a limit on uses.
        DecayLimitRandomization,
    }
}
