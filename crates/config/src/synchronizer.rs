//! `synchronizer`: transfer of weights from the trainer to the models.

use super::seconds::ConfigSeconds;

section! {
    /// Transfer of weights from the trainer to the models.
    pub struct SynchronizerConfig {
        pub sync_method: SyncMethod,
        pub sync_style: SyncStyle,
        /// Steps between two weight syncs.
        #[schemars(range(min = 1))]
        pub sync_interval: u32 = 1,
        /// Steps that the explorer may be ahead of the trainer at the start.
        pub sync_offset: u32,
        /// Maximum staleness, in train steps, of the weights of a batch when it is trained on. A
        /// batch that would exceed it starts after the next weight update. Only with
        /// `fully_async`. Absent: `explorer.max_inflight_batches` is the only bound.
        pub max_staleness: Option<u32>,
        /// Address of the synchronizer: `host:port` to listen on, or `http://host:port` of a
        /// running one. Absent: the first process of the job listens on a free port of this
        /// machine, and the others find it through the job's folder.
        pub address: Option<String>,
        /// Maximum time that explorer and trainer wait for each other.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub sync_timeout: ConfigSeconds = ConfigSeconds::new(3600),
        /// Maximum time to load weights into servers that are away or fail to load them, with
        /// retries. After it the job ends and can be resumed.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub load_timeout: ConfigSeconds = ConfigSeconds::new(300),
        /// Treatment of running model calls by a weight update.
        pub in_flight: InFlightCalls,
        /// With `in_flight: drain`: maximum time for running calls of a server to finish. Absent:
        /// `sync_timeout`.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub drain_timeout: Option<ConfigSeconds>,
        /// With `in_flight: drain`: abort the calls that run after `drain_timeout`. Otherwise the
        /// server keeps its weights, and the update is repeated.
        pub abort_after_drain: bool,
        /// Mode `explore`: maximum wait for a trainer that has neither joined nor published
        /// weights. After it the explorer continues with the weights of the servers.
        pub trainer_join_timeout: ConfigSeconds = ConfigSeconds::new(60),
    }
}

choices! {
    /// Transport of the weights.
    pub enum SyncMethod {
        /// Through files in a folder that both sides see.
        #[default]
        Checkpoint,
        /// From GPU to GPU, through endpoints of the servers: `rw.publish_weights`. Only in mode
        /// `both`; falls back to files if the transfer fails.
        Nccl,
        /// Through the memory of the job's machine: the trainer pushes them, and servers on the
        /// same machine load them.
        Memory,
    }

    /// Treatment of running model calls by a weight update.
    pub enum InFlightCalls {
        /// They finish with the old weights first.
        #[default]
        Drain,
        /// They are paused, and continue with the new weights. Their later tokens have a version
        /// only if the server reports one for each token.
        Keep,
        /// They are aborted.
        Abort,
    }

    /// Schedule of weight syncs.
    pub enum SyncStyle {
        /// Both sides stop every `sync_interval` steps.
        #[default]
        Fixed,
        /// The explorer requests weights, the trainer provides them.
        ExplorerDriven,
        /// The trainer publishes weights, the explorer follows.
        TrainerDriven,
        /// Neither side stops: weights are loaded as they are published, and
        /// `explorer.max_inflight_batches` bounds the lead of the explorer.
        FullyAsync,
    }
}

impl SyncMethod {
    /// Tells whether the trainer sends weights over a process group. Otherwise servers load them
    /// from a folder.
    pub const fn uses_group(self) -> bool {
        matches!(self, Self::Nccl)
    }
}
