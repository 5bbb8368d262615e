//! HTTP client of `rollway top` for the dashboard of a job.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollway::Client;
use rollway::dashboard::DashboardAddress;
use rollway::job::{Summary, SummaryState};
use rollway::view::{ActionResult, JobInfo, JobState, Overview, RunnerRow};
use rollway_base::FingerprintError;
use rustix::process::{Pid, test_kill_process};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use crate::quoted;

/// Maximum wait for a response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// State of a job at one time.
#[derive(Clone, Debug, Default)]
pub struct TopSnapshot {
    pub job: JobInfo,
    pub overview: Overview,
    pub runners: Vec<RunnerRow>,
}

/// Reason why there is no state of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopError {
    Ended(JobEnd),
    NoResponse(String),
}

/// End of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEnd {
    pub state: JobState,
    pub message: String,
}

/// Client of the dashboard of one job.
#[derive(Clone, Debug)]
pub struct TopClient {
    client: Client,
    address: DashboardAddress,
    job: PathBuf,
}

impl TopClient {
    /// Reads the address of a job's dashboard from the job's folder.
    pub fn open(job: &Path) -> Result<Self, String> {
        let shown = job.display();
        if !job.is_dir() {
            return Err(format!("no such folder: {shown}; pass the folder of a job"));
        }
        let address = DashboardAddress::read(job).map_err(|error| {
            format!("cannot read the dashboard address in {shown}: {error}; check permissions")
        })?;
        let address = address.ok_or_else(|| {
            format!(
                "{shown} has no dashboard.json: the job has ended, has not started yet, or runs \
                 with `dashboard.enable=false`; open an ended job with `rollway view {shown}`"
            )
        })?;
        let fingerprint = address.fingerprint.as_deref().map(str::parse).transpose();
        let fingerprint = fingerprint.map_err(|error: FingerprintError| error.to_string())?;
        let client = Client::of(&address.url, fingerprint)?;
        Ok(Self { client, address, job: job.to_owned() })
    }

    /// Returns the state of the job, or the reason why there is none.
    pub async fn snapshot(&self) -> Result<TopSnapshot, TopError> {
        let snapshot =
            async { tokio::try_join!(self.get("job"), self.get("overview"), self.get("runners")) };
        match snapshot.await {
            Ok((job, overview, runners)) => Ok(TopSnapshot { job, overview, runners }),
            Err(error) => Err(self.end().map_or(TopError::NoResponse(error), TopError::Ended)),
        }
    }

    /// Returns how the job ended. `None`: its dashboard may respond again.
    fn end(&self) -> Option<JobEnd> {
        let current = DashboardAddress::read(&self.job).ok()?;
        // A job removes the file at its end; a killed one leaves it behind.
        let is_killed = |pid| is_gone(pid).then_some(JobState::Stopped);
        let killed = match &current {
            None => None,
            Some(address) if *address == self.address => Some(is_killed(address.pid)?),
            Some(_) => return None,
        };
        let view = format!("`rollway view {}` shows it", quoted(&self.job.display().to_string()));
        if let Some(state) = killed {
            let message = format!(
                "the process of the job has ended without closing it (killed?); run its command \
                 again to resume; {view}"
            );
            return Some(JobEnd { state, message });
        }
        let (state, outcome) = match last_summary(&self.job)
            .map(|summary| (summary.state, summary.error))
        {
            Some((SummaryState::Finished, _)) => (JobState::Finished, "finished".to_owned()),
            Some((SummaryState::Stopped, _)) => {
                (JobState::Stopped, "stopped; run its command again to resume".to_owned())
            }
            Some((SummaryState::Failed, error)) => {
                let error = error.unwrap_or_default();
                (JobState::Failed, format!("failed: {}", error.lines().next().unwrap_or_default()))
            }
            Some((SummaryState::Running, _)) | None => return None,
        };
        Some(JobEnd { state, message: format!("the job has ended: {outcome}; {view}") })
    }

    pub async fn cancel(&self, batch: &str, task: u32, run: u32) -> Result<ActionResult, String> {
        let path = format!("runs/{}/{task}/{run}/cancel", percent_encode(batch));
        self.request(&path, true).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        self.request(path, false).await
    }

    async fn request<T: DeserializeOwned>(&self, path: &str, is_post: bool) -> Result<T, String> {
        let DashboardAddress { url, token, .. } = &self.address;
        let endpoint = format!("{url}/api/{path}");
        let response = async {
            match is_post {
                true => self.client.act(&endpoint, token, "{}".into()).await,
                false => self.client.call(&endpoint, token, None).await,
            }
        };
        let late = |_| {
            let seconds = REQUEST_TIMEOUT.as_secs();
            format!("no response from {url} within {seconds} s; check that the job is running")
        };
        let response = timeout(REQUEST_TIMEOUT, response).await.map_err(late)??;
        if response.status != 200 {
            let message = error_message(&response.body);
            return Err(format!("{message} (status {} from {endpoint})", response.status));
        }
        serde_json::from_slice(&response.body).map_err(|error| {
            format!(
                "invalid response from {endpoint}: {error}; check that the job and this command \
                 are of the same version"
            )
        })
    }
}

/// Returns the summary that was written last: benchmarks and second explorers have their own.
fn last_summary(job: &Path) -> Option<Summary> {
    let is_summary = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(b"summary.json"))
    };
    let paths = fs::read_dir(job).ok()?.flatten().map(|entry| entry.path()).filter(is_summary);
    let modified = |path: &PathBuf| fs::metadata(path).and_then(|file| file.modified()).ok();
    let last = paths.max_by_key(modified)?;
    serde_json::from_slice(&fs::read(last).ok()?).ok()
}

/// Tells whether there is no such process on this machine.
fn is_gone(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

/// Returns the `error` field of a response body, else the body as text.
fn error_message(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(body).into_owned()));
    match body.get("error").unwrap_or(&body) {
        Value::String(message) => message.clone(),
        other => other.to_string(),
    }
}

/// Encodes text as one segment of a URL path.
fn percent_encode(text: &str) -> String {
    let mut path = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => path.push(byte.into()),
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}
