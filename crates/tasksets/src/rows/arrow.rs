//! Arrow files: IPC streams, as dataset folders have them, and files with a footer.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileReader, read_dictionary, read_record_batch};
use arrow_ipc::{Block, MessageHeader, MetadataVersion, root_as_footer, root_as_message};
use arrow_schema::{DataType, FieldRef, Schema, SchemaRef};

use super::column_error::{ColumnFault, ColumnResult, catch_panics, keys, row};
use super::file_handle::FileHandle;
use super::unpacked::UnpackedLimit;
use super::{Cache, Scanned, Shard, locate};
use crate::{Fields, Result};

/// Magic of a file with a footer.
const MAGIC: &[u8] = b"ARROW1";

/// Marker before the length of a message.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Length of the end of a file: that of the footer, and the magic.
const TRAILER_BYTES: u64 = 10;

struct Arrow {
    handle: FileHandle,
    limit: UnpackedLimit,
    schema: SchemaRef,
    /// Cumulative row counts of the batches.
    ends: Vec<u64>,
    layout: ArrowLayout,
}

enum ArrowLayout {
    Stream { batches: Vec<IpcMessage>, dictionaries: HashMap<i64, ArrayRef> },
    File { reader: Option<FileReader<BufReader<File>>> },
}

/// Offsets of a message.
#[derive(Clone, Copy, Debug)]
struct IpcMessage {
    header: u64,
    body: u64,
    end: u64,
}

/// An open file during a scan.
#[derive(Clone, Copy)]
struct OpenArrow<'a> {
    file: &'a File,
    len: u64,
    limit: UnpackedLimit,
}

pub(super) fn open(path: &Path, limit: UnpackedLimit) -> Result<Scanned> {
    let mut handle = FileHandle::open(path)?;
    let print = handle.print()?;
    let len = handle.len();
    let head = handle.read(0, len.min(MAGIC.len() as u64))?;
    let source = OpenArrow { file: handle.file()?, len, limit };
    let Walked { schema, ends, nulls, layout } = catch_panics(path, || match head == MAGIC {
        true => walk_file(source),
        false => ArrowWalk { source, at: 0 }.stream(),
    })?;
    let rows = ends.last().copied().unwrap_or(0);
    let present = |column: usize| rows.checked_sub(*nulls.get(column)?);
    let keys = keys(path, &schema, present)?;
    let shard = Arrow { handle, limit, schema, ends, layout };
    Ok(Scanned { shard: Box::new(shard), keys, print })
}

/// Result of the scan.
struct Walked {
    schema: SchemaRef,
    ends: Vec<u64>,
    /// Null cells of each column.
    nulls: Vec<u64>,
    layout: ArrowLayout,
}

fn walk_file(source: OpenArrow<'_>) -> ColumnResult<Walked> {
    check_file(source)?;
    let mut reader = FileReader::try_new_buffered(source.file.try_clone()?, None)?;
    let schema = reader.schema();
    let (mut ends, mut end) = (Vec::new(), 0);
    let mut nulls = vec![0; schema.fields().len()];
    for batch in &mut reader {
        let batch = batch?;
        end += batch.num_rows() as u64;
        ends.push(end);
        let columns = nulls.iter_mut().zip(batch.columns());
        columns.for_each(|(nulls, column)| *nulls += column.logical_null_count() as u64);
    }
    Ok(Walked { schema, ends, nulls, layout: ArrowLayout::File { reader: Some(reader) } })
}

/// Checks the batches and dictionaries that the footer of a file names.
fn check_file(source: OpenArrow<'_>) -> ColumnResult<()> {
    let OpenArrow { file, len, .. } = source;
    let damaged = || column_fault("a length is beyond the end of the file");
    let footer_end = len.checked_sub(TRAILER_BYTES).ok_or_else(damaged)?;
    let mut trailer = [0; 4];
    file.read_exact_at(&mut trailer, footer_end)?;
    let start = footer_end.checked_sub(u32::from_le_bytes(trailer).into()).ok_or_else(damaged)?;
    let mut footer = vec![0; (footer_end - start) as usize];
    file.read_exact_at(&mut footer, start)?;
    let footer = root_as_footer(&footer)
        .map_err(|error| column_fault(format!("a damaged footer: {error}")))?;
    let blocks = |list: Option<_>| list.into_iter().flatten();
    for block in blocks(footer.dictionaries()).chain(blocks(footer.recordBatches())) {
        check_block(source, block)?;
    }
    Ok(())
}

