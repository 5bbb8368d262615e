//! Parquet files: rows are decoded in blocks.

use std::collections::VecDeque;
use std::path::Path;

use arrow_array::RecordBatch;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder, RowSelection, RowSelector,
};
use parquet::basic::Compression;
use parquet::file::metadata::RowGroupMetaData;

use super::column_error::{ColumnFault, catch_panics, keys, row};
use super::file_handle::FileHandle;
use super::unpacked::UnpackedLimit;
use super::{Cache, Scanned, Shard, locate, page_sizes};
use crate::{Fields, Result, TasksetErrorKind as Kind};

/// Rows decoded together.
const BLOCK: u64 = 64;

struct Parquet {
    handle: FileHandle,
    limit: UnpackedLimit,
    /// Cumulative row counts of the row groups.
    group_ends: Vec<u64>,
    /// Row groups whose page sizes were checked.
    checked: Vec<bool>,
    metadata: Option<ArrowReaderMetadata>,
    reader: Option<ParquetReader>,
    /// Blocks requested next, in order.
    plan: Vec<RowBlock>,
}

/// A reader positioned before a block. Sequential or planned reads do not start at the beginning of
/// the row group.
struct ParquetReader {
    next: RowBlock,
    /// Planned blocks that follow. `None`: the next block.
    planned: Option<VecDeque<RowBlock>>,
    batches: ParquetRecordBatchReader,
}

/// Block of rows of one row group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowBlock {
    group: usize,
    number: u64,
}

pub(super) fn open(path: &Path, limit: UnpackedLimit) -> Result<Scanned> {
    let mut handle = FileHandle::open(path)?;
    let print = handle.print()?;
    let mut shard = Parquet {
        handle,
        limit,
        group_ends: Vec::new(),
        checked: Vec::new(),
        metadata: None,
        reader: None,
        plan: Vec::new(),
    };
    let metadata = shard.metadata()?;
    let groups = metadata.metadata().row_groups();
    refuse_codecs(path, groups)?;
    let keys = keys(path, metadata.schema(), |column| non_null_count(groups, column))?;
    let mut end = 0;
    for group in groups {
        end += u64::try_from(group.num_rows()).unwrap_or(0);
        shard.group_ends.push(end);
        shard.checked.push(false);
    }
    Ok(Scanned { shard: Box::new(shard), keys, print })
}

/// Refuses unsupported compression at opening instead of at the first row.
fn refuse_codecs(path: &Path, groups: &[RowGroupMetaData]) -> Result<()> {
    let columns = groups.iter().flat_map(RowGroupMetaData::columns);
    let unread = |codec: Compression| match codec {
        Compression::BROTLI(_) => Some("Brotli"),
        Compression::LZO => Some("LZO"),
        _ => None,
    };
    match columns.map(|column| column.compression()).find_map(unread) {
        Some(codec) => {
            let what = format!("compressed with {codec}, which is not supported");
            let hint = "write it with zstd, snappy, gzip, lz4 or without compression";
            Err(Kind::Unsupported.at(path.display(), what, hint))
        }
        None => Ok(()),
    }
}

/// Returns the number of non-null cells of a column if all groups state it. Nested columns have
/// statistics for their leaves only.
fn non_null_count(groups: &[RowGroupMetaData], column: usize) -> Option<u64> {
    let count = |group: &RowGroupMetaData| {
        let mut leaves = group.columns().iter().enumerate();
        let schema = group.schema_descr();
        let (_, leaf) = leaves.find(|(leaf, _)| schema.get_column_root_idx(*leaf) == column)?;
        let is_plain = leaf.column_path().parts().len() == 1;
        let nulls = leaf.statistics().filter(|_| is_plain)?.null_count_opt()?;
        u64::try_from(group.num_rows()).ok()?.checked_sub(nulls)
    };
    groups.iter().map(count).sum()
}

impl Parquet {
    fn metadata(&mut self) -> Result<ArrowReaderMetadata> {
        if let Some(metadata) = &self.metadata {
            return Ok(metadata.clone());
        }
        let path = self.handle.path().to_owned();
        let file = self.handle.file()?;
        let metadata = catch_panics(&path, || {
            Ok(ArrowReaderMetadata::load(file, ArrowReaderOptions::new())?)
        })?;
        Ok(self.metadata.insert(metadata).clone())
    }

    /// Returns the block of a row and its index in the block.
    fn find(&self, index: u64) -> (RowBlock, usize) {
        let (group, row) = locate(&self.group_ends, index);
        (RowBlock { group, number: row / BLOCK }, (row % BLOCK) as usize)
    }

