//! Search for a text in the recorded messages of runs. Files only grow, so that a repeated search
//! continues where it stopped.

use std::collections::VecDeque;
use std::path::Path;

use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use super::codec::Take;
use super::files::{self, TrajectoryFiles};
use super::record::{Record, RunRecord};
use super::trajectory::{self, TextMatch};

/// Number of remembered searches.
const SEARCHES: usize = 4;

/// Bytes of messages that one query reads at most. The next query continues.
const MAX_BYTES: u64 = 256 << 20;

/// Runs with a text in their messages.
#[derive(Clone, Debug, Default)]
pub(super) struct TextMatches {
    /// Tasks whose prompt has the text: batch, task. It also finds runs without recorded messages.
    tasks: FxHashSet<(u32, u32)>,
    runs: FxHashSet<(u32, u32, u32)>,
    /// Not all files were read yet.
    pub(super) is_partial: bool,
}

impl TextMatches {
    pub(super) fn has(&self, batch: u32, task: u32, run: u32) -> bool {
        self.tasks.contains(&(batch, task)) || self.runs.contains(&(batch, task, run))
    }
}

/// Recent searches.
#[derive(Debug, Default)]
pub(super) struct TextSearches(Mutex<VecDeque<TextSearch>>);

#[derive(Debug)]
struct TextSearch {
    /// Lower case.
    text: String,
    matches: TextMatches,
    /// File of runs and position of its next frame.
    segment: u32,
    position: u64,
}

impl TextSearches {
    /// Searches in the files of a folder. Records that cannot be read are skipped.
    pub(super) fn find(&self, dir: &Path, text: &str) -> TextMatches {
        let text = text.to_lowercase();
        let mut searches = self.0.lock();
        let known = searches.iter().position(|search| search.text == text);
        let mut search = known.and_then(|at| searches.remove(at)).unwrap_or(TextSearch {
            text,
            matches: TextMatches::default(),
            segment: 0,
            position: 0,
        });
        search.advance(dir, MAX_BYTES);
        let matches = search.matches.clone();
        searches.push_front(search);
        searches.truncate(SEARCHES);
        matches
    }
}

impl TextSearch {
    fn advance(&mut self, dir: &Path, max_bytes: u64) {
        let (mut left, mut payloads) = (max_bytes, TrajectoryFiles::new(dir));
        let (mut segment, mut position) = (self.segment, self.position);
        self.matches.is_partial = false;
        // Files that cannot be read have no matches.
        let _ = files::runs_from(dir, (segment, position), &mut |number, frame_place, frame| {
            if left == 0 {
                self.matches.is_partial = true;
                return;
            }
            let mut take = Take(frame);
            while let Some(record) = Record::next(&mut take, false) {
                if let Record::Run(run) = record {
                    left = left.saturating_sub(self.add(&run, &mut payloads));
                }
            }
            (segment, position) = (number, frame_place + frame.len() as u64);
        });
        (self.segment, self.position) = (segment, position);
    }

    /// Searches in one run. Returns the number of bytes read.
    fn add(&mut self, run: &RunRecord, payloads: &mut TrajectoryFiles) -> u64 {
        let Some(payload) = run.trajectory.and_then(|position| payloads.read(position).ok()) else {
            return 0;
        };
        let bytes = payload.len() as u64;
        match trajectory::find_text(payload.into(), &self.text) {
            Some(TextMatch::Prompt) => {
                self.matches.tasks.insert((run.batch, run.task));
            }
            Some(TextMatch::Later) => {
                self.matches.runs.insert((run.batch, run.task, run.run));
            }
            None => {}
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_with_a_small_budget_ends_with_the_same_runs() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = files::Files::open(folder.path()).unwrap();
        let mut queue = super::super::write_queue::WriteQueue::default();
        queue.resume_after(1 << 20);
        for run in 0..20 {
            let text = if run % 3 == 0 { "The CAPITAL of France" } else { "a sum" };
            let payload = trajectory::tests::payload(text, "an answer");
            let trajectory = queue.add_trajectory(payload);
            let record = super::super::record::tests::run(1, run, 0, trajectory);
            record.put(&mut queue.runs);
            files.write(queue.take());
        }
        let find = |max_bytes| {
            let text = "capital of".to_owned();
            let matches = TextMatches::default();
            let mut search = TextSearch { text, matches, segment: 0, position: 0 };
            let mut steps = 0;
            loop {
                search.advance(folder.path(), max_bytes);
                steps += 1;
                if !search.matches.is_partial {
                    let found = (0..20).filter(|task| search.matches.has(1, *task, 0));
                    return (found.collect::<Vec<_>>(), steps);
                }
            }
        };
        let expected = vec![0, 3, 6, 9, 12, 15, 18];
        assert_eq!(find(u64::MAX), (expected.clone(), 1));
        let (found, steps) = find(1);
        assert_eq!(found, expected);
        assert!(steps >= 20, "{steps} steps");
    }
}
