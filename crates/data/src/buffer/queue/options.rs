//! What a queue can be told when it is opened.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;

use crate::buffer::{BufferError, Result};

/// What memory one sample takes beside its payload and its id: its entry in the queue and among
/// the known names. It counts in [`QueueOptions::bytes_max`], so that many small samples have a
/// limit too.
pub const SAMPLE_COST: usize = 192;

/// How a queue behaves.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// What errors call it.
    pub name: String,
    /// How many lots may wait to be read; with [`QueueFullPolicy::Spill`] in memory, else in all.
    pub capacity: usize,
    /// How many bytes of samples are held in memory: payload, id and [`SAMPLE_COST`] of each. What
    /// was read and is not acknowledged counts, unless it is on disk as well. A payload that is a
    /// slice of something larger counts as long as it is itself.
    pub bytes_max: usize,
    /// A folder in which everything is kept until it is acknowledged. Memory is then a cache. The
    /// folder belongs to one queue at a time.
    pub path: Option<PathBuf>,
    /// How many bytes the files may take, those of `path` or those of [`QueueFullPolicy::Spill`].
    pub disk_bytes_max: u64,
    /// What happens to a lot for which there is no room. Not looked at with `replay`, which always
    /// replaces.
    pub when_full: QueueFullPolicy,
    /// Orders by priority instead of age, and reuses what was read.
    pub replay: Option<ReplayOptions>,
    /// Samples that are more than this many versions older than the newest one ever written are
    /// stale, whatever the reader asks for.
    pub max_staleness: Option<u64>,
    /// How many names (of lots and of samples) are known after what they name has left the queue.
    /// What is in the queue is always known; of what has left, the last `known_max` are: writing
    /// one of these again has no effect. A name that was forgotten is new.
    pub known_max: usize,
    /// What time it is for [`ReplayOptions::reuse_cooldown_time`].
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
    /// Refuses what cannot be.
    pub(super) fn check(&self) -> Result<()> {
        let refuse = |message: &str| {
            let (storage, message) = (self.name.clone(), message.to_owned());
            Err(BufferError::Unsupported { storage, message })
        };
        if self.capacity == 0 {
            return refuse("capacity = 0 has no room for anything; set it to 1 or more");
        }
        if self.path.is_some() && self.when_full == QueueFullPolicy::Replace {
            return refuse("what is kept in path is not replaced; use wait or spill");
        }
        let spills = matches!(self.when_full, QueueFullPolicy::Spill { .. });
        match &self.replay {
            Some(_) if self.path.is_some() || spills => refuse(
                "replay holds everything in memory; leave out path and spill, or use a database",
            ),
            Some(ReplayOptions { priority, .. }) if !priority.is_finite() => {
                refuse("decay and sigma of the priority must be finite numbers")
            }
            _ => Ok(()),
        }
    }
}

/// What happens to a lot for which there is no room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueFullPolicy {
    /// Its writer waits: for room, for the queue to close, or until time is up.
    Wait { timeout: Duration },
    /// It goes to disk, and memory stays within its budget.
    Spill {
        /// Where to; the folder `spill` in it is emptied when the queue is opened. Not looked at
        /// with [`QueueOptions::path`], where everything is on disk already.
        folder: PathBuf,
        /// How long to wait when the disk has reached its limit too.
        timeout: Duration,
    },
    /// It takes the place of the oldest that nobody has read.
    Replace,
}

/// Order by priority, and reuse.
///
/// The unit is the lot: the samples of a lot are read one after another, used, reused and replaced
/// together, because those of a group (GRPO) mean something only beside each other. The version of
/// a lot is that of its oldest sample. Staleness alone is judged sample by sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayOptions {
    /// How urgent a lot is.
    pub priority: ReplayPriority,
    /// A lot that was read comes back after this time with its use counted; never if none.
    pub reuse_cooldown_time: Option<Duration>,
    /// Where the noise of the priorities starts.
    pub seed: u64,
}

/// How urgent a lot is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReplayPriority {
    /// `model_version − decay · use_count`.
    LinearDecay {
        /// What one use costs, in versions.
        decay: f64,
    },
    /// The same with noise, and a lot is used `use_count_limit` times at most.
    DecayLimitRandomization {
        /// What one use costs, in versions.
        decay: f64,
        /// How often a lot is used; without limit if 0 or less.
        use_count_limit: i64,
        /// The standard deviation of the noise.
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

    /// Returns the priority of a lot.
    pub(super) fn of(self, version: u64, uses: u64, rng: &mut ChaCha8Rng) -> f64 {
        let (decay, noise) = match self {
            Self::LinearDecay { decay } => (decay, 0.0),
            Self::DecayLimitRandomization { decay, sigma, .. } => {
                (decay, sigma * rng.sample::<f64, _>(StandardNormal))
            }
        };
        version as f64 - decay * uses as f64 + noise
    }

    /// Tells whether a lot may be used again.
    pub(super) fn allows(self, uses: u64) -> bool {
        match self {
            Self::LinearDecay { .. } => true,
            Self::DecayLimitRandomization { use_count_limit, .. } => {
                use_count_limit <= 0 || uses < use_count_limit.unsigned_abs()
            }
        }
    }
}

/// What time it is. A test brings a clock that goes when it is told to.
pub trait QueueClock: std::fmt::Debug + Send + Sync {
    /// Returns the time since a moment that does not change.
    fn now(&self) -> Duration;
}

/// The clock of the machine.
#[derive(Debug)]
struct SystemClock(Instant);

impl QueueClock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}
