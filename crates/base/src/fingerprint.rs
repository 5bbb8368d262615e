//! Fingerprints of certificates.

use std::fmt;
use std::str::FromStr;

/// SHA-256 of a certificate, as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    /// Colons between the bytes, as other programs print them, are accepted.
    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let error = || FingerprintError { text: text.to_owned() };
        let digits: Vec<u32> = (text.chars().filter(|digit| *digit != ':'))
            .map(|digit| digit.to_digit(16).ok_or_else(error))
            .collect::<Result<_, _>>()?;
        if digits.len() != 64 {
            return Err(error());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::try_from(pair[0] << 4 | pair[1]).unwrap_or(0);
        }
        Ok(Self(bytes))
    }
}

/// Error: the text is not a fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the SHA-256 fingerprint of a certificate, expected 64 hexadecimal digits: `{text}`")]
pub struct FingerprintError {
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_read_as_they_print() {
        let text = "00ff".repeat(16);
        let fingerprint: Fingerprint = text.parse().unwrap();
        assert_eq!((fingerprint.to_string(), fingerprint.0[1]), (text.clone(), 255));
        let bytes: Vec<&str> = (0..32).map(|byte| &text[2 * byte..2 * byte + 2]).collect();
        assert_eq!(bytes.join(":").to_uppercase().parse(), Ok(fingerprint));
        for text in ["", "00", &"0".repeat(63), &"g".repeat(64)] {
            assert!(text.parse::<Fingerprint>().is_err(), "{text}");
        }
    }
}