fn check_block(source: OpenArrow<'_>, block: &Block) -> ColumnResult<()> {
    let OpenArrow { file, len, .. } = source;
    let damaged = || column_fault("a block is beyond the end of the file");
    let number = |number: i64| u64::try_from(number).map_err(|_| damaged());
    let (start, size) = (number(block.offset())?, number(block.metaDataLength().into())?);
    let body = start.checked_add(size).filter(|end| *end <= len).ok_or_else(damaged)?;
    // The library allocates the length of the body before it reads it.
    let end = body.checked_add(number(block.bodyLength())?);
    end.filter(|end| *end <= len).ok_or_else(damaged)?;
    let mut header = vec![0; size as usize];
    file.read_exact_at(&mut header, start)?;
    let prefix = if header.starts_with(&CONTINUATION) { 8 } else { 4 };
    let read = parse(header.get(prefix..).ok_or_else(damaged)?)?;
    let batch = match read.header_type() {
        MessageHeader::DictionaryBatch => {
            read.header_as_dictionary_batch().and_then(|found| found.data())
        }
        _ => read.header_as_record_batch(),
    };
    batch.map_or(Ok(()), |batch| check_batch(source, body, &batch))
}

/// Checks the size of a batch after decompression, which precedes each of its buffers.
fn check_batch(
    OpenArrow { file, limit, .. }: OpenArrow<'_>,
    body: u64,
    batch: &arrow_ipc::RecordBatch<'_>,
) -> ColumnResult<()> {
    if batch.compression().is_none() {
        return Ok(());
    }
    let mut sum = 0_u64;
    for buffer in batch.buffers().into_iter().flatten().filter(|buffer| buffer.length() > 0) {
        let mut size = [0; 8];
        let start = u64::try_from(buffer.offset()).ok().and_then(|at| body.checked_add(at));
        let start = start.ok_or_else(|| column_fault("a buffer at a negative offset"))?;
        file.read_exact_at(&mut size, start)?;
        // -1: not compressed, so that the size of the file bounds it.
        let size = i64::from_le_bytes(size);
        sum = sum.saturating_add(u64::try_from(size).unwrap_or(0));
    }
    limit.check("a batch", sum)
}

/// Scan of a stream that reads metadata only.
struct ArrowWalk<'a> {
    source: OpenArrow<'a>,
    at: u64,
}

impl ArrowWalk<'_> {
    fn stream(mut self) -> ColumnResult<Walked> {
        let mut schema: Option<SchemaRef> = None;
        let (mut batches, mut ends, mut end) = (Vec::new(), Vec::new(), 0);
        let (mut dictionaries, mut nulls) = (HashMap::new(), Vec::new());
        while let Some((message, header)) = self.next()? {
            let read = parse(&header)?;
            match (read.header_type(), &schema) {
                (MessageHeader::Schema, None) => {
                    let found =
                        read.header_as_schema().ok_or_else(|| column_fault("it has no schema"))?;
                    schema = Some(Arc::new(try_fb_to_schema(found)?));
                }
                (MessageHeader::RecordBatch, Some(schema)) => {
                    let batch = read.header_as_record_batch();
                    let batch = batch.ok_or_else(|| column_fault("it has no batch"))?;
                    check_batch(self.source, message.body, &batch)?;
                    end += rows(&batch)?;
                    count_nulls(schema, &batch, &mut nulls);
                    ends.push(end);
                    batches.push(message);
                }
                (MessageHeader::DictionaryBatch, Some(schema)) => {
                    let found = read.header_as_dictionary_batch();
                    let found = found.ok_or_else(|| column_fault("it has no dictionary"))?;
                    if found.isDelta() || dictionaries.contains_key(&found.id()) {
                        return Err(column_fault(
                            "a dictionary that changes within the file is not supported",
                        ));
                    }
                    if let Some(batch) = found.data() {
                        check_batch(self.source, message.body, &batch)?;
                    }
                    let body = Buffer::from_vec(self.part(message.body, message.end)?);
                    let version = read.version();
                    read_dictionary(&body, found, schema, &mut dictionaries, &version)?;
                }
                (other, _) => {
                    return Err(column_fault(format!("an unexpected message: {other:?}")));
                }
            }
        }
        let schema = schema.ok_or_else(|| column_fault("it is not an Arrow stream"))?;
        Ok(Walked { schema, ends, nulls, layout: ArrowLayout::Stream { batches, dictionaries } })
    }

    /// Returns the next message and its header; `None` at the end of the stream.
    fn next(&mut self) -> ColumnResult<Option<(IpcMessage, Vec<u8>)>> {
        if self.at == self.source.len {
            return Ok(None);
        }
        let mut start = self.at;
        let mut size = self.part(start, start + 4)?;
        start += 4;
        if size == CONTINUATION {
            size = self.part(start, start + 4)?;
            start += 4;
        }
        let size: [u8; 4] = size.try_into().map_err(|_| column_fault("a length is truncated"))?;
        let size = u32::from_le_bytes(size);
        if size == 0 {
            return Ok(None);
        }
        let body = start + u64::from(size);
        let header = self.part(start, body)?;
        let length = u64::try_from(parse(&header)?.bodyLength());
        let length = length.map_err(|_| column_fault("a negative length"))?;
        let end = body.checked_add(length).filter(|end| *end <= self.source.len);
        self.at = end.ok_or_else(|| column_fault("it ends in the middle"))?;
        Ok(Some((IpcMessage { header: start, body, end: self.at }, header)))
    }

    fn part(&mut self, start: u64, end: u64) -> ColumnResult<Vec<u8>> {
        if end > self.source.len {
            return Err(column_fault("it ends in the middle"));
        }
        let mut bytes = vec![0; (end - start) as usize];
        let mut file = self.source.file;
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Returns the row count of a batch if its first column agrees: a damaged count could be billions.
fn rows(batch: &arrow_ipc::RecordBatch<'_>) -> ColumnResult<u64> {
    let first = batch.nodes().filter(|nodes| !nodes.is_empty()).map(|nodes| nodes.get(0).length());
    match u64::try_from(batch.length()) {
        Ok(rows) if first == Some(batch.length()) || rows == 0 => Ok(rows),
        Ok(rows) => {
            Err(column_fault(format!("a batch states {rows} rows, which its columns do not have")))
        }
        Err(_) => Err(column_fault("a negative number of rows")),
    }
}

/// Adds the null counts that a batch states for its columns.
fn count_nulls(schema: &Schema, batch: &arrow_ipc::RecordBatch<'_>, nulls: &mut Vec<u64>) {
    nulls.resize(schema.fields().len(), 0);
    let Some(nodes) = batch.nodes() else { return };
    let mut at = 0;
    for (field, nulls) in schema.fields().iter().zip(nulls) {
        if at < nodes.len() {
            *nulls += u64::try_from(nodes.get(at).null_count()).unwrap_or(0);
        }
        at += node_count(field.data_type());
    }
}

/// Returns the number of nodes of a column: one for itself and those of its children.
fn node_count(kind: &DataType) -> usize {
    let part = |field: &FieldRef| node_count(field.data_type());
    let parts = match kind {
        DataType::List(inner)
        | DataType::LargeList(inner)
        | DataType::FixedSizeList(inner, _)
        | DataType::Map(inner, _) => part(inner),
        DataType::Struct(fields) => fields.iter().map(part).sum(),
        _ => 0,
    };
    1 + parts
}

fn parse(header: &[u8]) -> ColumnResult<arrow_ipc::Message<'_>> {
    root_as_message(header).map_err(|error| column_fault(format!("a damaged message: {error}")))
}

