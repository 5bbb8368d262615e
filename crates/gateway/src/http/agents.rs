//! Calls of serve mode, which belong to no run: routing and deduplication of retries.
//!
//! All calls of a session with the same body or idempotency key share a recorder, which
//! deduplicates retries as the recorder of a run does. The turns themselves are in the turn store.

use std::sync::Arc;

use axum::http::HeaderMap;
use parking_lot::Mutex;
use rollway_model_api::ModelCall;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::recorded_bytes::RecordedBytes;
use super::run_sessions::RunSession;
use crate::lru::LruMap;
use rollway_recording::{RecorderLimits, RetryHeaders};

/// Headers with the name of a session; the first one that is present counts.
const SESSION_HEADERS: [&str; 2] = ["x-rollway-session", "x-session-id"];

/// Number of first messages that identify a conversation without a session name.
const ROUTING_MESSAGES: usize = 2;

const MAX_CALLS: usize = 16_384;

const MAX_BYTES: u64 = 1 << 30;

/// Limits of the recorder of calls with the same body.
const RECORDER_LIMITS: RecorderLimits = RecorderLimits {
    max_turns: 256,
    max_bytes: 64 << 20,
    max_kept: 64,
    max_experience_bytes: 64 << 20,
};

type Name = [u8; 32];

/// Recorders of recent calls.
#[derive(Debug)]
pub(super) struct AgentSessions {
    table: Mutex<Table>,
    recorded: Arc<RecordedBytes>,
    stopping: CancellationToken,
}

#[derive(Debug, Default)]
struct Table {
    calls: LruMap<Name, RememberedCalls>,
    bytes: u64,
}

#[derive(Debug)]
struct RememberedCalls {
    session: Arc<RunSession>,
    bytes: u64,
}

#[derive(Clone, Debug)]
pub(super) struct AgentCall {
    pub(super) routing: u64,
    pub(super) session: Arc<RunSession>,
    name: Name,
}

impl AgentSessions {
    pub(super) fn new(recorded: Arc<RecordedBytes>, stopping: CancellationToken) -> Self {
        Self { table: Mutex::default(), recorded, stopping }
    }

    pub(super) fn session(
        &self,
        headers: &HeaderMap,
        call: &ModelCall,
        retry: &RetryHeaders,
    ) -> AgentCall {
        let session = session_name(headers, call);
        let mut hash = Sha256::new();
        hash.update(session.unwrap_or_default());
        match &retry.idempotency_key {
            Some(key) => hash.update(format!("\0key\0{key}")),
            None => {
                hash.update("\0words\0");
                hash.update(call.fingerprint());
            }
        }
        let name: Name = hash.finalize().into();
        let new = || {
            let recorder = self.recorded.recorder(RECORDER_LIMITS);
            Arc::new(RunSession::of_agent(recorder, self.stopping.child_token()))
        };
        AgentCall {
            routing: routing(session, call),
            session: self.table.lock().take(name, new),
            name,
        }
    }

    /// Updates the size of a call's recorder.
    pub(super) fn recorded(&self, call: &AgentCall) {
        let bytes = call.session.recorder().bytes();
        self.table.lock().set_bytes(call, bytes);
    }

    /// Drops the recorder of a call that can record no more, so that the next call gets a new one.
    pub(super) fn remove(&self, call: &AgentCall) {
        let mut table = self.table.lock();
        let is_same = |known: &RememberedCalls| Arc::ptr_eq(&known.session, &call.session);
        if table.calls.peek(&call.name).is_some_and(is_same)
            && let Some(removed) = table.calls.remove(&call.name)
        {
            table.bytes -= removed.bytes;
        }
    }
}

impl Table {
    fn take(&mut self, name: Name, new: impl FnOnce() -> Arc<RunSession>) -> Arc<RunSession> {
        let new = || RememberedCalls { session: new(), bytes: 0 };
        let session = Arc::clone(&self.calls.get_or_insert_with(name, new).session);
        self.enforce_limits();
        session
    }

    fn set_bytes(&mut self, call: &AgentCall, bytes: u64) {
        if let Some(known) = self.calls.peek_mut(&call.name)
            && Arc::ptr_eq(&known.session, &call.session)
        {
            self.bytes = self.bytes - known.bytes + bytes;
            known.bytes = bytes;
        }
        self.enforce_limits();
    }

