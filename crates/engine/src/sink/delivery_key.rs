//! Idempotency keys of deliveries.
//!
//! The content is part of the key: a job restarted without its ledger counts its batches from the
//! beginning, and its experiences must not be taken for those of an earlier process.

use std::fmt::Write;

use bytes::Bytes;
use rollway_core::{BatchId, BatchKey};
use sha2::{Digest, Sha256};

pub(super) fn of_batch(job: &str, batch: &BatchId, key: BatchKey, payloads: &[Bytes]) -> String {
    format!("{job}/{batch}/{}/{}", key.0, digest(payloads))
}

pub(super) fn of_payloads(job: &str, payloads: &[Bytes]) -> String {
    format!("{job}//{}", digest(payloads))
}

/// Returns the key of a step of mode `serve`.
pub(super) fn of_step(job: &str, key: &str) -> String {
    format!("{job}/serve/{key}")
}

/// Returns 128 bits of a hash over all payloads and their lengths.
fn digest(payloads: &[Bytes]) -> String {
    let mut hash = Sha256::new();
    for payload in payloads {
        hash.update((payload.len() as u64).to_le_bytes());
        hash.update(payload);
    }
    hash.finalize().iter().take(16).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_one_content() {
        let payloads = |all: &[&'static str]| -> Vec<Bytes> {
            all.iter().map(|one| Bytes::from_static(one.as_bytes())).collect()
        };
        let key = |all: &[&'static str]| of_payloads("job", &payloads(all));
        assert_eq!(key(&["ab", "c"]), key(&["ab", "c"]));
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_ne!(key(&["ab", "c"]), key(&["c", "ab"]));
        let batch = of_batch("p/job", &7.into(), BatchKey(3), &payloads(&["x"]));
        assert!(batch.starts_with("p/job/7/3/"), "{batch}");
    }
}
