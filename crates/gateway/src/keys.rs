//! Authentication: run keys, which are valid while their attempt is open, the agent key and the
//! admin key.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use hmac::{Hmac, KeyInit, Mac};
use rollway_base::Secret;
use rollway_model_api::client_api::CLIENT_APIS;
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// A run. Attempt numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunRef {
    pub attempt: u64,
    pub run: u32,
}

/// The authenticated caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    Admin,
    /// A client of serve mode, with the agent key or without authentication.
    Agent,
    Run(RunRef),
}

impl Caller {
    pub(crate) const fn run(self) -> Option<RunRef> {
        match self {
            Self::Admin | Self::Agent => None,
            Self::Run(name) => Some(name),
        }
    }
}

const PREFIX: &str = "rw-";

/// Prefix of paths that contain a key.
pub(crate) const KEY_PREFIX: &str = "/r";

/// Length of the code in a key: 2^128 guesses.
const CODE_BYTES: usize = 16;

/// Creates and verifies keys. A key contains its run and a code that only this gateway can compute.
/// The check that the run is open is elsewhere.
pub(crate) struct KeyRing {
    admin: Secret,
    agent: Option<Secret>,
    /// HMAC with a secret of this gateway, so that no key outlives it.
    code: Hmac<Sha256>,
    next_id: AtomicU64,
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(..)")
    }
}

impl KeyRing {
    pub(crate) fn new(admin: Secret, agent: Option<Secret>) -> io::Result<Self> {
        let secret = Secret::random()?;
        let code = Hmac::new_from_slice(secret.reveal().as_bytes())
            .map_err(|_| io::Error::other("no key can be made of the secret"))?;
        Ok(Self { admin, agent, code, next_id: AtomicU64::new(0) })
    }

    pub(crate) fn of(&self, name: RunRef) -> String {
        let RunRef { attempt, run } = name;
        let mut key = format!("{PREFIX}{attempt}-{run}");
        let code = self.code(&key);
        key.push('-');
        push_hex(&code, &mut key);
        key
    }

    /// Returns a new id of 128 bits that only this gateway can compute: the id of one client
    /// does not reveal those of others.
    pub(crate) fn new_id(&self, prefix: &str) -> String {
        // No key has this form, so that no id contains the code of a key.
        let code = self.code(&format!("id {}", self.next_id.fetch_add(1, Ordering::Relaxed)));
        let mut id = String::with_capacity(prefix.len() + 1 + 2 * CODE_BYTES);
        id.push_str(prefix);
        id.push('-');
        push_hex(&code, &mut id);
        id
    }

    pub(crate) fn authenticate(&self, key: &str) -> Option<Caller> {
        if self.admin.reveal().as_bytes().ct_eq(key.as_bytes()).into() {
            return Some(Caller::Admin);
        }
        let agent = self.agent.as_ref();
        if agent.is_some_and(|agent| agent.reveal().as_bytes().ct_eq(key.as_bytes()).into()) {
            return Some(Caller::Agent);
        }
        let mut parts = key.strip_prefix(PREFIX)?.splitn(3, '-');
        let attempt = parts.next()?.parse().ok()?;
        let run = parts.next()?.parse().ok()?;
        // Computed anew instead of parsed, so that a run has exactly one key.
        let name = RunRef { attempt, run };
        let valid: bool = self.of(name).as_bytes().ct_eq(key.as_bytes()).into();
        valid.then_some(Caller::Run(name))
    }

    fn code(&self, text: &str) -> [u8; CODE_BYTES] {
        let mut code = self.code.clone();
        code.update(text.as_bytes());
        let whole = code.finalize().into_bytes();
        std::array::from_fn(|index| whole[index])
    }
}

fn push_hex(bytes: &[u8], out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            out.push(char::from(DIGITS[usize::from(digit)]));
        }
    }
}

/// Returns the keys in the headers of a request. Clients may send a placeholder in one header and
/// the key in another.
pub(crate) fn header_keys(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    let names = CLIENT_APIS.iter().flat_map(|api| api.key_headers());
    let named = names.filter_map(|name| headers.get(*name)?.to_str().ok());
    bearer.into_iter().chain(named)
}

/// Splits a path such as `/r/KEY/v1/messages` into the key and the path of the endpoint. Every
/// client can carry a key in its base URL.
pub(crate) fn split_path(path: &str) -> (Option<&str>, &str) {
    let rest = path.strip_prefix(KEY_PREFIX).and_then(|rest| rest.strip_prefix('/'));
    match rest.and_then(|rest| rest.find('/').map(|end| rest.split_at(end))) {
        Some((key, endpoint)) => (Some(key), endpoint),
        None => (None, path),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys() -> KeyRing {
        let [admin, agent] = ["admin", "agent"].map(|key| Secret::new(key).unwrap());
        KeyRing::new(admin, Some(agent)).unwrap()
    }

    #[test]
    fn a_key_is_valid_for_its_run_at_its_gateway() {
        let (ours, theirs) = (keys(), keys());
        let name = RunRef { attempt: 7, run: 3 };
        let key = ours.of(name);
        assert_eq!(ours.authenticate(&key), Some(Caller::Run(name)));
        assert_eq!(ours.authenticate("admin"), Some(Caller::Admin));
        assert_eq!(ours.authenticate("agent"), Some(Caller::Agent));
        assert_eq!(theirs.authenticate(&key), None);
        assert_eq!(ours.authenticate(&key.replace("rw-7-3", "rw-7-4")), None);
        assert_eq!(ours.authenticate(&key.replace("rw-7-3", "rw-07-3")), None);
    }

    #[test]
    fn ids_are_unique_and_of_one_gateway() {
        let (ours, theirs) = (keys(), keys());
        let ids: Vec<String> = (0..100).map(|_| ours.new_id("chatcmpl")).collect();
        let unique: std::collections::BTreeSet<&String> = ids.iter().collect();
        assert_eq!(unique.len(), 100);
        assert!(!ids.contains(&theirs.new_id("chatcmpl")));
        assert_eq!(ids[0].len(), "chatcmpl-".len() + 2 * CODE_BYTES);
    }

    proptest! {
        #[test]
        fn no_other_text_is_a_key(text in "(rw-[0-9]{1,20}-[0-9]{1,10}-[0-9a-f]{0,40})|.*") {
            prop_assume!(text != "admin" && text != "agent");
            prop_assert_eq!(keys().authenticate(&text), None);
        }
    }
}
