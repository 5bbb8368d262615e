//! Mutual proof that both ends of a connection have the same secret, which itself is never sent.
//!
//! ```text
//! client                                          server
//!   Hello(client nonce) ────────────────────────────►
//!   ◄──────────── Challenge(server nonce, server proof)
//!   Proof(client proof) ────────────────────────────►
//! ```
//!
//! A proof is HMAC-SHA-256 with the secret as its key over: the path of the call, a zero byte,
//! `server` or `client`, a zero byte, the client nonce, the server nonce. The server proves itself
//! first: a process that took over the address of an engine learns nothing, and the client acts on
//! none of its messages.

use std::io;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use rollway_base::{Secret, random_bytes};
use sha2::Sha256;

use crate::field_error::InvalidField;

/// Size of a nonce.
const NONCE_BYTES: usize = 32;

/// Returns a nonce for one connection.
pub(crate) fn nonce() -> io::Result<Bytes> {
    random_bytes::<NONCE_BYTES>().map(|bytes| Bytes::copy_from_slice(&bytes))
}

/// Checks the size of a received nonce. A fixed size keeps the message of a proof unambiguous.
pub(crate) fn check_nonce(field: &'static str, nonce: &[u8]) -> Result<(), InvalidField> {
    if nonce.len() == NONCE_BYTES {
        return Ok(());
    }
    let problem = format!("{} bytes, {NONCE_BYTES} are needed", nonce.len());
    Err(InvalidField::new(field, problem))
}

/// End of a connection that proves itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prover {
    Server,
    Client,
}

/// The values that the proofs of one connection depend on.
#[derive(Clone, Debug)]
pub(crate) struct ProofInputs {
    /// Path of the call, so that a proof of one protocol is none of another.
    pub(crate) path: &'static str,
    pub(crate) client_nonce: Bytes,
    pub(crate) server_nonce: Bytes,
}

impl ProofInputs {
    pub(crate) fn proof(&self, secret: &Secret, prover: Prover) -> Bytes {
        Bytes::copy_from_slice(&self.code(secret, prover).finalize().into_bytes())
    }

    /// Compares in constant time.
    pub(crate) fn is_proof(&self, secret: &Secret, prover: Prover, proof: &[u8]) -> bool {
        self.code(secret, prover).verify_slice(proof).is_ok()
    }

    fn code(&self, secret: &Secret, prover: Prover) -> Hmac<Sha256> {
        let code = Hmac::<Sha256>::new_from_slice(secret.reveal().as_bytes());
        let mut code = code.expect("HMAC takes keys of any length");
        let label: &[u8] = match prover {
            Prover::Server => b"server",
            Prover::Client => b"client",
        };
        for part in
            [self.path.as_bytes(), &[0], label, &[0], &self.client_nonce, &self.server_nonce]
        {
            code.update(part);
        }
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(path: &'static str) -> ProofInputs {
        ProofInputs {
            path,
            client_nonce: Bytes::from_static(&[1; NONCE_BYTES]),
            server_nonce: Bytes::from_static(&[2; NONCE_BYTES]),
        }
    }

    #[test]
    fn a_proof_depends_on_secret_end_call_and_nonces() {
        let (secret, other) = (Secret::new("a").unwrap(), Secret::new("b").unwrap());
        let proof = inputs("/call").proof(&secret, Prover::Server);
        assert!(inputs("/call").is_proof(&secret, Prover::Server, &proof));
        assert!(!inputs("/call").is_proof(&other, Prover::Server, &proof));
        assert!(!inputs("/call").is_proof(&secret, Prover::Client, &proof));
        assert!(!inputs("/other").is_proof(&secret, Prover::Server, &proof));
        let swapped = ProofInputs {
            client_nonce: Bytes::from_static(&[2; NONCE_BYTES]),
            server_nonce: Bytes::from_static(&[1; NONCE_BYTES]),
            ..inputs("/call")
        };
        assert!(!swapped.is_proof(&secret, Prover::Server, &proof));
        assert!(!inputs("/call").is_proof(&secret, Prover::Server, &[]));
    }

    #[test]
    fn nonces_differ_and_have_one_size() {
        let nonces = [nonce().unwrap(), nonce().unwrap()];
        assert_ne!(nonces[0], nonces[1]);
        assert!(check_nonce("nonce", &nonces[0]).is_ok());
        assert!(check_nonce("nonce", b"short").is_err());
    }
}
