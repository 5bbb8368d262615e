//! Inference servers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::UnixSeconds;

/// Servers with the time of their state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerReport {
    /// Time of the state. `None`: unknown.
    pub at: Option<UnixSeconds>,
    /// Servers that are not usable first, then by model and URL.
    pub servers: Vec<ServerRow>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerRow {
    pub url: String,
    /// Name of the model for clients.
    pub model: String,
    pub trained: bool,
    /// Kind of the server: `vllm`, `sglang`, …
    pub engine: String,
    /// The server's name of its model.
    pub server_model: Option<String>,
    /// `starting`, `running`, `unhealthy`, `updating`, `draining`, `broken`.
    pub state: String,
    pub usable: bool,
    /// Reason of its state.
    pub message: Option<String>,
    /// Model version. `None`: unknown, as during an update.
    pub version: Option<u64>,
    pub in_flight: u64,
    /// Calls that wait for a server of its model.
    pub waiting: u64,
    pub requests: u64,
    /// Generated tokens of the calls of runs.
    pub tokens: u64,
    /// Generated tokens per second, mean of the last seconds. `None`: unknown.
    pub tokens_per_second: Option<f64>,
    pub weight_updates: u64,
    /// Number of errors by kind.
    pub errors: BTreeMap<String, u64>,
    pub last_error: Option<ServerErrorRow>,
    /// Time of its last response.
    pub last_seen: Option<UnixSeconds>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerErrorRow {
    pub at: UnixSeconds,
    pub kind: String,
    pub message: String,
}

/// Servers in the overview.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerSummary {
    pub total: u64,
    pub usable: u64,
    /// One message for each model without a usable server.
    pub problems: Vec<String>,
}

impl ServerReport {
    /// Returns the counts, and the problems of models whose servers are all unusable. A server that
    /// was not checked yet is no problem.
    pub fn summary(&self) -> ServerSummary {
        let mut models: BTreeMap<&str, Vec<&ServerRow>> = BTreeMap::new();
        for server in &self.servers {
            models.entry(&server.model).or_default().push(server);
        }
        let is_problem = |servers: &[&ServerRow]| {
            let is_unchecked = |it: &ServerRow| it.state == "starting" && it.message.is_none();
            !servers.iter().any(|it| it.usable || is_unchecked(it))
        };
        let problem = |(model, servers): (&str, Vec<&ServerRow>)| {
            let states: Vec<String> = servers.iter().take(3).map(|it| it.describe()).collect();
            let more = servers.len().saturating_sub(states.len());
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            format!("no server of model {model} is usable: {}{more}", states.join("; "))
        };
        ServerSummary {
            total: self.servers.len() as u64,
            usable: self.servers.iter().filter(|it| it.usable).count() as u64,
            problems: models.into_iter().filter(|(_, it)| is_problem(it)).map(problem).collect(),
        }
    }
}

impl ServerRow {
    fn describe(&self) -> String {
        let reason = self.message.as_ref().map(|it| format!(" ({it})")).unwrap_or_default();
        format!("{} is {}{reason}", self.url, self.state)
    }
}
