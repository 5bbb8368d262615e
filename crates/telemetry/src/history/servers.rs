//! Inference servers: their last known state, with tokens per second from the calls of runs.

use std::collections::VecDeque;
use std::sync::Arc;

use rollway_gateway::models::{ModelView, ServerView};
use rustc_hash::FxHashMap;

use super::record::JobNote;
use super::state::{State, seconds};
use crate::view::{ServerErrorRow, ServerReport, ServerRow};

/// Seconds over which a token rate is the mean.
const RATE_SECONDS: f64 = 10.0;

/// Minimum seconds between two records.
const RECORD_SECONDS: f64 = 10.0;

/// Maximum number of servers with a token count.
const MAX_SERVERS: usize = 4_096;

type TokenCounts = FxHashMap<Arc<str>, u64>;

#[derive(Debug, Default)]
pub(super) struct ServerStates {
    pub(super) report: ServerReport,
    /// Generated tokens by URL.
    tokens: TokenCounts,
    /// Counts of the last seconds, oldest first.
    samples: VecDeque<(f64, TokenCounts)>,
    /// Last record, without the values that change all the time.
    recorded: Option<(f64, Vec<ServerKey>)>,
}

/// URL, state, version and error count of a server.
type ServerKey = (String, String, Option<u64>, u64);

impl ServerStates {
    pub(super) fn count(&mut self, server: &Arc<str>, tokens: u64) {
        if let Some(known) = self.tokens.get_mut(server) {
            *known += tokens;
        } else if self.tokens.len() < MAX_SERVERS {
            self.tokens.insert(Arc::clone(server), tokens);
        }
    }

    /// Sets the states. An empty list keeps the last known one.
    fn set(&mut self, at: f64, models: Vec<ModelView>) {
        if models.is_empty() {
            return;
        }
        self.samples.push_back((at, self.tokens.clone()));
        while self.samples.get(1).is_some_and(|(next, _)| *next <= at - RATE_SECONDS) {
            self.samples.pop_front();
        }
        let mut servers = Vec::new();
        for model in models {
            for server in &model.servers {
                servers.push(self.row(at, &model, server));
            }
        }
        servers.sort_by(|a, b| (a.usable, &a.model, &a.url).cmp(&(b.usable, &b.model, &b.url)));
        self.report = ServerReport { at: Some(at), servers };
    }

    fn row(&self, at: f64, model: &ModelView, server: &ServerView) -> ServerRow {
        let url = server.url.as_str();
        let tokens = self.tokens.get(url).copied().unwrap_or(0);
        let rate = self.samples.front().filter(|(since, _)| *since < at).map(|(since, counts)| {
            let before = counts.get(url).copied().unwrap_or(0);
            tokens.saturating_sub(before) as f64 / (at - since)
        });
        let error = server.last_error.as_ref().map(|error| ServerErrorRow {
            at: seconds(error.at),
            kind: error.kind.clone(),
            message: error.message.clone(),
        });
        ServerRow {
            url: server.url.clone(),
            model: model.name.clone(),
            trained: model.trained,
            engine: server.engine.name().to_owned(),
            server_model: server.server_model.clone(),
            state: server.state.name().to_owned(),
            usable: server.state.is_usable(),
            message: server.state.reason().map(str::to_owned),
            version: server.version,
            in_flight: server.in_flight.into(),
            waiting: model.waiting as u64,
            requests: server.counts.requests,
            tokens,
            tokens_per_second: rate,
            weight_updates: server.counts.updates,
            errors: server.errors.clone(),
            last_error: error,
            last_seen: server.last_seen.map(|since| at - since.as_secs_f64()),
        }
    }

    /// Returns the record of the current state, if it differs from the last one.
    fn record(&mut self, at: f64, is_last: bool) -> Option<JobNote> {
        let key = |it: &ServerRow| {
            (it.url.clone(), it.state.clone(), it.version, it.errors.values().sum())
        };
        let keys: Vec<ServerKey> = self.report.servers.iter().map(key).collect();
        let is_due = match &self.recorded {
            None => true,
            Some((last, known)) => is_last || *known != keys && at >= last + RECORD_SECONDS,
        };
        if keys.is_empty() || !is_due {
            return None;
        }
        self.recorded = Some((at, keys));
        let mut report = self.report.clone();
        report.servers.iter_mut().for_each(|server| server.tokens_per_second = None);
        Some(JobNote::Servers { report })
    }
}

