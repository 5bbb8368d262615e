//! Whose call it is: every run has a key of its own, and only while its attempt lasts.

use std::fmt::Write as _;
use std::io;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use hmac::{Hmac, KeyInit, Mac};
use rollway_base::Secret;
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// A run, as the gateway knows it: an attempt's number, which is never used twice, and the number
/// of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunRef {
    pub attempt: u64,
    pub run: u32,
}

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Whoever started the gateway, or was given its key.
    Admin,
    Run(RunRef),
}

impl Caller {
    /// Returns which run it is, if it is one.
    pub(crate) const fn run(self) -> Option<RunRef> {
        match self {
            Self::Admin => None,
            Self::Run(name) => Some(name),
        }
    }
}

/// What every key of a run begins with.
const PREFIX: &str = "rw-";

/// How many bytes of the code are in a key: nobody can try 2^128 of them.
const CODE_BYTES: usize = 16;

/// Makes and recognises keys. A key says which run it belongs to, and proves that this gateway made
/// it; that the run is still open is for others to say.
pub(crate) struct KeyRing {
    admin: Secret,
    /// Knows the secret. New for every gateway, so that no key outlives it.
    code: Hmac<Sha256>,
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(..)")
    }
}

impl KeyRing {
    /// Takes the key that opens everything, and makes up a secret for the others.
    pub(crate) fn new(admin: Secret) -> io::Result<Self> {
        let secret = Secret::random()?;
        let code = Hmac::new_from_slice(secret.reveal().as_bytes())
            .map_err(|_| io::Error::other("no key can be made of the secret"))?;
        Ok(Self { admin, code })
    }

    /// Returns the key of a run.
    pub(crate) fn of(&self, name: RunRef) -> String {
        let RunRef { attempt, run } = name;
        let mut key = format!("{PREFIX}{attempt}-{run}");
        let code = self.code(&key);
        key.push('-');
        for byte in code {
            // Writing to a string cannot fail.
            let _ = write!(key, "{byte:02x}");
        }
        key
    }

    /// Returns whose key it is, if it is one.
    pub(crate) fn authenticate(&self, key: &str) -> Option<Caller> {
        if self.admin.reveal().as_bytes().ct_eq(key.as_bytes()).into() {
            return Some(Caller::Admin);
        }
        let mut parts = key.strip_prefix(PREFIX)?.splitn(3, '-');
        let attempt = parts.next()?.parse().ok()?;
        let run = parts.next()?.parse().ok()?;
        // Made anew instead of taken apart, so that every run has one spelling of its key.
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

/// Returns the key that a request shows, as `Authorization: Bearer` or as `x-api-key`.
pub(crate) fn bearer_key(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys() -> KeyRing {
        KeyRing::new(Secret::new("admin").unwrap()).unwrap()
    }

    #[test]
    fn a_key_opens_its_own_run_at_its_own_gateway() {
        let (ours, theirs) = (keys(), keys());
        let name = RunRef { attempt: 7, run: 3 };
        let key = ours.of(name);
        assert_eq!(ours.authenticate(&key), Some(Caller::Run(name)));
        assert_eq!(ours.authenticate("admin"), Some(Caller::Admin));
        assert_eq!(theirs.authenticate(&key), None);
        assert_eq!(ours.authenticate(&key.replace("rw-7-3", "rw-7-4")), None);
        assert_eq!(ours.authenticate(&key.replace("rw-7-3", "rw-07-3")), None);
    }

    proptest! {
        #[test]
        fn no_other_text_opens_anything(text in "(rw-[0-9]{1,20}-[0-9]{1,10}-[0-9a-f]{0,40})|.*") {
            prop_assume!(text != "admin");
            prop_assert_eq!(keys().authenticate(&text), None);
        }
    }
}
