//! The job as a whole, and one run in detail.

use std::path::Path;

use super::codec::Take;
use super::record::{AttemptRecord, Record, RunRecord, Trajectory};
use super::state::State;
use super::{files, trajectory};
use crate::view::{
    AttemptDetail, CallDetail, ExperienceDetail, JobInfo, JobState, MessageText, RunDetail, RunKey,
};

impl State {
    pub(super) fn job(&self, now: f64, is_live: bool) -> JobInfo {
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
            message: notes.error.clone().or_else(|| notes.info.clone()),
        }
    }

    pub(super) fn detail(&self, dir: &Path, key: &RunKey, now: f64) -> Option<RunDetail> {
        let number = self.find(key)?;
        let row = self.row(number)?;
        let mut detail = RunDetail { run: self.shown(row, now), ..RunDetail::default() };
        if let Some(live) = self.live.get(&number) {
            detail.attempts = live.attempts.iter().map(attempt).collect();
            return Some(detail);
        }
        let Some(record) = read(dir, row.position.segment, row.position.offset) else {
            detail.experiences_message = Some("the record of this run was not stored".to_owned());
            return Some(detail);
        };
        detail.attempts = record.attempts.iter().map(attempt).collect();
        detail.run.message = record.message.as_deref().map(str::to_owned).or(detail.run.message);
        match record.trajectory {
            Some(trajectory) if self.out.has(&trajectory) => {
                match experiences(dir, trajectory) {
                    Ok((experiences, message)) => {
                        (detail.experiences, detail.experiences_message) = (experiences, message);
                    }
                    Err(message) => detail.experiences_message = Some(message),
                };
            }
            Some(_) => {
                let message = "its experiences were dropped: `dashboard.max_trajectory_bytes` is \
                               reached";
                detail.experiences_message = Some(message.to_owned());
            }
            None => {}
        }
        Some(detail)
    }
}

impl State {
    /// Returns the conversation of an ended run, and whether parts are omitted.
    pub(super) fn conversation(&self, dir: &Path, number: u64) -> (Vec<MessageText>, bool) {
        let position = self.row(number).map(|row| row.position);
        let record = position.and_then(|position| read(dir, position.segment, position.offset));
        let trajectory = record.and_then(|record| record.trajectory);
        let kept = trajectory.filter(|trajectory| self.out.has(trajectory));
        let payload = kept.and_then(|trajectory| files::trajectory(dir, trajectory).ok());
        payload.map(|bytes| trajectory::conversation(bytes.into())).unwrap_or_default()
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
    position: Trajectory,
) -> Result<(Vec<ExperienceDetail>, Option<String>), String> {
    let bytes = files::trajectory(dir, position)
        .map_err(|error| format!("its experiences cannot be read: {error}"))?;
    trajectory::shown(bytes.into())
}

fn attempt(record: &AttemptRecord) -> AttemptDetail {
    let calls = record.calls.iter().map(|call| CallDetail {
        call: call.call,
        model: call.model.to_string(),
        server: call.server.as_deref().map(str::to_owned),
        began: call.began,
        sent: call.sent,
        ended: call.ended,
        status: call.status,
        prompt_tokens: call.prompt_tokens,
        answer_tokens: call.answer_tokens,
        version: call.version,
    });
    AttemptDetail {
        attempt: record.attempt,
        runner: record.runner,
        incarnation: record.incarnation,
        location: record.location.as_deref().map(str::to_owned),
        sent_at: record.sent_at,
        began: record.began,
        ended: record.ended,
        outcome: record.outcome().to_owned(),
        message: record.message.as_deref().map(str::to_owned),
        calls: calls.collect(),
    }
}
