//! JSON files: JSON lines, or a list of objects.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde::de::DeserializeSeed;
use sha2::{Digest, Sha256};

use super::field_names::{FieldNames, KeyScan};
use super::file_handle::FileHandle;
use super::{Cache, MAX_ROW_BYTES, Scanned, Shard, too_long};
use crate::{Fields, Result, TasksetError, TasksetErrorKind as Kind};

/// A JSON file with the offset of every object.
#[derive(Debug)]
pub(super) struct JsonLines {
    handle: FileHandle,
    starts: Vec<u64>,
    end: u64,
}

/// State of the scan.
struct JsonScan<'a> {
    path: &'a Path,
    hash: Sha256,
    keys: FieldNames,
    starts: Vec<u64>,
    end: u64,
}

/// Scans a file of JSON lines or a list of objects.
pub(super) fn open(path: &Path) -> Result<Scanned> {
    let mut handle = FileHandle::open(path)?;
    let mut scan = JsonScan {
        path,
        hash: Sha256::new(),
        keys: FieldNames::default(),
        starts: Vec::new(),
        end: 0,
    };
    let mut reader = BufReader::with_capacity(256 << 10, handle.file()?);
    if first_byte(&mut reader).map_err(|error| TasksetError::io(path, &error))? == Some(b'[') {
        scan.list(&mut reader)?;
    } else {
        scan.lines(&mut reader)?;
    }
    let JsonScan { hash, keys, starts, end, .. } = scan;
    handle.print()?;
    let shard = JsonLines { handle, starts, end };
    Ok(Scanned { shard: Box::new(shard), keys, print: hash.finalize().into() })
}

/// Returns the first non-blank byte of the first chunk.
fn first_byte(reader: &mut impl BufRead) -> io::Result<Option<u8>> {
    let head = reader.fill_buf()?;
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    Ok(head.iter().copied().find(|byte| !byte.is_ascii_whitespace()))
}

impl JsonScan<'_> {
    fn lines(&mut self, reader: &mut impl BufRead) -> Result<()> {
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let read = reader.by_ref().take(MAX_ROW_BYTES + 1).read_until(b'\n', &mut line);
            let read = read.map_err(|error| TasksetError::io(self.path, &error))?;
            if read == 0 {
                break;
            }
            if read as u64 > MAX_ROW_BYTES {
                return Err(too_long(format!("{}, line {number}", self.path.display())));
            }
            self.hash.update(&line);
            let mark = if number == 1 { byte_order_mark(&line) } else { 0 };
            if !line[mark..].trim_ascii().is_empty() {
                self.object(&line[mark..], self.end + mark as u64, number)?;
            }
            self.end += read as u64;
        }
        Ok(())
    }

    fn list(&mut self, reader: &mut impl BufRead) -> Result<()> {
        let mut bracket = Bracket::default();
        let mut element = Vec::new();
        let (mut at, mut number) = (0_u64, 1_u64);
        let (mut start, mut first_line) = (0_u64, 1_u64);
        loop {
            let chunk = reader.fill_buf().map_err(|error| TasksetError::io(self.path, &error))?;
            if chunk.is_empty() {
                break;
            }
            self.hash.update(chunk);
            for byte in chunk {
                let step = bracket.step(*byte);
                match step {
                    JsonStep::Outside => {}
                    JsonStep::Wrong(what) => return Err(self.format_error(number, what)),
                    JsonStep::First | JsonStep::Inside => {
                        if step == JsonStep::First {
                            (first_line, start) = (number, at);
                        }
                        element.push(*byte);
                        if element.len() as u64 > MAX_ROW_BYTES {
                            let location = format!("{}, line {first_line}", self.path.display());
                            return Err(too_long(location));
                        }
                    }
                    JsonStep::Separator => {
                        if !element.is_empty() {
                            self.object(&element, start, first_line)?;
                            element.clear();
                        }
                        self.end = at;
                    }
                }
                at += 1;
                number += u64::from(*byte == b'\n');
            }
            let read = chunk.len();
            reader.consume(read);
        }
        if bracket.depth != 0 || !bracket.closed {
            return Err(self.format_error(number, "the list ends in the middle".to_owned()));
        }
        Ok(())
    }

    /// Records an object that starts in a line.
    fn object(&mut self, text: &[u8], start: u64, line: u64) -> Result<()> {
        let text = text.trim_ascii_end();
        let mut json = serde_json::Deserializer::from_slice(text);
        let read = KeyScan(&mut self.keys).deserialize(&mut json).and_then(|()| json.end());
        if let Err(error) = read {
            let line = line + error.line().max(1) as u64 - 1;
            let location = format!("{}, line {line}", self.path.display());
            return Err(bad_row(location, &error, text));
        }
        self.starts.push(start);
        Ok(())
    }

    fn format_error(&self, line: u64, what: String) -> TasksetError {
        let location = format!("{}, line {line}", self.path.display());
        let hint = "a list of objects is read: `[{…}, {…}]`";
        Kind::Row.at(location, what, hint)
    }
}

