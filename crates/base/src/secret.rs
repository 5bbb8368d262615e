//! Shared secrets.

use std::fmt;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use subtle::ConstantTimeEq;

/// Length below which a secret that was chosen by hand may be guessed.
const MIN_BYTES: usize = 16;

/// Secrets that were printed in the documentation.
const EXAMPLES: [&str; 1] = ["put-a-long-random-text-here"];

/// A shared secret. It is never printed and compares in constant time.
#[derive(Clone)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps a given secret.
    pub fn new(text: impl Into<Arc<str>>) -> Result<Self, EmptySecret> {
        let text = text.into();
        if text.is_empty() { Err(EmptySecret) } else { Ok(Self(text)) }
    }

    /// Wraps a secret that was chosen by hand, such as in a file or an environment variable.
    /// Refuses the examples of the documentation.
    pub fn chosen(text: &str) -> Result<Self, SecretError> {
        let text = text.trim();
        if EXAMPLES.contains(&text) {
            return Err(SecretError::Example);
        }
        Ok(Self::new(text)?)
    }

    /// Returns a warning if the secret may be guessed.
    pub fn weakness(&self) -> Option<String> {
        let is_short = self.0.len() < MIN_BYTES;
        is_short.then(|| {
            format!(
                "the secret is shorter than {MIN_BYTES} characters; `openssl rand -hex 32` makes \
                 a safe one"
            )
        })
    }

    /// Returns a random secret: 256 bits from the operating system.
    pub fn random() -> io::Result<Self> {
        let bytes = random_bytes::<32>()?;
        let mut text = String::with_capacity(2 * bytes.len());
        for byte in bytes {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Ok(Self(text.into()))
    }

    /// Returns a random secret of 128 bits for addresses that are read and copied: 22 characters
    /// of base64url.
    pub fn random_short() -> io::Result<Self> {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut bytes = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let bits = u128::from_be_bytes(bytes);
        let digit = |at: u32| char::from(DIGITS[(bits >> (6 * at)) as usize % DIGITS.len()]);
        Ok(Self((0..u128::BITS.div_ceil(6)).map(digit).collect::<String>().into()))
    }

    /// Returns the text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// Returns random bytes from the operating system.
pub fn random_bytes<const SIZE: usize>() -> io::Result<[u8; SIZE]> {
    let mut bytes = [0; SIZE];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl PartialEq for Secret {
    /// Compares in constant time. The length is not secret.
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Error: an empty text is not a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the secret is empty")]
pub struct EmptySecret;

/// Error: a text is not used as a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error(transparent)]
    Empty(#[from] EmptySecret),
    #[error(
        "the secret is the example of the documentation; make a random one with `openssl rand \
         -hex 32`"
    )]
    Example,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_compare_and_hide() {
        let secret = Secret::random().unwrap();
        assert_ne!(secret, Secret::random().unwrap());
        assert_eq!(secret, Secret::new(secret.reveal()).unwrap());
        assert_eq!(Secret::new(""), Err(EmptySecret));
        assert!(!format!("{secret:?}").contains(secret.reveal()));
        assert_eq!(Secret::chosen(" \n"), Err(SecretError::Empty(EmptySecret)));
        assert_eq!(Secret::chosen("put-a-long-random-text-here\n"), Err(SecretError::Example));
        assert!(Secret::chosen("letmein\n").unwrap().weakness().is_some());
        assert_eq!(Secret::chosen(&format!("{}\n", secret.reveal())).unwrap().weakness(), None);
        let short = Secret::random_short().unwrap();
        assert_eq!(short.weakness(), None);
        assert_eq!(short.reveal().len(), 22);
        assert_ne!(short, Secret::random_short().unwrap());
    }
}
