//! The history of a job that is over, or that another process runs; and one run in detail.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::codec::Take;
use super::files;
use super::query;
use super::record::{Record, RunRecord, Trajectory};
use super::state::State;
use super::trajectory;
use crate::view::{
    AlarmRow, BatchRow, BiasReport, ExperienceDetail, JobInfo, JobState, Overview, RunDetail,
    RunKey, RunPage, RunQuery, Timeline,
};

/// What was kept of a job.
#[derive(Debug)]
pub struct RecordedHistory {
    dir: PathBuf,
    state: State,
}

impl RecordedHistory {
    /// Reads a history.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn open(dir: &Path) -> io::Result<Self> {
        if !files::is_there(dir) {
            let what = format!("{} has no history of a job", dir.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        Ok(Self { dir: dir.to_owned(), state: State::load(dir, u64::MAX)? })
    }

    /// Returns the folders of a job's folder that have a history, that of the first explorer first.
    pub fn find(job_dir: &Path) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(job_dir)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.ends_with("history") && files::is_there(&path) {
                found.push(path);
            }
        }
        found.sort_by_key(|path| (!path.ends_with("history"), path.clone()));
        Ok(found)
    }

    pub(crate) fn job(&self) -> JobInfo {
        self.state.job(now(), false)
    }

    pub(crate) fn overview(&self) -> Overview {
        self.state.overview(now(), false)
    }

    pub(crate) fn timeline(&self) -> Timeline {
        self.state.timeline(now())
    }

    pub(crate) fn batches(&self) -> Vec<BatchRow> {
        self.state.batches(false)
    }

    pub(crate) fn runs(&self, query: &RunQuery) -> RunPage {
        self.state.runs(query, now())
    }

    pub(crate) fn run(&self, key: &RunKey) -> Option<RunDetail> {
        self.state.detail(&self.dir, key, now())
    }

    pub(crate) fn bias(&self) -> BiasReport {
        self.state.bias()
    }

    pub(crate) fn alarms(&self) -> Vec<AlarmRow> {
        self.state.alarms()
    }
}

fn now() -> f64 {
    super::state::seconds(rollway_engine::events::now())
}

impl super::RunHistory {
    pub(crate) fn job(&self) -> JobInfo {
        self.ask(|state, now| state.job(now, true))
    }

    pub(crate) fn overview(&self) -> Overview {
        let runners = self.runner_counts();
        Overview { runners, ..self.ask(|state, now| state.overview(now, true)) }
    }

    pub(crate) fn timeline(&self) -> Timeline {
        self.ask(State::timeline)
    }

    pub(crate) fn batches(&self) -> Vec<BatchRow> {
        self.ask(|state, _| state.batches(true))
    }

    pub(crate) fn runs(&self, query: &RunQuery) -> RunPage {
        self.ask(|state, now| state.runs(query, now))
    }

    pub(crate) fn bias(&self) -> BiasReport {
        self.ask(|state, _| state.bias())
    }

    pub(crate) fn alarms(&self) -> Vec<AlarmRow> {
        self.ask(|state, _| state.alarms())
    }

    /// Returns how many model calls an attempt has made so far.
    pub(crate) fn calls(&self, attempts: &[Option<rollway_core::AttemptId>]) -> Vec<u64> {
        self.ask(|state, _| {
            let calls = |attempt: &Option<rollway_core::AttemptId>| {
                attempt.and_then(|id| state.attempts.get(&id)).map_or(0, |attempt| attempt.calls)
            };
            attempts.iter().map(calls).collect()
        })
    }
}

impl State {
    fn job(&self, now: f64, is_live: bool) -> JobInfo {
        let notes = &self.notes;
        let state = match notes.closed {
            Some(_) => notes.outcome,
            None if is_live => JobState::Running,
            None => JobState::Unknown,
        };
        JobInfo {
            name: notes.name.clone(),
            project: notes.project.clone(),
            mode: notes.mode.clone(),
            job_dir: notes.job_dir.clone(),
            state,
            live: is_live && notes.closed.is_none(),
            started: notes.started,
            ended: notes.closed,
            now,
            step: notes.step,
            total_steps: notes.total_steps,
            version: notes.version,
            runners_wanted: notes.runners.into(),
            message: notes.error.clone().or_else(|| notes.said.clone()),
        }
    }

    fn timeline(&self, now: f64) -> Timeline {
        Timeline { now, lanes: self.notes.lanes() }
    }

    fn alarms(&self) -> Vec<AlarmRow> {
        self.notes.alarms.iter().cloned().collect()
    }

    /// Returns one run in detail.
    pub(super) fn detail(&self, dir: &Path, key: &RunKey, now: f64) -> Option<RunDetail> {
        let number = self.find(key)?;
        let row = self.row(number)?;
        let mut detail = RunDetail { run: self.shown(row, now), ..RunDetail::default() };
        if let Some(live) = self.live.get(&number) {
            detail.attempts = live.attempts.iter().map(query::attempt).collect();
            return Some(detail);
        }
        let Some(record) = read(dir, row.place.segment, row.place.offset) else {
            let message = "nothing more was kept of it";
            detail.experiences_message = Some(message.to_owned());
            return Some(detail);
        };
        detail.attempts = record.attempts.iter().map(query::attempt).collect();
        detail.run.message = record.message.as_deref().map(str::to_owned).or(detail.run.message);
        let trajectory = record.trajectory.filter(|trajectory| self.out.has(trajectory));
        match (trajectory, record.trajectory) {
            (Some(trajectory), _) => match experiences(dir, trajectory) {
                Ok((shown, words)) => {
                    (detail.experiences, detail.experiences_message) = (shown, words);
                }
                Err(words) => detail.experiences_message = Some(words),
            },
            (None, Some(_)) => {
                let words = "they were dropped to make room for newer ones (see \
                             `dashboard.max_trajectory_bytes`)";
                detail.experiences_message = Some(words.to_owned());
            }
            (None, None) => {}
        }
        Some(detail)
    }
}

fn read(dir: &Path, segment: u32, offset: u32) -> Option<RunRecord> {
    let bytes = (segment > 0).then(|| files::record(dir, segment, offset))?.ok()?;
    match Record::next(&mut Take(&bytes), true)? {
        Record::Run(record) => Some(*record),
        Record::Dropped { .. } => None,
    }
}

fn experiences(
    dir: &Path,
    place: Trajectory,
) -> Result<(Vec<ExperienceDetail>, Option<String>), String> {
    let bytes = files::trajectory(dir, place.segment, place.offset, place.bytes);
    let bytes = bytes.map_err(|error| format!("what it yielded cannot be read: {error}"))?;
    trajectory::shown(bytes.into())
}