impl State {
    /// Sets the states of all servers, and records changes.
    pub(super) fn set_servers(&mut self, at: f64, models: Vec<ModelView>) {
        self.servers.set(at, models);
        self.record_servers(at, false);
    }

    /// Records the states of servers that this process has seen, at its end in any case.
    pub(super) fn record_servers(&mut self, at: f64, is_last: bool) {
        let is_own = !self.servers.samples.is_empty();
        if let Some(note) = is_own.then(|| self.servers.record(at, is_last)).flatten() {
            self.out.note(at, note);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use rollway_base::ServerKind;
    use rollway_gateway::models::{
        ServerCapabilities, ServerCounts, ServerError, ServerId, ServerState,
    };

    use super::*;

    fn server(id: u64, state: ServerState) -> ServerView {
        ServerView {
            id: ServerId(id),
            engine: ServerKind::Vllm,
            url: format!("http://{id}"),
            server_model: None,
            state,
            in_flight: 2,
            version: Some(3),
            loaded: Some(3),
            load: None,
            limit: 8,
            capabilities: ServerCapabilities::of_kind(ServerKind::Vllm),
            failures: 0,
            last_seen: Some(Duration::from_secs(4)),
            counts: ServerCounts::default(),
            errors: [("unreachable".to_owned(), 2)].into(),
            last_error: Some(ServerError {
                at: UNIX_EPOCH + Duration::from_secs(90),
                kind: "unreachable".to_owned(),
                message: "refused".to_owned(),
            }),
        }
    }

    fn models(states: [ServerState; 2]) -> Vec<ModelView> {
        let [a, b] = states;
        let servers = vec![server(1, a), server(2, b)];
        vec![ModelView { name: "policy".to_owned(), trained: true, waiting: 5, servers }]
    }

    fn unhealthy() -> ServerState {
        ServerState::Unhealthy("refused".to_owned())
    }

    #[test]
    fn rows_have_state_rate_and_errors_with_unusable_servers_first() {
        let mut states = ServerStates::default();
        let url: Arc<str> = "http://1".into();
        for second in 0..=20 {
            states.count(&url, 50);
            states.set(100.0 + f64::from(second), models([ServerState::Running, unhealthy()]));
        }
        let [bad, good] = &states.report.servers[..] else { panic!("two servers") };
        assert_eq!((bad.url.as_str(), bad.usable), ("http://2", false));
        assert_eq!((bad.message.as_deref(), bad.waiting), (Some("refused"), 5));
        assert_eq!(bad.last_error.as_ref().map(|error| error.at), Some(90.0));
        assert_eq!((good.tokens, good.tokens_per_second), (21 * 50, Some(50.0)));
        assert_eq!((good.last_seen, good.errors["unreachable"]), (Some(116.0), 2));
        assert!(states.samples.len() <= 12, "{}", states.samples.len());
        // After the end of the gateway the last state stays.
        let before = states.report.clone();
        states.set(200.0, Vec::new());
        assert_eq!(states.report, before);
    }

    #[test]
    fn a_model_without_usable_server_is_a_problem() {
        let mut states = ServerStates::default();
        states.set(1.0, models([ServerState::Running, unhealthy()]));
        let summary = states.report.summary();
        assert_eq!((summary.total, summary.usable, summary.problems.len()), (2, 1, 0));
        states.set(2.0, models([unhealthy(), unhealthy()]));
        let problem = "no server of model policy is usable: http://1 is unhealthy (refused); \
                       http://2 is unhealthy (refused)";
        assert_eq!(states.report.summary().problems, [problem]);
        // Before the first check nothing is known.
        states.set(3.0, models([ServerState::Starting(None), unhealthy()]));
        assert!(states.report.summary().problems.is_empty());
    }

    #[test]
    fn changes_are_recorded_at_a_limited_rate_and_the_end_always() {
        let mut states = ServerStates::default();
        let mut record = |at: f64, models, is_last| {
            states.set(at, models);
            states.record(at, is_last).is_some()
        };
        let good = || models([ServerState::Running, ServerState::Running]);
        let bad = || models([ServerState::Running, unhealthy()]);
        assert!(record(1.0, good(), false));
        assert!(!record(100.0, good(), false), "nothing changed");
        assert!(record(101.0, bad(), false));
        assert!(!record(105.0, good(), false), "too early");
        assert!(record(111.0, good(), false));
        assert!(record(112.0, good(), true));
        assert!(ServerStates::default().record(1.0, true).is_none(), "no server was seen");
    }
}
