//! Options of a queue.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;

use crate::buffer::{BufferError, Result};

/// Memory of a sample beside payload and id. Counts in [`QueueOptions::bytes_max`], so that many
/// small samples are limited too.
pub const SAMPLE_COST: usize = 192;

#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// Name in errors.
    pub name: String,
    /// Maximum number of unread write batches; with [`QueueFullPolicy::Spill`] in memory only.
    pub capacity: usize,
    /// Maximum bytes of samples in memory: payload, id and [`SAMPLE_COST`] of each. Unacknowledged
    /// samples count unless they are on disk. A payload counts with its own length, even as a slice
    /// of a larger buffer.
    pub bytes_max: usize,
    /// Folder in which everything is stored until acknowledged; memory is then a cache. It belongs
    /// to one queue at a time.
    pub path: Option<PathBuf>,
    /// Maximum bytes of the files of `path` or [`QueueFullPolicy::Spill`].
    pub disk_bytes_max: u64,
    /// Policy for a full queue. Ignored with `replay`, which always replaces.
    pub when_full: QueueFullPolicy,
    /// Orders by priority instead of age, with reuse.
    pub replay: Option<ReplayOptions>,
    /// Samples more than this many versions older than the newest ever written are stale, whatever
    /// the reader requests.
    pub max_staleness: Option<u64>,
    /// Number of ids (of write batches and samples) remembered after removal; writing one of these
    /// again has no effect. Ids in the queue are always known.
    pub known_max: usize,
    /// Clock of [`ReplayOptions::reuse_cooldown_time`].
    pub clock: Arc<dyn QueueClock>,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            name: "queue".to_owned(),
            capacity: 10_000,
            bytes_max: 1 << 30,
            path: None,
            disk_bytes_max: 64 << 30,
            when_full: QueueFullPolicy::Wait { timeout: Duration::from_secs(1800) },
            replay: None,
            max_staleness: None,
            known_max: 1_000_000,
            clock: Arc::new(SystemClock(Instant::now())),
        }
    }
}

impl QueueOptions {
    /// Refuses invalid combinations.
    pub(super) fn check(&self) -> Result<()> {
        let refuse = |message: &str| {
            let (storage, message) = (self.name.clone(), message.to_owned());
            Err(BufferError::unsupported(storage, message))
        };
        if self.capacity == 0 {
            return refuse("capacity = 0 stores nothing; set it to 1 or more");
        }
        if self.path.is_some() && self.when_full == QueueFullPolicy::Replace {
            return refuse("samples in path are never replaced; set on_full to wait or spill");
        }
        let spills = matches!(self.when_full, QueueFullPolicy::Spill { .. });
        match &self.replay {
            Some(_) if self.path.is_some() || spills => refuse(
                "a replay buffer is held in memory; remove path and spill, or use a database",
            ),
            Some(ReplayOptions { priority, .. }) if !priority.is_finite() => {
                refuse("decay and sigma of the priority must be finite numbers")
            }
            _ => Ok(()),
        }
    }
}

/// Policy for a write batch without room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueFullPolicy {
    /// The writer waits for room, for the queue to close, or until the timeout.
    Wait { timeout: Duration },
    /// The batch goes to disk; memory stays within its budget.
    Spill {
        /// Its subfolder `spill` is emptied at opening. Ignored with [`QueueOptions::path`].
        folder: PathBuf,
        /// Maximum wait when the disk limit is reached too.
        timeout: Duration,
    },
    /// The batch replaces the oldest unread one.
    Replace,
}

/// Order by priority, with reuse.
///
/// The unit is the write batch: its samples are read, reused and replaced together, because a GRPO
/// group is meaningful only as a whole. Its version is that of its oldest sample. Staleness alone
/// is judged per sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayOptions {
    pub priority: ReplayPriority,
    /// A batch that was read returns after this time with its use counted. `None`: never.
    pub reuse_cooldown_time: Option<Duration>,
    /// Seed of the priority noise.
    pub seed: u64,
}

/// Priority of a write batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReplayPriority {
    /// `model_version − decay · use_count`.
    LinearDecay {
        /// Cost of one use, in versions.
        decay: f64,
    },
    /// The same with noise and at most `use_count_limit` uses.
    DecayLimitRandomization {
        decay: f64,
        /// Maximum uses; unlimited if 0 or less.
        use_count_limit: i64,
        /// Standard deviation of the noise.
        sigma: f64,
    },
}

impl Default for ReplayPriority {
    fn default() -> Self {
        Self::LinearDecay { decay: 2.0 }
    }
}

impl ReplayPriority {
    fn is_finite(self) -> bool {
        match self {
            Self::LinearDecay { decay } => decay.is_finite(),
            Self::DecayLimitRandomization { decay, sigma, .. } => {
                decay.is_finite() && sigma.is_finite()
            }
        }
    }

    pub(super) fn of(self, version: u64, uses: u64, rng: &mut ChaCha8Rng) -> f64 {
        let (decay, noise) = match self {
            Self::LinearDecay { decay } => (decay, 0.0),
            Self::DecayLimitRandomization { decay, sigma, .. } => {
                (decay, sigma * rng.sample::<f64, _>(StandardNormal))
            }
        };
        version as f64 - decay * uses as f64 + noise
    }

    /// Returns whether a batch may be used again.
    pub(super) fn allows(self, uses: u64) -> bool {
        match self {
            Self::LinearDecay { .. } => true,
            Self::DecayLimitRandomization { use_count_limit, .. } => {
                use_count_limit <= 0 || uses < use_count_limit.unsigned_abs()
            }
        }
    }
}

/// Clock, replaceable in tests.
pub trait QueueClock: std::fmt::Debug + Send + Sync {
    /// Returns the time since a fixed moment.
    fn now(&self) -> Duration;
}

#[derive(Debug)]
struct SystemClock(Instant);

impl QueueClock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}
