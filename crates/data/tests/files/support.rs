//! Buffers of both kinds, lots to put into them, and what is in them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollway_data::buffer::{
    Buffer, ExperienceReader, JsonlBuffer, ParquetBuffer, ReadEnd, ReadRequest, ReadResult, Result,
};
use rollway_data::{Sample, WriteBatch};
use rollway_experience::{Array, Eid, Experience, ExperienceFields, Json};

/// How many samples a lot has.
pub(crate) const SAMPLES: usize = 3;

/// Long enough for a machine under load; nobody waits for it unless a test fails.
pub(crate) const LONG: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Parquet,
    JsonLines,
}

impl Kind {
    pub(crate) const BOTH: [Self; 2] = [Self::Parquet, Self::JsonLines];

    pub(crate) fn path(self, folder: &Path) -> PathBuf {
        match self {
            Self::Parquet => folder.join("lots"),
            Self::JsonLines => folder.join("lots.jsonl"),
        }
    }

    pub(crate) fn try_open(self, folder: &Path) -> Result<Box<dyn Buffer>> {
        Ok(match self {
            Self::Parquet => Box::new(ParquetBuffer::open(self.path(folder))?),
            Self::JsonLines => Box::new(JsonlBuffer::open(self.path(folder))?),
        })
    }

    pub(crate) fn open(self, folder: &Path) -> Box<dyn Buffer> {
        self.try_open(folder).unwrap()
    }
}

/// A lot of a given number: version, names and arrays follow from it.
pub(crate) fn lot(number: usize, tokens: usize) -> WriteBatch {
    let samples = (0..SAMPLES).map(|row| sample(number, row, tokens)).collect();
    WriteBatch { key: format!("batch/{number}").into(), samples }
}

fn sample(number: usize, row: usize, tokens: usize) -> Sample {
    let mut random = (number * SAMPLES + row) as u32;
    let mut token = || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        random as i32
    };
    let experience = Experience::new(ExperienceFields {
        eid: Eid { batch: (number as i64).into(), run: row as u64, ..Eid::default() },
        tokens: (0..tokens + 2).map(|_| token()).collect(),
        logprobs: Some(Array::from(vec![f32::NAN; tokens + 1])),
        reward: Some(-0.0),
        info: Json::new(format!(r#"{{"model_version":{number}}}"#)).unwrap(),
        ..ExperienceFields::default()
    });
    Sample::new(&experience.unwrap()).unwrap()
}

pub(crate) fn ask(count: usize, timeout: Duration) -> ReadRequest {
    ReadRequest { count, timeout, min_model_version: 0, keep: false }
}

/// Reads what there is now.
pub(crate) fn now(reader: &mut dyn ExperienceReader, count: usize) -> ReadResult {
    reader.read(&ask(count, Duration::ZERO)).unwrap()
}

/// Everything in a buffer, whose writers all have closed.
pub(crate) fn everything(buffer: &dyn Buffer) -> Vec<Sample> {
    let taken = now(&mut *buffer.reader("everything").unwrap(), usize::MAX);
    assert_eq!(taken.end, ReadEnd::Finished);
    taken.samples
}

pub(crate) fn samples(lots: &[WriteBatch]) -> Vec<Sample> {
    lots.iter().flat_map(|lot| lot.samples.clone()).collect()
}
