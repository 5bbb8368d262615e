//! Reads the history of earlier processes.

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
    /// Reads a folder. Incomplete or unknown records are skipped.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub(super) fn load(dir: &Path, max_runs: u64) -> io::Result<Self> {
        let mut state = Self::new(max_runs);
        files::events(dir, &mut |entry| state.apply_entry(entry))?;
        let mut kept: BTreeMap<u32, u64> = BTreeMap::new();
        files::runs(dir, &mut |segment, position, frame| {
            state.apply_frame(segment, position, frame, &mut kept);
        })?;
        files::segments(dir)?.into_iter().for_each(|segment| state.out.add_segment(segment));
        for (part, bytes) in files::trajectories(dir)? {
            state.out.add_part(part, bytes, kept.get(&part).copied().unwrap_or(0));
        }
        let batches: Vec<u32> = state.batches.keys().copied().collect();
        batches.into_iter().for_each(|number| state.recount(number));
        Ok(state)
    }

    fn apply_entry(&mut self, Entry { at, note }: Entry) {
        match &note {
            JobNote::Batch { .. } => self.add_batch(at, &note, false),
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
            JobNote::Servers { report } => self.servers.report = report.clone(),
            _ => {}
        }
        self.notes.apply(at, &note);
    }

    fn apply_frame(
        &mut self,
        segment: u32,
        position: u64,
        frame: &[u8],
        kept: &mut BTreeMap<u32, u64>,
    ) {
        let mut take = Take(frame);
        loop {
            let offset = position + (frame.len() - take.0.len()) as u64;
            match Record::next(&mut take, false) {
                Some(Record::Run(record)) => {
                    let Some(number) = self.row_of(record.batch, record.task, record.run) else {
                        continue;
                    };
                    if let Some(trajectory) = record.trajectory {
                        *kept.entry(trajectory.segment).or_default() += 1;
                    }
                    let offset = u32::try_from(offset).unwrap_or(0);
                    self.apply_record(number, &record, RecordPosition { segment, offset });
                    self.out.add_run(segment);
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
}
