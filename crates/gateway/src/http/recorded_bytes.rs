//! Memory of the recordings of all open runs.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollway_model_api::ModelCall;
use rollway_recording::{CallDecision, RecordError, Recorder, RecorderLimits, RetryHeaders};

/// Sum over all recorders. While it is above half of the limit, a recording that has more than its
/// share of the other half fails: one run cannot make the recordings of all others fail.
#[derive(Debug)]
pub(super) struct RecordedBytes {
    limit: u64,
    bytes: AtomicU64,
    recorders: AtomicU64,
}

/// A recorder whose memory is counted.
#[derive(Debug)]
pub(super) struct CountedRecorder {
    recorder: Recorder,
    total: Arc<RecordedBytes>,
    counted: u64,
}

impl RecordedBytes {
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, bytes: AtomicU64::new(0), recorders: AtomicU64::new(0) })
    }

    pub(super) fn recorder(self: &Arc<Self>, limits: RecorderLimits) -> CountedRecorder {
        self.recorders.fetch_add(1, Ordering::Relaxed);
        CountedRecorder { recorder: Recorder::new(limits), total: Arc::clone(self), counted: 0 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl CountedRecorder {
    pub(super) fn begin_counted(
        &mut self,
        call: &ModelCall,
        retry: &RetryHeaders,
    ) -> Result<CallDecision, RecordError> {
        let begun = self.recorder.begin(call, retry);
        self.enforce_total().and(begun)
    }

    /// Counts what the recorder holds now. Fails the recording if all hold too much, and it more
    /// than its share.
    pub(super) fn enforce_total(&mut self) -> Result<(), RecordError> {
        let now = self.recorder.bytes();
        let before = std::mem::replace(&mut self.counted, now);
        // Wraps, so that the difference may be negative.
        let change = now.wrapping_sub(before);
        let total = self.total.bytes.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
        let half = self.total.limit / 2;
        let share = half / self.total.recorders.load(Ordering::Relaxed).max(1);
        if total <= half || now <= share {
            return Ok(());
        }
        let found = ("bytes, its share of those of all runs", share);
        let remedy = "raise `explorer.gateway.recorded_bytes`, or run fewer runs at a time";
        let error = self.recorder.exceeded(found, remedy);
        let left = self.recorder.bytes();
        let freed = std::mem::replace(&mut self.counted, left) - left;
        self.total.bytes.fetch_sub(freed, Ordering::Relaxed);
        Err(error)
    }
}

impl Deref for CountedRecorder {
    type Target = Recorder;

    fn deref(&self) -> &Recorder {
        &self.recorder
    }
}

impl DerefMut for CountedRecorder {
    fn deref_mut(&mut self) -> &mut Recorder {
        &mut self.recorder
    }
}

impl Drop for CountedRecorder {
    fn drop(&mut self) {
        self.total.bytes.fetch_sub(self.counted, Ordering::Relaxed);
        self.total.recorders.fetch_sub(1, Ordering::Relaxed);
    }
}