    fn decode(&mut self, block: RowBlock) -> Result<RecordBatch> {
        let path = self.handle.path().to_owned();
        let mut reader = match self.reader.take() {
            Some(reader) if reader.reaches(block) => reader,
            _ => self.read_from(block)?,
        };
        catch_panics(&path, || {
            loop {
                let ended =
                    || ColumnFault::Other("a group has fewer rows than it states".to_owned());
                let batch = reader.batches.next().ok_or_else(ended)??;
                let is_wanted = reader.next == block;
                let has_next = reader.advance();
                if is_wanted {
                    self.reader = has_next.then_some(reader);
                    return Ok(batch);
                }
            }
        })
    }

    /// Checks the sizes of the pages of a row group, once.
    fn check_pages(&mut self, group: usize) -> Result<()> {
        if self.checked[group] {
            return Ok(());
        }
        let (metadata, path) = (self.metadata()?, self.handle.path().to_owned());
        let columns = || metadata.metadata().row_group(group).columns().iter();
        let ranges: Vec<(u64, u64)> =
            catch_panics(&path, || Ok(columns().map(|column| column.byte_range()).collect()))?;
        for range in ranges {
            let checked = page_sizes::check(&mut self.handle, range, self.limit)?;
            catch_panics(&path, || checked)?;
        }
        self.checked[group] = true;
        Ok(())
    }

    /// Opens a reader for a block and the planned blocks behind it.
    fn read_from(&mut self, block: RowBlock) -> Result<ParquetReader> {
        self.check_pages(block.group)?;
        let metadata = self.metadata()?;
        let path = self.handle.path().to_owned();
        let start = self.plan.iter().position(|planned| *planned == block);
        let blocks = start.map(|start| {
            let blocks = self.plan[start..].iter().copied();
            blocks.take_while(|planned| planned.group == block.group).collect::<VecDeque<_>>()
        });
        let file = self.handle.file()?;
        let batches = catch_panics(&path, || {
            let builder =
                ParquetRecordBatchReaderBuilder::new_with_metadata(file.try_clone()?, metadata);
            let rows = builder.metadata().row_group(block.group).num_rows() as u64;
            let builder =
                builder.with_row_groups(vec![block.group]).with_batch_size(BLOCK as usize);
            Ok(match &blocks {
                Some(blocks) => builder.with_row_selection(selection(blocks, rows)),
                None => builder.with_offset((block.number * BLOCK) as usize),
            }
            .build()?)
        })?;
        let planned = blocks.map(|mut blocks| {
            blocks.pop_front();
            blocks
        });
        Ok(ParquetReader { next: block, planned, batches })
    }

    /// Returns the cache number of a block.
    fn cache_number(&self, block: RowBlock) -> usize {
        let start = if block.group == 0 { 0 } else { self.group_ends[block.group - 1] };
        (start + block.number * BLOCK) as usize
    }
}

impl ParquetReader {
    /// Returns whether the reader reaches a block without seeking.
    fn reaches(&self, block: RowBlock) -> bool {
        let is_planned = || self.planned.as_ref().is_some_and(|it| it.contains(&block));
        self.next == block || is_planned()
    }

    /// Moves behind the block just read. Returns whether there may be another.
    fn advance(&mut self) -> bool {
        let next = match &mut self.planned {
            None => Some(RowBlock { number: self.next.number + 1, ..self.next }),
            Some(planned) => planned.pop_front(),
        };
        self.next = next.unwrap_or(self.next);
        next.is_some()
    }
}

/// Returns the row selection of the blocks in a group of `rows` rows.
fn selection(blocks: &VecDeque<RowBlock>, rows: u64) -> RowSelection {
    let mut selectors = Vec::new();
    let mut at = 0;
    for block in blocks {
        let start = block.number * BLOCK;
        let end = (start + BLOCK).min(rows);
        if start > at {
            selectors.push(RowSelector::skip((start - at) as usize));
        }
        selectors.push(RowSelector::select((end - start) as usize));
        at = end;
    }
    selectors.into()
}

impl Shard for Parquet {
    fn len(&self) -> u64 {
        self.group_ends.last().copied().unwrap_or(0)
    }

    fn row(&mut self, index: u64, (cache, number): (&mut Cache, usize)) -> Result<Fields> {
        let (block, at) = self.find(index);
        let key = (number, self.cache_number(block));
        let batch = cache.get_or(key, || self.decode(block))?;
        row(self.handle.path(), &batch, at)
    }

    fn plan(&mut self, rows: &[u64]) {
        self.plan = rows.iter().map(|row| self.find(*row).0).collect();
        self.plan.dedup();
    }

    fn location(&mut self, index: u64) -> String {
        format!("{}, row {}", self.handle.path().display(), index + 1)
    }

    fn close(&mut self) {
        (self.metadata, self.reader, self.plan) = (None, None, Vec::new());
        self.handle.close();
    }
}
