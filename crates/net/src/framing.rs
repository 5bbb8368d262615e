//! Detection of requests whose end is ambiguous.
//!
//! The HTTP/1 parser lets `Transfer-Encoding` win over `Content-Length` and accepts a repeated
//! `Content-Length`, and the service sees none of it. A proxy in front of this process may decide
//! otherwise, so that a client could hide a request in the body of another. Such requests are
//! refused. Heads of pipelined requests that arrive with the body of the request before are left to
//! the parser, which closes the connection after them.

/// Scanner of the head of a request.
#[derive(Debug, Default)]
pub(crate) struct FramingCheck {
    state: FramingState,
    /// Beginning of the current line, in lower case.
    line: [u8; NAME_BYTES],
    length: usize,
    has_begun: bool,
    is_http2: bool,
    content_lengths: u32,
    transfer_encodings: u32,
}

/// Enough for `transfer-encoding:`.
const NAME_BYTES: usize = 18;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FramingState {
    #[default]
    Name,
    RestOfLine,
    /// The head is complete, or this is HTTP/2.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AmbiguousFraming;

impl FramingCheck {
    /// Expects the head of another request, unless the connection speaks HTTP/2.
    pub(crate) fn restart(&mut self) {
        if !self.is_http2 {
            *self = Self::default();
        }
    }

    pub(crate) const fn is_http2(&self) -> bool {
        self.is_http2
    }

    pub(crate) const fn has_begun(&self) -> bool {
        self.has_begun
    }

    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<(), AmbiguousFraming> {
        for &byte in bytes {
            match self.state {
                FramingState::Done => return Ok(()),
                FramingState::RestOfLine if byte == b'\n' => self.begin_line(),
                FramingState::RestOfLine => {}
                FramingState::Name => self.name_byte(byte)?,
            }
        }
        Ok(())
    }

    fn begin_line(&mut self) {
        self.state = FramingState::Name;
        self.length = 0;
    }

    fn name_byte(&mut self, byte: u8) -> Result<(), AmbiguousFraming> {
        match byte {
            b'\r' => {}
            // Empty lines before a request are permitted.
            b'\n' if self.length == 0 && !self.has_begun => {}
            b'\n' if self.length == 0 => self.state = FramingState::Done,
            b'\n' => self.begin_line(),
            _ => {
                self.has_begun = true;
                self.line[self.length] = byte.to_ascii_lowercase();
                self.length += 1;
                let line = &self.line[..self.length];
                if line == b"content-length:" {
                    self.content_lengths += 1;
                    self.state = FramingState::RestOfLine;
                } else if line == b"transfer-encoding:" {
                    self.transfer_encodings += 1;
                    self.state = FramingState::RestOfLine;
                } else if line == b"pri * http/2.0" {
                    self.is_http2 = true;
                    self.state = FramingState::Done;
                } else if self.length == NAME_BYTES {
                    self.state = FramingState::RestOfLine;
                }
            }
        }
        let headers = self.content_lengths + self.transfer_encodings;
        if headers > 1 { Err(AmbiguousFraming) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(head: &str) -> Result<(), AmbiguousFraming> {
        let whole = FramingCheck::default().read(head.as_bytes());
        let mut pieces = FramingCheck::default();
        let by_byte = head.bytes().try_for_each(|byte| pieces.read(&[byte]));
        assert_eq!(whole, by_byte, "{head}");
        whole
    }

    #[test]
    fn two_framing_headers_are_ambiguous() {
        for headers in [
            "Content-Length: 3\r\nTransfer-Encoding: chunked",
            "transfer-encoding: chunked\nA: b\ncontent-length: 3",
            "CONTENT-LENGTH:3\r\ncontent-length:3",
            "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        ] {
            assert!(check(&format!("POST / HTTP/1.1\r\nHost: a\r\n{headers}\r\n\r\n")).is_err());
        }
    }

    #[test]
    fn one_framing_header_and_bodies_are_not() {
        for head in [
            "\r\nPOST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nX-Content-Length: 3\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\na\r\nContent-Length: 3\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nContent-Length: 1\nContent-Length: 2\n",
            "GET /transfer-encoding:content-length: HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        ] {
            assert_eq!(check(head), Ok(()), "{head}");
        }
    }
}
