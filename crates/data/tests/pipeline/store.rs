//! An in-memory buffer with injected failures.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use rollway_data::buffer::{BufferError, ExperienceWriter, Result, WriteResult};
use rollway_data::{Sample, WriteBatch};

/// Failure of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Nothing is stored.
    Refused,
    /// Everything is stored, and the response is lost.
    AnswerLost,
}

#[derive(Clone, Default)]
pub(crate) struct Store(Arc<Mutex<State>>);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) lots: BTreeMap<Arc<str>, Vec<Sample>>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) faults: VecDeque<Fault>,
    pub(crate) close_faults: usize,
    pub(crate) writes: usize,
    pub(crate) closed: bool,
}

struct StoreWriter(Store);

impl Store {
    pub(crate) fn writer(&self) -> Box<dyn ExperienceWriter> {
        Box::new(StoreWriter(self.clone()))
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.state().samples.iter().map(|sample| sample.id.to_string()).collect()
    }

    pub(crate) fn writes(&self) -> usize {
        self.state().writes
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no writer panicked")
    }
}

impl ExperienceWriter for StoreWriter {
    fn write(&mut self, lot: &WriteBatch) -> Result<WriteResult> {
        let mut state = self.0.state();
        if state.closed {
            return Err(BufferError::Closed("store".into()));
        }
        state.writes += 1;
        let fault = state.faults.pop_front();
        if matches!(fault, Some(Fault::Refused)) {
            return Err(unavailable("refused"));
        }
        let mut written = WriteResult::default();
        match state.lots.get(&lot.key) {
            // The pipeline is deterministic, so the same key means the same samples.
            Some(before) => {
                assert_eq!(before, &lot.samples, "{} came with other samples", lot.key);
                written.known = lot.samples.len();
            }
            None => {
                for sample in &lot.samples {
                    if state.samples.iter().any(|known| known.id == sample.id) {
                        written.known += 1;
                    } else {
                        state.samples.push(sample.clone());
                        written.stored += 1;
                    }
                }
                state.lots.insert(lot.key.clone(), lot.samples.clone());
            }
        }
        if matches!(fault, Some(Fault::AnswerLost)) {
            return Err(unavailable("connection lost"));
        }
        Ok(written)
    }

    fn close(&mut self) -> Result<()> {
        let mut state = self.0.state();
        if state.close_faults > 0 {
            state.close_faults -= 1;
            return Err(unavailable("does not close"));
        }
        assert!(!state.closed, "closed twice");
        state.closed = true;
        Ok(())
    }
}

fn unavailable(message: &str) -> BufferError {
    BufferError::Unavailable { storage: "store".into(), message: message.into() }
}
