//! Encoding of ledger records. Integers are varints (seven bits each, lowest first), floats eight
//! bytes little-endian; strings and byte strings follow their length, lists their count, optional
//! values a 0 or a 1.

use std::sync::Arc;

use rollway_core::metrics::Metrics;

/// Decoded value, or a description of the malformed bytes.
pub(super) type Decoded<T> = Result<T, String>;

pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn put_option<T>(out: &mut Vec<u8>, value: Option<T>, put: fn(&mut Vec<u8>, T)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}

pub(super) fn put_float(out: &mut Vec<u8>, value: f64) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_metrics(out: &mut Vec<u8>, metrics: &Metrics) {
    put(out, metrics.len() as u64);
    for (key, value) in metrics.iter() {
        put_text(out, key);
        put_float(out, value);
    }
}

/// Cursor over the bytes of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryReader<'a>(pub(super) &'a [u8]);

impl<'a> EntryReader<'a> {
    pub(super) fn bytes(&mut self, count: u64) -> Decoded<&'a [u8]> {
        let count = usize::try_from(count).map_err(|_| "a length is out of range".to_owned())?;
        let (bytes, rest) = self.0.split_at_checked(count).ok_or("it ends too early")?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn number(&mut self) -> Decoded<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.bytes(1)?[0];
            let bits = u64::from(byte & 0x7f);
            number |= bits << shift;
            if byte < 0x80 {
                return if bits << shift >> shift == bits { Ok(number) } else { break };
            }
        }
        Err("a number is out of range".into())
    }

    pub(super) fn small(&mut self) -> Decoded<u32> {
        u32::try_from(self.number()?).map_err(|_| "a number is out of range".into())
    }

    /// Reads a count of elements of at least one byte each.
    pub(super) fn count(&mut self) -> Decoded<usize> {
        let count = self.number()?;
        if count > self.0.len() as u64 {
            Err("it ends too early".into())
        } else {
            Ok(count as usize)
        }
    }

    pub(super) fn text(&mut self) -> Decoded<&'a str> {
        let count = self.number()?;
        std::str::from_utf8(self.bytes(count)?).map_err(|error| format!("a text: {error}"))
    }

    pub(super) fn shared_text(&mut self) -> Decoded<Arc<str>> {
        self.text().map(Into::into)
    }

    pub(super) fn float(&mut self) -> Decoded<f64> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.bytes(8)?);
        Ok(f64::from_le_bytes(bytes))
    }

    pub(super) fn option<T>(&mut self, read: fn(&mut Self) -> Decoded<T>) -> Decoded<Option<T>> {
        match self.number()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            other => Err(format!("{other} where 0 or 1 is expected")),
        }
    }

    pub(super) fn list<T>(&mut self, read: fn(&mut Self) -> Decoded<T>) -> Decoded<Vec<T>> {
        (0..self.count()?).map(|_| read(self)).collect()
    }

    pub(super) fn metrics(&mut self) -> Decoded<Metrics> {
        let pairs = self.list(|reader| Ok((reader.shared_text()?, reader.float()?)))?;
        Ok(pairs.into_iter().collect())
    }

    /// Reads a name from a closed list.
    pub(super) fn name<T: Copy>(&mut self, all: &[T], name: fn(T) -> &'static str) -> Decoded<T> {
        let text = self.text()?;
        let found = all.iter().copied().find(|one| name(*one) == text);
        found.ok_or_else(|| format!("the unknown name {text:?}"))
    }

    pub(super) fn end(self) -> Decoded<()> {
        match self.0.len() {
            0 => Ok(()),
            more => Err(format!("{more} bytes after the end")),
        }
    }
}