fn byte_order_mark(line: &[u8]) -> usize {
    if line.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 }
}

fn bad_row(location: String, error: &serde_json::Error, text: &[u8]) -> TasksetError {
    let contains = |word: &str| text.windows(word.len()).any(|part| part == word.as_bytes());
    let hint = if contains("NaN") || contains("Infinity") {
        "JSON has no NaN and no Infinity: write null"
    } else if std::str::from_utf8(text).is_err() {
        "JSON is UTF-8: save the file again as UTF-8"
    } else if error.to_string().starts_with("recursion limit exceeded") {
        "a row is nested at most 127 levels deep: write deeper parts as text"
    } else if error.is_data() {
        "every row is an object such as {\"prompt\": \"…\", \"response\": \"…\"}"
    } else if error.is_eof() {
        "a line must be one whole object; write objects of several lines as a list in a .json file"
    } else {
        "correct the row, or write the file again with a JSON library"
    };
    // The position in `error` is relative to the row; the line is known better.
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or_default();
    let what = format!("not a row: {message} (column {})", error.column());
    Kind::Row.at(location, what, hint)
}

/// State of the scan of a list of objects.
#[derive(Default)]
struct Bracket {
    depth: usize,
    in_text: bool,
    escaped: bool,
    in_element: bool,
    closed: bool,
    needs_element: bool,
}

#[derive(PartialEq)]
enum JsonStep {
    Outside,
    First,
    Inside,
    Separator,
    Wrong(String),
}

impl Bracket {
    fn step(&mut self, byte: u8) -> JsonStep {
        if self.in_text {
            self.in_text = self.escaped || byte != b'"';
            self.escaped = !self.escaped && byte == b'\\';
            return JsonStep::Inside;
        }
        match byte {
            b'"' if self.depth > 1 => self.in_text = true,
            b'{' | b'[' => {
                self.depth += 1;
                if self.depth == 2 && byte == b'{' && !self.in_element {
                    (self.in_element, self.needs_element) = (true, false);
                    return JsonStep::First;
                }
                if self.depth == 1 && byte == b'[' && !self.closed {
                    return JsonStep::Outside;
                }
            }
            b'}' | b']' if self.depth > 0 => {
                self.depth -= 1;
                if self.depth == 0 {
                    self.closed = true;
                    return match (byte, self.needs_element) {
                        (b']', false) => JsonStep::Separator,
                        (b']', true) => JsonStep::Wrong("a comma before the end".to_owned()),
                        _ => JsonStep::Wrong("`}` without `{`".to_owned()),
                    };
                }
            }
            b',' if self.depth == 1 && self.in_element => {
                (self.in_element, self.needs_element) = (false, true);
                return JsonStep::Separator;
            }
            byte if byte.is_ascii_whitespace() && self.depth <= 1 => return JsonStep::Outside,
            0xef | 0xbb | 0xbf if self.depth == 0 && !self.closed => return JsonStep::Outside,
            _ => {}
        }
        if self.depth <= 1 && !(self.in_element && byte == b'}') {
            let shown = char::from(byte);
            return JsonStep::Wrong(format!("`{shown}` where an object or a comma is expected"));
        }
        if self.depth >= 2 && !self.in_element {
            return JsonStep::Wrong("a list in the list, where an object is expected".to_owned());
        }
        JsonStep::Inside
    }
}

impl Shard for JsonLines {
    fn len(&self) -> u64 {
        self.starts.len() as u64
    }

    fn row(&mut self, index: u64, _: (&mut Cache, usize)) -> Result<Fields> {
        let text = self.handle.read_part(&self.starts, index as usize, self.end)?;
        // A comma, the end of the list or blank lines may follow the object.
        let mut objects = serde_json::Deserializer::from_slice(&text).into_iter::<Fields>();
        match objects.next() {
            Some(Ok(fields)) => Ok(fields),
            Some(Err(_)) | None => Err(TasksetError::changed(self.handle.path())),
        }
    }

    fn location(&mut self, index: u64) -> String {
        let start = self.starts[index as usize];
        let path = self.handle.path().display().to_string();
        let mut line = 1_u64;
        let mut at = 0;
        while at < start {
            let end = (at + (1 << 20)).min(start);
            let Ok(bytes) = self.handle.read(at, end) else { return path };
            line += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
            at = end;
        }
        format!("{path}, line {line}")
    }

    fn close(&mut self) {
        self.handle.close();
    }
}
