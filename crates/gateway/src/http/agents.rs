//! Callers of serve mode, which belong to no run: what their calls are routed by, and which of them
//! were asked before.
//!
//! There is a recorder for all calls with the same words, or the same idempotency key, of the same
//! session. It knows a retry as the recorder of a run does; what is kept for good is in the
//! history.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::http::HeaderMap;
use parking_lot::{Mutex, MutexGuard};
use rollway_model_api::ModelCall;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::run_sessions::RunSession;
use crate::recording::{RecorderLimits, RetryHeaders};

/// Headers that name a session, the first that is there counts.
const HEADERS: [&str; 2] = ["x-rollway-session", "x-session-id"];

/// How many messages at the beginning of a conversation tell it from others, where it has no name.
const BEGINNING: usize = 2;

/// How many different calls are remembered.
const MAX_CALLS: usize = 16_384;

/// How many bytes of calls and answers are remembered.
const MAX_BYTES: u64 = 1 << 30;

/// How much is remembered of calls with the same words.
const ALIKE: RecorderLimits = RecorderLimits { max_turns: 256, max_bytes: 64 << 20, max_kept: 64 };

type Name = [u8; 32];

/// What is remembered of callers that belong to no run, the last used last.
#[derive(Debug)]
pub(super) struct AgentSessions {
    table: Mutex<Table>,
    stopping: CancellationToken,
}

#[derive(Debug, Default)]
struct Table {
    guests: HashMap<Name, RememberedCalls>,
    /// By when they were last used.
    order: BTreeMap<u64, Name>,
    next: u64,
    bytes: u64,
}

#[derive(Debug)]
struct RememberedCalls {
    session: Arc<RunSession>,
    used: u64,
    bytes: u64,
}

/// A call of somebody who belongs to no run.
#[derive(Clone, Debug)]
pub(super) struct AgentCall {
    pub(super) routing: u64,
    pub(super) session: Arc<RunSession>,
    name: Name,
}

impl AgentSessions {
    pub(super) fn new(stopping: CancellationToken) -> Self {
        Self { table: Mutex::default(), stopping }
    }

    /// Returns what belongs to a call.
    pub(super) fn guest(
        &self,
        headers: &HeaderMap,
        call: &ModelCall,
        attempted: &RetryHeaders,
    ) -> AgentCall {
        let session = named(headers, call);
        let mut hash = Sha256::new();
        hash.update(session.unwrap_or_default());
        match &attempted.idempotency_key {
            Some(key) => hash.update(format!("\0key\0{key}")),
            None => {
                hash.update("\0words\0");
                hash.update(call.fingerprint());
            }
        }
        let name: Name = hash.finalize().into();
        let mut table = self.table();
        let fresh = || Arc::new(RunSession::of_guest(ALIKE, self.stopping.child_token()));
        AgentCall { routing: routing(session, call), session: table.take(name, fresh), name }
    }

    /// A call was recorded.
    pub(super) fn recorded(&self, guest: &AgentCall) {
        let bytes = guest.session.recorder().bytes();
        self.table().weigh(guest, bytes);
    }

