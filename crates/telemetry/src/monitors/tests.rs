//! Event files, read by an independent reader of the format.

use std::path::Path;

use super::tensorboard_writer::EventLog;
use super::*;

/// Step, name, value.
type Number = (i64, String, f32);

/// Reads complete records; returns them and the number of bytes after the last.
fn records(mut bytes: &[u8]) -> (Vec<Vec<u8>>, usize) {
    // CRC-32C by its definition, bit by bit.
    let crc = |bytes: &[u8]| {
        let mut sum = u32::MAX;
        for bit in bytes.iter().flat_map(|byte| (0..8).map(move |at| byte >> at & 1)) {
            let carry = (sum & 1) ^ u32::from(bit);
            sum = (sum >> 1) ^ (0x1edc_6f41_u32.reverse_bits() * carry);
        }
        !sum
    };
    let is_right = |bytes: &[u8], mask: &[u8]| {
        let sum = crc(bytes);
        let turned = ((u64::from(sum) << 17 | u64::from(sum) >> 15) & 0xffff_ffff) + 0xa282_ead8;
        mask == &turned.to_le_bytes()[..4]
    };
    let mut records = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(12) {
        assert!(is_right(&head[..8], &head[8..]), "the checksum of a length");
        let length = u64::from_le_bytes(head[..8].try_into().unwrap()) as usize;
        let Some((body, rest)) = rest.split_at_checked(length + 4) else { break };
        assert!(is_right(&body[..length], &body[length..]), "the checksum of a record");
        records.push(body[..length].to_vec());
        bytes = rest;
    }
    (records, bytes.len())
}

/// Splits a message into fields: number, and either bits or bytes.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let end = bytes.iter().position(|byte| *byte < 0x80).unwrap();
        let (head, rest) = bytes.split_at(end + 1);
        *bytes = rest;
        head.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let (number, length) = match key & 7 {
            0 => (varint(&mut bytes), 0),
            1 => (u64::from_le_bytes(bytes[..8].try_into().unwrap()), 8),
            2 => (0, varint(&mut bytes) as usize),
            5 => (u32::from_le_bytes(bytes[..4].try_into().unwrap()).into(), 4),
            kind => panic!("a field of kind {kind}"),
        };
        let (content, rest) = bytes.split_at(length);
        fields.push((key >> 3, number, content.to_vec()));
        bytes = rest;
    }
    fields
}

/// Reads all numbers, and the steps at which sessions began.
fn read(folder: &Path) -> (Vec<Number>, Vec<i64>) {
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let (mut numbers, mut sessions) = (Vec::new(), Vec::new());
    for file in files {
        let (records, torn) = records(&std::fs::read(file).unwrap());
        assert_eq!(torn, 0);
        let version = fields(&records[0]).into_iter().find(|(field, ..)| *field == 3);
        assert_eq!(version.unwrap().2, b"brain.Event:2");
        for record in &records[1..] {
            let fields_ = fields(record);
            let get = |wanted| fields_.iter().find(|(field, ..)| *field == wanted);
            let step = get(2).map_or(0, |(_, step, _)| *step as i64);
            if get(7).is_some() {
                sessions.push(step);
            }
            let Some((.., summary)) = get(5) else { continue };
            for (_, _, value) in fields(summary) {
                let value = fields(&value);
                let (.., tag) = value.iter().find(|(field, ..)| *field == 1).unwrap();
                let tag = String::from_utf8(tag.clone()).unwrap();
                if let Some((_, bits, _)) = value.iter().find(|(field, ..)| *field == 2) {
                    numbers.push((step, tag, f32::from_bits(*bits as u32)));
                }
            }
        }
    }
    (numbers, sessions)
}

fn config(folder: &Path) -> Config {
    let mut config = Config::default();
    config.checkpoint_root_dir = folder.display().to_string();
    config
}

fn open(config: &Config) -> Option<TensorboardMonitor> {
    TensorboardMonitor::open(config, &DropCounters::default()).unwrap()
}

fn metrics(numbers: &[(&str, f64)]) -> Metrics {
    numbers.iter().copied().collect()
}