fn column_fault(text: impl Into<String>) -> ColumnFault {
    ColumnFault::Other(text.into())
}

impl Arrow {
    fn decode(&mut self, number: usize) -> Result<RecordBatch> {
        let path = self.handle.path().to_owned();
        match &mut self.layout {
            ArrowLayout::File { reader } => {
                let mut ready = match reader.take() {
                    Some(reader) => reader,
                    None => {
                        let (len, limit) = (self.handle.len(), self.limit);
                        let file = self.handle.file()?;
                        catch_panics(&path, || {
                            check_file(OpenArrow { file, len, limit })?;
                            Ok(FileReader::try_new_buffered(file.try_clone()?, None)?)
                        })?
                    }
                };
                let batch = catch_panics(&path, || {
                    ready.set_index(number)?;
                    Ok(ready.next().ok_or_else(|| column_fault("it has fewer batches"))??)
                })?;
                *reader = Some(ready);
                Ok(batch)
            }
            ArrowLayout::Stream { batches, dictionaries } => {
                let message = batches[number];
                let header = self.handle.read(message.header, message.body)?;
                let body = Buffer::from_vec(self.handle.read(message.body, message.end)?);
                let schema = self.schema.clone();
                catch_panics(&path, || {
                    let read = parse(&header)?;
                    let version: MetadataVersion = read.version();
                    let batch = read.header_as_record_batch();
                    let batch = batch.ok_or_else(|| column_fault("it has no batch"))?;
                    Ok(read_record_batch(&body, batch, schema, dictionaries, None, &version)?)
                })
            }
        }
    }
}

impl Shard for Arrow {
    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn row(&mut self, index: u64, (cache, number): (&mut Cache, usize)) -> Result<Fields> {
        let (part, at) = locate(&self.ends, index);
        let batch = cache.get_or((number, part), || self.decode(part))?;
        row(self.handle.path(), &batch, at as usize)
    }

    fn location(&mut self, index: u64) -> String {
        format!("{}, row {}", self.handle.path().display(), index + 1)
    }

    fn close(&mut self) {
        if let ArrowLayout::File { reader } = &mut self.layout {
            *reader = None;
        }
        self.handle.close();
    }
}
