//! What lots are called.
//!
//! The key of a batch alone would not do: a job that begins anew, without its ledger, counts its
//! batches from the beginning, and its experiences would be taken for those that the buffer has. So
//! the content is part of the key. The same parcel has the same; and where a batch comes again with
//! more in it, the buffer knows each experience by its own name.

use std::fmt::Write;

use bytes::Bytes;
use rollway_core::{BatchId, BatchKey};
use sha2::{Digest, Sha256};

/// Returns the key of the results of a batch.
pub(super) fn of_batch(job: &str, batch: &BatchId, key: BatchKey, payloads: &[Bytes]) -> String {
    format!("{job}/{batch}/{}/{}", key.0, digest(payloads))
}

/// Returns the key of experiences that belong to no batch.
pub(super) fn of_payloads(job: &str, payloads: &[Bytes]) -> String {
    format!("{job}//{}", digest(payloads))
}

/// Returns the key of a step of mode `serve`, whose own key is made once and kept with what is in
/// the step.
pub(super) fn of_step(job: &str, key: &str) -> String {
    format!("{job}/serve/{key}")
}

/// Returns 128 bits of a hash over all payloads, told apart by their lengths.
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
