//! Compact encoding of numbers and texts.

use std::sync::Arc;

/// Encoder.
#[derive(Debug, Default)]
pub(super) struct Put(pub(super) Vec<u8>);

impl Put {
    pub(super) fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Variable length: one byte for small numbers, up to ten.
    pub(super) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub(super) fn maybe(&mut self, value: Option<u64>) {
        self.number(value.map_or(0, |value| value.saturating_add(1)));
    }

    pub(super) fn float(&mut self, value: f64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn maybe_float(&mut self, value: Option<f64>) {
        self.byte(u8::from(value.is_some()));
        if let Some(value) = value {
            self.float(value);
        }
    }

    pub(super) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    pub(super) fn maybe_text(&mut self, text: Option<&str>) {
        self.byte(u8::from(text.is_some()));
        if let Some(text) = text {
            self.text(text);
        }
    }
}

/// Decoder. `None`: invalid bytes.
#[derive(Debug)]
pub(super) struct Take<'a>(pub(super) &'a [u8]);

impl<'a> Take<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub(super) fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    pub(super) fn maybe(&mut self) -> Option<Option<u64>> {
        self.number().map(|value| value.checked_sub(1))
    }

    pub(super) fn float(&mut self) -> Option<f64> {
        let bytes = self.bytes(8)?;
        bytes.try_into().ok().map(f64::from_le_bytes)
    }

    pub(super) fn maybe_float(&mut self) -> Option<Option<f64>> {
        match self.byte()? {
            0 => Some(None),
            _ => self.float().map(Some),
        }
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        let count = usize::try_from(self.number()?).ok()?;
        std::str::from_utf8(self.bytes(count)?).ok()
    }

    pub(super) fn maybe_text(&mut self) -> Option<Option<Arc<str>>> {
        match self.byte()? {
            0 => Some(None),
            _ => self.text().map(|text| Some(text.into())),
        }
    }
}
