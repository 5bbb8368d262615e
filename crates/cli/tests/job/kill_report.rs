//! Counts of a campaign of kills, printed and kept in a file at every kill, so that an interrupted
//! campaign has its figures.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Findings about one job.
#[derive(Debug, Default)]
pub(crate) struct JobVerdict {
    /// Runs that are missing.
    lost: u64,
    /// Runs that are there more than once.
    doubled: u64,
    /// Processes that did not end.
    pub(crate) hung: Vec<String>,
    /// Everything else that is wrong.
    pub(crate) failed: Vec<String>,
}

impl JobVerdict {
    pub(crate) fn is_good(&self) -> bool {
        self.lost + self.doubled == 0 && self.hung.is_empty() && self.failed.is_empty()
    }

    /// Counts what is missing in a list, or in it twice.
    pub(crate) fn compare(&mut self, place: &str, expected: u64, found: &[[String; 3]]) {
        let different = found.iter().collect::<BTreeSet<_>>().len() as u64;
        let (lost, doubled) = (expected.saturating_sub(different), found.len() as u64 - different);
        self.lost += lost;
        self.doubled += doubled;
        if lost + doubled > 0 || different > expected {
            self.failed.push(format!(
                "{place}: {} rows, {different} different ones, {expected} expected",
                found.len()
            ));
        }
    }
}

/// Report of a campaign.
pub(crate) struct KillReport {
    file: Option<File>,
    began: Instant,
    job: Value,
    /// Kills by buffer and trainer.
    by_kind: BTreeMap<String, u32>,
    pub(crate) kills: u32,
    of: u32,
    pub(crate) jobs: u32,
    lost: u64,
    doubled: u64,
    hung: u64,
    failed: u64,
    pub(crate) problems: Vec<String>,
}

impl KillReport {
    /// Creates the file, if there is to be one.
    pub(crate) fn create(path: Option<&Path>, seed: u64, of: u32) -> Self {
        let file = path.map(|path| File::create(path).unwrap());
        let mut report = Self {
            file,
            began: Instant::now(),
            job: Value::Null,
            by_kind: BTreeMap::new(),
            kills: 0,
            of,
            jobs: 0,
            lost: 0,
            doubled: 0,
            hung: 0,
            failed: 0,
            problems: Vec::new(),
        };
        report.line(&json!({ "event": "began", "seed": seed }));
        report
    }

    /// Begins a job.
    pub(crate) fn begin(&mut self, buffer: &str, trainer: &str) {
        self.jobs += 1;
        self.job = json!({ "job": self.jobs, "kind": format!("{buffer}, {trainer} trainer") });
    }

    /// Counts a kill.
    pub(crate) fn killed(&mut self, signal: &str, moment: Duration) {
        self.kills += 1;
        let kind = self.job["kind"].as_str().unwrap_or_default().to_owned();
        *self.by_kind.entry(kind).or_default() += 1;
        let ms = moment.as_millis() as u64;
        self.line(&json!({ "event": "killed", "signal": signal, "moment_ms": ms }));
    }

    /// Ends a job.
    pub(crate) fn end(&mut self, verdict: JobVerdict) {
        self.lost += verdict.lost;
        self.doubled += verdict.doubled;
        self.hung += verdict.hung.len() as u64;
        self.failed += u64::from(!verdict.failed.is_empty());
        let problems = [verdict.hung, verdict.failed].concat();
        self.line(&json!({ "event": "ended", "problems": problems }));
        let job = &self.job;
        self.problems.extend(problems.into_iter().map(|problem| format!("{job}: {problem}")));
    }

    pub(crate) fn is_good(&self) -> bool {
        self.problems.is_empty()
    }

    pub(crate) fn totals(&self) -> String {
        let Self { kills, of, jobs, lost, doubled, hung, failed, .. } = self;
        let seconds = self.began.elapsed().as_secs();
        format!(
            "{kills} of {of} kills, {jobs} jobs, {seconds} s: {lost} lost, {doubled} doubled, \
             {hung} hung, {failed} jobs otherwise wrong"
        )
    }

    #[expect(clippy::print_stdout, reason = "a long campaign shows its progress")]
    fn line(&mut self, event: &Value) {
        let (totals, job, kills) = (self.totals(), &self.job, &self.by_kind);
        let line = json!({ "totals": totals, "job": job, "now": event, "kills": kills });
        println!("{line}");
        if let Some(file) = &mut self.file {
            writeln!(file, "{line}").unwrap();
        }
    }
}
