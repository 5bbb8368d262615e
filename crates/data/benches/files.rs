//! How fast experiences get into files and columns, beside what the disk and the memory take for
//! the same bytes. All figures come from one run, because the machines we measure on are noisy:
//! compare them with each other, not with another day's.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use rollway_data::arrow::{from_batch, to_batch, to_ipc};
use rollway_data::buffer::{Buffer, JsonlBuffer, ParquetBuffer, ReadEnd, ReadRequest};
use rollway_data::{Sample, WriteBatch};
use rollway_experience::{Eid, Experience, ExperienceFields, Json, serialize_many};

const LOT: usize = 256;
/// Tokens of an experience of about 1 kB, and of about 32 kB; how many lots of them.
const SIZES: [(usize, usize); 2] = [(80, 40), (3_500, 12)];

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    for (tokens, lots) in SIZES {
        let experiences: Vec<Experience> = (0..LOT).map(|row| experience(0, row, tokens)).collect();
        let bytes = serialize_many(&experiences).expect("experiences that keep to the rules");
        println!("{LOT} experiences of {tokens} tokens: {} bytes each", bytes.len() / LOT);
        let batch = to_batch(&experiences).expect("experiences that keep to the rules");
        convert("copy of the bytes (limit)", bytes.len(), || bytes.to_vec());
        convert("to_batch", bytes.len(), || to_batch(&experiences));
        convert("from_batch", bytes.len(), || from_batch(&batch));
        convert("to_ipc", bytes.len(), || to_ipc(&experiences));

        let folder = folder.path().join(tokens.to_string());
        fs::create_dir(&folder).expect("a folder");
        let lots: Vec<WriteBatch> = (0..lots).map(|number| lot(number, tokens)).collect();
        store(&folder, &lots);
    }
}

fn store(folder: &Path, lots: &[WriteBatch]) {
    let raw: Vec<Vec<u8>> = lots
        .iter()
        .map(|lot| lot.samples.iter().flat_map(|sample| sample.payload.to_vec()).collect())
        .collect();
    let path = folder.join("raw");
    let mut file = File::create(&path).expect("a file");
    each("write + fsync (limit)", lots, |number, _| {
        file.write_all(&raw[number]).and_then(|()| file.sync_all()).expect("a disk");
    });
    let parquet = ParquetBuffer::open(folder.join("lots.parquet")).expect("a folder");
    let lines = JsonlBuffer::open(folder.join("lots.jsonl")).expect("a file");
    for (name, buffer) in [("Parquet", &parquet as &dyn Buffer), ("JSON lines", &lines)] {
        let mut writer = buffer.writer("bench").expect("a writer");
        each(&format!("{name}, write"), lots, |_, lot| {
            writer.write(lot).expect("a disk");
        });
        each(&format!("{name}, write what is known"), lots, |_, lot| {
            writer.write(lot).expect("a disk");
        });
        writer.close().expect("a disk");
        let mut reader = buffer.reader("bench").expect("a reader");
        let ask =
            ReadRequest { count: LOT, timeout: Duration::ZERO, min_model_version: 0, keep: false };
        each(&format!("{name}, read"), lots, |_, _| {
            let taken = reader.read(&ask).expect("a disk");
            assert_eq!(taken.end, ReadEnd::Full);
        });
    }
    let size = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
    let files = fs::read_dir(folder.join("lots.parquet")).expect("a folder");
    let parquet: u64 = files.map(|file| size(&file.expect("a file").path())).sum();
    let lines = size(&folder.join("lots.jsonl"));
    println!("{:36} payloads {}, Parquet {parquet}, JSON lines {lines}", "bytes", size(&path));
}

/// Prints the median of the lots.
fn each(name: &str, lots: &[WriteBatch], mut work: impl FnMut(usize, &WriteBatch)) {
    let mut times: Vec<Duration> = lots
        .iter()
        .enumerate()
        .map(|(number, lot)| {
            let begin = Instant::now();
            work(number, lot);
            begin.elapsed()
        })
        .collect();
    times.sort();
    let (best, median) = (times[0], times[times.len() / 2]);
    let rate = |time: Duration| LOT as f64 / time.as_secs_f64();
    println!(
        "{name:36} best {:8} us, median {:8} us: {:9.0} experiences/s",
        best.as_micros(),
        median.as_micros(),
        rate(median)
    );
}

fn convert<R>(name: &str, bytes: usize, mut work: impl FnMut() -> R) {
    let mut times: Vec<Duration> = (0..50)
        .map(|_| {
            let begin = Instant::now();
            let result = black_box(work());
            let time = begin.elapsed();
            drop(result);
            time
        })
        .collect();
    times.sort();
    let rate = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e6;
    let (best, median) = (times[0], times[times.len() / 2]);
    println!(
        "{name:36} best {:8} us, {:7.0} MB/s, median {:7.0} MB/s",
        best.as_micros(),
        rate(best),
        rate(median)
    );
}

fn lot(number: usize, tokens: usize) -> WriteBatch {
    let sample = |row| Sample::new(&experience(number, row, tokens)).expect("a payload");
    WriteBatch { key: format!("bench/{number}").into(), samples: (0..LOT).map(sample).collect() }
}

fn experience(number: usize, row: usize, tokens: usize) -> Experience {
    let mut random = (number * LOT + row) as u32;
    let mut next = || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        random >> 8
    };
    let prompt = tokens / 4;
    Experience::new(ExperienceFields {
        eid: Eid {
            batch: (number as i64).into(),
            task: (row as i64 / 8).into(),
            run: row as u64 % 8,
            ..Eid::default()
        },
        tokens: (0..tokens).map(|_| (next() % 150_000) as i32).collect(),
        prompt_length: prompt,
        logprobs: Some((prompt..tokens).map(|_| -(next() as f32) / 1e6).collect()),
        action_mask: Some((prompt..tokens).map(|position| position % 7 != 0).collect()),
        reward: Some(f64::from(next() % 2)),
        info: Json::new(r#"{"model_version":7,"use_count":0,"task_index":{"index":3}}"#)
            .expect("JSON"),
        metrics: [("accuracy".to_owned(), 0.5)].into(),
        response_text: Some("word ".repeat(tokens / 2)),
        ..ExperienceFields::default()
    })
    .expect("fields that keep to the rules")
}