fn trained(step: u64, value: f64) -> JobEvent {
    JobEvent::Trained { step, metrics: metrics(&[("trainer/loss", value), ("trainer/zero", 0.0)]) }
}

fn began(done_steps: u64) -> JobEvent {
    JobEvent::Began {
        mode: Mode::Both,
        job_dir: PathBuf::new(),
        done_steps,
        total_steps: Some(9),
        tasks_per_step: 1,
        runners: 1,
    }
}

#[test]
fn metrics_are_in_the_files_of_their_role_and_each_process_writes_its_own_file() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let curves = super::folder(&config).unwrap();
    let mut expected = Vec::new();
    for process in 0..3 {
        let monitor = open(&config).unwrap();
        monitor.on_event(&began(process));
        for step in process * 10..process * 10 + 10 {
            let value = 1.0 / (step + 1) as f64;
            monitor.on_event(&trained(step, value));
            expected.push((step as i64, "trainer/loss".to_owned(), value as f32));
            expected.push((step as i64, "trainer/zero".to_owned(), 0.0));
        }
    }
    let (numbers, sessions) = read(&curves.join(&config.trainer.name));
    assert_eq!((numbers, sessions.as_slice()), (expected, [].as_slice()));
    let (numbers, sessions) = read(&curves.join(&config.explorer.name));
    assert_eq!((numbers, sessions.as_slice()), (vec![], [1, 2, 3].as_slice()));
    let files = std::fs::read_dir(curves.join(&config.trainer.name)).unwrap().count();
    assert_eq!(files, 3);
}

#[test]
fn a_truncated_file_keeps_its_complete_records() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::new(folder.path().to_owned());
    for step in 0..3 {
        log.add(0.0, step, tensorboard_proto::EventKind::numbers([("a", 1.0)].into_iter()));
    }
    log.flush();
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let bytes = std::fs::read(file).unwrap();
    let (whole, torn) = records(&bytes);
    assert_eq!((whole.len(), torn), (4, 0));
    for cut in 0..bytes.len() {
        let (some, torn) = records(&bytes[..cut]);
        assert_eq!(some, whole[..some.len()]);
        assert_eq!(some.iter().map(|record| record.len() + 16).sum::<usize>() + torn, cut);
    }
}

#[test]
fn no_files_are_written_without_tensorboard() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.monitor.monitor_type = vec![MonitorType::None];
    assert!(open(&config).is_none());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// A file in place of the folder makes writes fail.
#[test]
fn failed_writes_are_retried() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("curves");
    std::fs::write(&place, "").unwrap();
    let mut log = EventLog::new(place.clone());
    let add = |log: &mut EventLog, step| {
        log.add(0.0, step, tensorboard_proto::EventKind::numbers([("a", 1.0)].into_iter()));
        log.flush();
    };
    add(&mut log, 1);
    add(&mut log, 2);
    assert!(!log.waiting.is_empty());
    std::fs::remove_file(&place).unwrap();
    add(&mut log, 3);
    assert!(log.waiting.is_empty());
    let steps: Vec<i64> = read(&place).0.into_iter().map(|(step, ..)| step).collect();
    assert_eq!(steps, [1, 2, 3]);
}

#[test]
fn messages_beyond_the_queue_capacity_are_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let [explorer, trainer] = ["explorer", "trainer"].map(|name| folder.path().join(name));
    let drops = DropCounters::default();
    let writer = EventWriter::new(explorer, trainer, String::new(), &drops);
    let (queue, receiver, end) = MonitorQueue::new("tensorboard", &drops);
    let monitor = TensorboardMonitor(queue);
    // The thread does not run yet.
    for step in 0..QUEUE_CAPACITY as u64 + 7 {
        monitor.on_event(&trained(step, 1.0));
    }
    assert_eq!(drops.read()["tensorboard"], 7);
    end.send(()).unwrap();
    drop(monitor);
    writer.write(&receiver);
    assert_eq!(read(&folder.path().join("trainer")).0.len(), 2 * QUEUE_CAPACITY);
}
