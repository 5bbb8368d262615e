//! Server-sent events: incremental parser and writer.

use std::mem;

use bytes::{BufMut, BytesMut};

/// Appends an event with its data.
pub fn write_event(data: &[u8], out: &mut BytesMut) {
    out.reserve(data.len() + 8);
    out.put_slice(b"data: ");
    out.put_slice(data);
    out.put_slice(b"\n\n");
}

/// Appends an event with its name and data.
pub fn write_named_event(name: &str, data: &[u8], out: &mut BytesMut) {
    out.reserve(name.len() + data.len() + 16);
    out.put_slice(b"event: ");
    out.put_slice(name.as_bytes());
    out.put_slice(b"\n");
    write_event(data, out);
}

/// Incremental parser. Every byte is examined once: a line is buffered until its end, the data of
/// an event until the empty line after it.
#[derive(Debug, Default)]
pub struct SseParser {
    line: Vec<u8>,
    data: Vec<u8>,
    /// True if the event has data, which may be empty.
    has_data: bool,
    /// True if the last byte was a CR: a following LF belongs to it.
    after_cr: bool,
    /// True if a line has ended: only the first may begin with a byte order mark.
    begun: bool,
}

/// The stream is malformed, or an event exceeds the limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SseError(pub String);

impl SseParser {
    /// Takes bytes and returns the data of every completed event. Comments and other fields are
    /// skipped; `[DONE]` is not special. Events of more than `limit` bytes are refused.
    pub fn feed(&mut self, bytes: &[u8], limit: usize) -> Result<Vec<String>, SseError> {
        let mut events = Vec::new();
        if bytes.is_empty() {
            return Ok(events);
        }
        let mut rest = bytes;
        if mem::take(&mut self.after_cr) {
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', rest) {
            let (line, ending) = rest.split_at(end);
            self.after_cr = ending == b"\r";
            rest = &ending[if ending.starts_with(b"\r\n") { 2 } else { 1 }..];
            self.check(line.len(), limit)?;
            if self.line.is_empty() {
                self.end_line(line, &mut events)?;
            } else {
                let mut whole = mem::take(&mut self.line);
                whole.extend_from_slice(line);
                self.end_line(&whole, &mut events)?;
                whole.clear();
                self.line = whole;
            }
        }
        self.check(rest.len(), limit)?;
        self.line.extend_from_slice(rest);
        Ok(events)
    }

    /// Number of bytes of an event that is not complete.
    pub fn buffered(&self) -> usize {
        self.line.len() + self.data.len()
    }

    /// Returns whether the bytes ended within an event.
    pub fn has_incomplete_event(&self) -> bool {
        !self.line.is_empty() || self.has_data
    }

    fn check(&self, more: usize, limit: usize) -> Result<(), SseError> {
        if self.data.len() + self.line.len() + more > limit {
            return Err(SseError(format!("an event has more than {limit} bytes")));
        }
        Ok(())
    }

    fn end_line(&mut self, line: &[u8], events: &mut Vec<String>) -> Result<(), SseError> {
        let line = match line.strip_prefix(b"\xEF\xBB\xBF") {
            Some(line) if !self.begun => line,
            _ => line,
        };
        self.begun = true;
        if line.is_empty() {
            return self.end_event(events);
        }
        let (name, value) = match memchr::memchr(b':', line) {
            Some(colon) => {
                let value = &line[colon + 1..];
                (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, &[][..]),
        };
        if name == b"data" {
            if mem::replace(&mut self.has_data, true) {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value);
        }
        Ok(())
    }

    fn end_event(&mut self, events: &mut Vec<String>) -> Result<(), SseError> {
        if !mem::take(&mut self.has_data) {
            return Ok(());
        }
        match String::from_utf8(mem::take(&mut self.data)) {
            Ok(data) => events.push(data),
            Err(error) => {
                return Err(SseError(format!("an event is not UTF-8: {}", error.utf8_error())));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Parses a complete text by the rules of the specification.
    fn read_whole(text: &str) -> Vec<String> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let mut lines: Vec<&str> = text.split('\n').collect();
        lines.pop();
        let mut events = Vec::new();
        let mut data: Vec<&str> = Vec::new();
        for line in lines {
            if line.is_empty() {
                if !data.is_empty() {
                    events.push(data.join("\n"));
                }
                data.clear();
            } else if line == "data" {
                data.push("");
            } else if let Some(value) = line.strip_prefix("data:") {
                data.push(value.strip_prefix(' ').unwrap_or(value));
            }
        }
        events
    }

    fn piece() -> impl Strategy<Value = String> {
        let field = prop_oneof![
            4 => Just("data"),
            1 => Just("data:"),
            4 => Just("data: "),
            1 => Just("data:  "),
            1 => Just(": "),
            1 => Just("event: "),
            1 => Just("id:"),
            1 => Just(""),
        ];
        let end = prop_oneof![4 => Just("\n"), 2 => Just("\r\n"), 1 => Just("\r")];
        let text = prop_oneof!["", "[a:é€😀{}\" ]{0,8}"];
        (field, text, end, 0..3_usize)
            .prop_map(|(field, text, end, ends)| format!("{field}{text}{end}{}", end.repeat(ends)))
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_events_of_the_whole_text(
            bom in any::<bool>(),
            pieces in prop::collection::vec(piece(), 0..12),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let text = format!("{}{}", if bom { "\u{feff}" } else { "" }, pieces.concat());
            let bytes = text.as_bytes();
            let end = bytes.len();
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(end + 1)).collect();
            places.push(end);
            places.sort_unstable();
            let (mut parser, mut events, mut from) = (SseParser::default(), Vec::new(), 0);
            for to in places {
                events.extend(parser.feed(&bytes[from..to], 4096).unwrap());
                from = to;
            }
            prop_assert_eq!(events, read_whole(&text));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut parser = SseParser::default();
            for byte in bytes {
                if parser.feed(&[byte], 16).is_err() {
                    break;
                }
            }
        }
    }

    #[test]
    fn a_torn_stream_is_detected() {
        let mut parser = SseParser::default();
        assert!(!parser.has_incomplete_event());
        parser.feed(b"data: a", 64).unwrap();
        assert!(parser.has_incomplete_event());
        parser.feed(b"\r", 64).unwrap();
        assert!(parser.has_incomplete_event());
        assert_eq!(parser.feed(b"\n\r", 64), Ok(vec!["a".to_owned()]));
        assert_eq!(parser.feed(b"\n: well\n", 64), Ok(vec![]));
        assert!(!parser.has_incomplete_event());
    }

    #[test]
    fn events_above_the_limit_are_refused() {
        let fed = |pieces: &[&[u8]]| {
            let mut parser = SseParser::default();
            pieces.iter().try_for_each(|piece| parser.feed(piece, 12).map(drop))
        };
        assert_eq!(fed(&[b"data: 12", b"3456\n\n", b"data: 123456\n\n"]), Ok(()));
        assert!(fed(&[b"data: 1234567\n\n"]).is_err());
        assert!(fed(&[b"data: 123", b"4567\n\n"]).is_err());
        assert!(fed(&[b"data: 123\n", b"data: 4567\n\n"]).is_err());
        assert!(fed(&[b": a comment", b" without end"]).is_err());
        assert!(fed(&[b"data: \xff\n\n"]).is_err());
    }
}