    /// Nothing more can be remembered of calls with these words: a new recorder takes over.
    pub(super) fn forget(&self, guest: &AgentCall) {
        let mut table = self.table();
        let is_same = |known: &RememberedCalls| Arc::ptr_eq(&known.session, &guest.session);
        if table.guests.get(&guest.name).is_some_and(is_same) {
            table.remove(&guest.name);
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Table {
    fn take(&mut self, name: Name, fresh: impl FnOnce() -> Arc<RunSession>) -> Arc<RunSession> {
        self.next += 1;
        let used = self.next;
        let known = self.guests.entry(name).or_insert_with(|| {
            let session = fresh();
            RememberedCalls { session, used, bytes: 0 }
        });
        self.order.remove(&known.used);
        known.used = used;
        let session = Arc::clone(&known.session);
        self.order.insert(used, name);
        self.bound();
        session
    }

    fn weigh(&mut self, guest: &AgentCall, bytes: u64) {
        if let Some(known) = self.guests.get_mut(&guest.name)
            && Arc::ptr_eq(&known.session, &guest.session)
        {
            self.bytes = self.bytes - known.bytes + bytes;
            known.bytes = bytes;
        }
        self.bound();
    }

    /// Forgets those that were not used for longest. What they have under way goes on.
    fn bound(&mut self) {
        while (self.guests.len() > MAX_CALLS || self.bytes > MAX_BYTES)
            && let Some((_, name)) = self.order.pop_first()
        {
            self.remove(&name);
        }
    }

    fn remove(&mut self, name: &Name) {
        if let Some(known) = self.guests.remove(name) {
            self.order.remove(&known.used);
            self.bytes -= known.bytes;
        }
    }
}

/// Returns the name that the client gives its session, in a header or as the `user` of the call.
fn named<'a>(headers: &'a HeaderMap, call: &'a ModelCall) -> Option<&'a str> {
    let header = HEADERS.iter().find_map(|name| headers.get(*name)?.to_str().ok());
    let name = header.or_else(|| call.body.get("user")?.as_str());
    name.filter(|name| !name.is_empty())
}

/// Returns what a call is routed by: its session, or else the beginning of its conversation, whose
/// turns a server has in its prefix cache.
fn routing(session: Option<&str>, call: &ModelCall) -> u64 {
    let mut hash = Sha256::new();
    match session {
        Some(name) => hash.update(name),
        None => {
            let messages = call.body.get("messages").and_then(serde_json::Value::as_array);
            for message in messages.into_iter().flatten().take(BEGINNING) {
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
    fn the_same_words_in_the_same_session_meet_again() {
        let guests = AgentSessions::new(CancellationToken::new());
        let (none, again) = (HeaderMap::new(), RetryHeaders::default());
        let hello = json!({ "messages": [{ "role": "user", "content": "hello" }] });
        let longer = json!({ "messages": [
            { "role": "user", "content": "hello" },
            { "role": "assistant", "content": "hi" },
            { "role": "user", "content": "bye" },
        ] });
        let first = guests.guest(&none, &call(&hello), &again);
        let second = guests.guest(&none, &call(&hello), &again);
        assert!(Arc::ptr_eq(&first.session, &second.session));
        assert_eq!(first.routing, second.routing);

        let mut named = HeaderMap::new();
        named.insert("x-rollway-session", "a".parse().unwrap());
        let other = guests.guest(&named, &call(&hello), &again);
        assert!(!Arc::ptr_eq(&first.session, &other.session));
        let later = guests.guest(&named, &call(&longer), &again);
        assert_eq!(other.routing, later.routing);

        guests.forget(&first);
        let third = guests.guest(&none, &call(&hello), &again);
        assert!(!Arc::ptr_eq(&first.session, &third.session));
        guests.forget(&first);
        let fourth = guests.guest(&none, &call(&hello), &again);
        assert!(Arc::ptr_eq(&third.session, &fourth.session));
    }

    #[test]
    fn what_was_used_last_is_remembered() {
        let mut table = Table::default();
        let fresh = || Arc::new(RunSession::of_guest(ALIKE, CancellationToken::new()));
        let name = |number: usize| {
            let mut name = [0; 32];
            name[..8].copy_from_slice(&(number as u64).to_le_bytes());
            name
        };
        let first = table.take(name(0), fresh);
        for number in 1..MAX_CALLS {
            table.take(name(number), fresh);
        }
        assert!(Arc::ptr_eq(&first, &table.take(name(0), fresh)));
        table.take(name(MAX_CALLS), fresh);
        assert!(table.guests.contains_key(&name(0)) && !table.guests.contains_key(&name(1)));
        assert_eq!((table.guests.len(), table.order.len()), (MAX_CALLS, MAX_CALLS));

        let guest = AgentCall { routing: 0, session: first, name: name(0) };
        table.weigh(&guest, MAX_BYTES + 1);
        // It goes, and all that were used before it.
        assert_eq!((table.guests.len(), table.order.len(), table.bytes), (1, 1, 0));
        assert!(table.guests.contains_key(&name(MAX_CALLS)));
    }
}
