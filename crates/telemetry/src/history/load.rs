//! What an earlier process, or this one's past, has left in a folder.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use rollway_core::BatchState;

use super::codec::Take;
use super::files;
use super::record::{Entry, JobNote, Record};
use super::row::RecordPosition;
use super::state::State;

impl State {
    /// Reads a folder.
    ///
    /// # Errors
    /// If it cannot be read. What is torn, or not known, is left out.
    pub(super) fn load(dir: &Path, max_runs: u64) -> io::Result<Self> {
        let mut state = Self::new(max_runs);
        files::events(dir, &mut |entry| state.take_entry(entry))?;
        let mut kept: BTreeMap<u32, u64> = BTreeMap::new();
        files::runs(dir, &mut |segment, place, frame| {
            state.take_frame(segment, place, frame, &mut kept);
        })?;
        files::segments(dir)?.into_iter().for_each(|segment| state.out.is_there(segment));
        for (part, bytes) in files::trajectories(dir)? {
            state.out.found(part, bytes, kept.get(&part).copied().unwrap_or(0));
        }
        state.close_tasks();
        Ok(state)
    }

    fn take_entry(&mut self, entry: Entry) {
        let Entry { at, what } = entry;
        match &what {
            JobNote::Batch { .. } => self.take_batch(at, &what, false),
            JobNote::State { number, state } => {
                let states = [
                    BatchState::Pending,
                    BatchState::Running,
                    BatchState::Finalizing,
                    BatchState::Finalized,
                    BatchState::Aborted,
                ];
                if let Some(state) = states.into_iter().find(|known| known.to_string() == *state) {
                    self.set_state(at, *number, state);
                }
            }
            JobNote::Adopted { number } => self.reopen(*number),
            JobNote::Totals { totals } => self.totals = totals.clone(),
            _ => {}
        }
        self.notes.apply(at, &what);
    }

    fn take_frame(
        &mut self,
        segment: u32,
        place: u64,
        frame: &[u8],
        kept: &mut BTreeMap<u32, u64>,
    ) {
        let mut take = Take(frame);
        loop {
            let offset = place + (frame.len() - take.0.len()) as u64;
            match Record::next(&mut take, false) {
                Some(Record::Run(record)) => {
                    let Some(number) = self.row_of(record.batch, record.task, record.run) else {
                        continue;
                    };
                    if let Some(trajectory) = record.trajectory {
                        *kept.entry(trajectory.segment).or_default() += 1;
                    }
                    let offset = u32::try_from(offset).unwrap_or(0);
                    self.take_record(number, &record, RecordPosition { segment, offset });
                    self.out.wrote(segment);
                }
                Some(Record::Dropped { batch, task, reason }) => {
                    let batch = self.batches.get_mut(&batch);
                    if let Some(task) = batch.and_then(|it| it.tasks.get_mut(task as usize)) {
                        task.dropped = Some(reason);
                    }
                }
                None => break,
            }
        }
    }

    /// Counts the tasks all of whose runs are over.
    fn close_tasks(&mut self) {
        let numbers: Vec<u32> = self.batches.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.recount(number));
    }
}