    /// Drops the least recently used recorders. Their calls in flight go on.
    fn enforce_limits(&mut self) {
        while (self.calls.len() > MAX_CALLS || self.bytes > MAX_BYTES)
            && let Some(removed) = self.calls.pop_oldest()
        {
            self.bytes -= removed.bytes;
        }
    }
}

/// Returns the session name of the client: a header, or the `user` of the call.
fn session_name<'a>(headers: &'a HeaderMap, call: &'a ModelCall) -> Option<&'a str> {
    let header = SESSION_HEADERS.iter().find_map(|name| headers.get(*name)?.to_str().ok());
    let name = header.or_else(|| call.body.get("user")?.as_str());
    name.filter(|name| !name.is_empty())
}

/// Returns the routing key of a call: its session, else the beginning of its conversation, which a
/// server has in its prefix cache.
fn routing(session: Option<&str>, call: &ModelCall) -> u64 {
    let mut hash = Sha256::new();
    match session {
        Some(name) => hash.update(name),
        None => {
            let messages = call.body.get("messages").and_then(serde_json::Value::as_array);
            for message in messages.into_iter().flatten().take(ROUTING_MESSAGES) {
                hash.update(message.to_string());
            }
            if let Some(prompt) = call.body.get("prompt") {
                hash.update(prompt.to_string());
            }
        }
    }
    let digest: [u8; 32] = hash.finalize().into();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use rollway_model_api::{CallKind, client_api};

    fn call(body: &serde_json::Value) -> ModelCall {
        let api = client_api::at_path(CallKind::Chat.path()).unwrap();
        api.parse(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn equal_calls_of_a_session_share_a_recorder() {
        let agents = AgentSessions::new(RecordedBytes::new(u64::MAX), CancellationToken::new());
        let (none, again) = (HeaderMap::new(), RetryHeaders::default());
        let hello = json!({ "messages": [{ "role": "user", "content": "hello" }] });
        let longer = json!({ "messages": [
            { "role": "user", "content": "hello" },
            { "role": "assistant", "content": "hi" },
            { "role": "user", "content": "bye" },
        ] });
        let first = agents.session(&none, &call(&hello), &again);
        let second = agents.session(&none, &call(&hello), &again);
        assert!(Arc::ptr_eq(&first.session, &second.session));
        assert_eq!(first.routing, second.routing);

        let mut with_session = HeaderMap::new();
        with_session.insert("x-rollway-session", "a".parse().unwrap());
        let other = agents.session(&with_session, &call(&hello), &again);
        assert!(!Arc::ptr_eq(&first.session, &other.session));
        let later = agents.session(&with_session, &call(&longer), &again);
        assert_eq!(other.routing, later.routing);

        agents.remove(&first);
        let third = agents.session(&none, &call(&hello), &again);
        assert!(!Arc::ptr_eq(&first.session, &third.session));
        agents.remove(&first);
        let fourth = agents.session(&none, &call(&hello), &again);
        assert!(Arc::ptr_eq(&third.session, &fourth.session));
    }

    #[test]
    fn the_least_recently_used_recorders_are_dropped() {
        let mut table = Table::default();
        let recorded = RecordedBytes::new(u64::MAX);
        let new = || {
            let recorder = recorded.recorder(RECORDER_LIMITS);
            Arc::new(RunSession::of_agent(recorder, CancellationToken::new()))
        };
        let name = |number: usize| {
            let mut name = [0; 32];
            name[..8].copy_from_slice(&(number as u64).to_le_bytes());
            name
        };
        let first = table.take(name(0), new);
        for number in 1..MAX_CALLS {
            table.take(name(number), new);
        }
        assert!(Arc::ptr_eq(&first, &table.take(name(0), new)));
        table.take(name(MAX_CALLS), new);
        assert!(table.calls.peek(&name(0)).is_some() && table.calls.peek(&name(1)).is_none());
        assert_eq!(table.calls.len(), MAX_CALLS);

        let agent_call = AgentCall { routing: 0, session: first, name: name(0) };
        table.set_bytes(&agent_call, MAX_BYTES + 1);
        assert_eq!((table.calls.len(), table.bytes), (1, 0));
        assert!(table.calls.peek(&name(MAX_CALLS)).is_some());
    }
}
