//! The job's dashboard, as `rollway top` asks it.

use std::path::Path;
use std::time::Duration;

use rollway::Client;
use rollway::dashboard::Card;
use rollway::view::{Done, Job, Overview, Runner};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Everything that is shown, as of one moment.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// The job as a whole.
    pub job: Job,
    /// Its numbers.
    pub overview: Overview,
    /// Its runners.
    pub runners: Vec<Runner>,
}

/// Asks the dashboard of one job.
#[derive(Clone, Debug)]
pub struct Asker {
    client: Client,
    card: Card,
}

impl Asker {
    /// Finds the dashboard of a job by its folder.
    ///
    /// # Errors
    /// In words, if there is none to be found.
    pub fn find(job: &Path) -> Result<Self, String> {
        let shown = job.display();
        if !job.is_dir() {
            return Err(format!("{shown} is no folder: name the folder of a job"));
        }
        let card = Card::read(job).map_err(|error| format!("{shown} cannot be read: {error}"))?;
        let card = card.ok_or_else(|| {
            format!(
                "{shown} has no dashboard.json: the job is over, has not begun, or runs with \
                 `dashboard.enable=false`; a job that is over is looked at with `rollway view \
                 {shown}`"
            )
        })?;
        Ok(Self { client: Client::default(), card })
    }

    /// Asks for everything.
    ///
    /// # Errors
    /// In words, if not all of it is answered.
    pub async fn news(&self) -> Result<News, String> {
        let (job, overview, runners) =
            tokio::try_join!(self.get("job"), self.get("overview"), self.get("runners"))?;
        Ok(News { job, overview, runners })
    }

    /// Cancels a run.
    ///
    /// # Errors
    /// In words, if that is not answered.
    pub async fn cancel(&self, batch: &str, task: u32, run: u32) -> Result<Done, String> {
        let path = format!("runs/{}/{task}/{run}/cancel", escaped(batch));
        self.ask(&path, true).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        self.ask(path, false).await
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str, act: bool) -> Result<T, String> {
        let Card { url, token, .. } = &self.card;
        let address = format!("{url}/api/{path}");
        let asked = async {
            match act {
                true => self.client.act(&address, token, "{}".into()).await,
                false => self.client.call(&address, token, None).await,
            }
        };
        let late = |_| format!("{url} does not answer: the job may be over");
        let answer = timeout(PATIENCE, asked).await.map_err(late)??;
        if answer.status != 200 {
            let words = String::from_utf8_lossy(&answer.body);
            return Err(format!("{url} answers {path} with {}: {words}", answer.status));
        }
        let wrong = |error| format!("{url} answers {path} with something else: {error}");
        serde_json::from_slice(&answer.body).map_err(wrong)
    }
}

/// Writes a text so that it is one part of a path.
fn escaped(text: &str) -> String {
    let mut path = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => path.push(byte.into()),
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}
