//! The log: committed frames survive, damage is detected.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use rollway_ledger::log::{FramePart, LogError, LogOptions, LogPosition, SegmentLog, TornTail};

type Opened = Result<(SegmentLog, Option<TornTail>, Vec<(LogPosition, Vec<u8>)>), LogError>;

fn options() -> LogOptions {
    LogOptions { segment_bytes: 300, ..LogOptions::new("test", "me") }
}

fn open(dir: &Path) -> Opened {
    let mut frames = Vec::new();
    let mut visit = |position, bytes: &[u8]| frames.push((position, bytes.to_vec()));
    let (log, torn) = SegmentLog::open(dir, options(), &mut visit)?;
    Ok((log, torn, frames))
}

fn error(dir: &Path) -> String {
    open(dir).map(|_| ()).unwrap_err().to_string()
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "log")).collect();
    paths.sort();
    paths
}

/// Returns the length of the header and the base that a segment states.
fn header(path: &Path) -> (u64, u64) {
    let bytes = fs::read(path).unwrap();
    let length = u32::from_le_bytes(bytes[12..16].try_into().unwrap());
    (length.into(), u64::from_le_bytes(bytes[24..32].try_into().unwrap()))
}

/// Leaves the files as a crash would that happened after writing up to an offset, and before the
/// end was recorded.
fn crash(dir: &Path, offset: u64, filled: bool) {
    fs::remove_file(dir.join("end")).unwrap();
    for path in segments(dir) {
        let (header, base) = header(&path);
        if base > offset {
            fs::remove_file(path).unwrap();
            continue;
        }
        let file = fs::File::options().write(true).open(path).unwrap();
        let (length, keep) = (file.metadata().unwrap().len(), header + offset - base);
        if keep < length {
            file.set_len(keep).unwrap();
            if filled {
                file.set_len(length).unwrap();
            }
        }
    }
}

fn append(log: &SegmentLog, bytes: &[u8], share: bool) -> LogPosition {
    let (a, b) = bytes.split_at(bytes.len() / 3);
    let shared = Bytes::copy_from_slice(b);
    let b = if share { FramePart::Share(&shared) } else { FramePart::Copy(b) };
    log.append(&[FramePart::Copy(a), b]).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Append(Vec<u8>, bool),
    Commit,
    Rotate,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![
        8 => vec(any::<u8>(), 0..100),
        1 => (16_000..40_000usize).prop_map(|length| vec![7; length]),
    ];
    let step = prop_oneof![
        6 => (bytes, any::<bool>()).prop_map(|(bytes, share)| Step::Append(bytes, share)),
        2 => Just(Step::Commit),
        1 => Just(Step::Rotate),
    ];
    vec(step, 0..25)
}

/// Applies the steps; returns the frames and the end of the committed ones.
fn run(log: &SegmentLog, steps: &[Step]) -> (Vec<(LogPosition, Vec<u8>)>, u64) {
    let (mut frames, mut committed) = (Vec::new(), log.end());
    for step in steps {
        match step {
            Step::Append(bytes, share) => {
                frames.push((append(log, bytes, *share), bytes.clone()));
            }
            Step::Commit => {
                log.sync().unwrap();
                committed = log.end();
            }
            Step::Rotate => log.rotate(),
        }
    }
    (frames, committed)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_crash_at_any_byte_loses_nothing_that_was_committed(
        before in steps(),
        after in steps(),
        at in any::<prop::sample::Index>(),
        filled in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (log, _, _) = open(dir.path()).unwrap();
        let (mut frames, committed) = run(&log, &before);
        let end = log.end();
        drop(log);
        let cut = committed + at.index((end - committed + 1) as usize) as u64;
        crash(dir.path(), cut, filled);

        let (log, torn, found) = open(dir.path()).unwrap();
        frames.retain(|(position, _)| position.end() <= cut);
        prop_assert_eq!(&found, &frames);
        let end = frames.last().map_or(0, |frame| frame.0.end());
        prop_assert!(filled || torn.is_some() == (end < cut));
        for (position, bytes) in &frames {
            prop_assert_eq!(&log.read(*position).unwrap(), bytes);
        }
        let (more, _) = run(&log, &after);
        frames.extend(more);
        log.sync().unwrap();
        let mut each = Vec::new();
        log.each(0, &mut |position, bytes| each.push((position, bytes.to_vec()))).unwrap();
        prop_assert_eq!(&each, &frames);
        drop(log);
        let (_, torn, found) = open(dir.path()).unwrap();
        prop_assert_eq!((found, torn), (frames, None));
    }

    /// A flipped bit is never mistaken for a torn tail.
    #[test]
    fn flipped_bits_are_noticed(
        steps in steps(),
        file in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        bit in 0..8u32,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (log, _, _) = open(dir.path()).unwrap();
        run(&log, &steps);
        drop(log);
        let mut files = segments(dir.path());
        files.push(dir.path().join("start"));
        let path = &files[file.index(files.len())];
        let mut bytes = fs::read(path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        fs::write(path, bytes).unwrap();
        prop_assert!(open(dir.path()).is_err());
    }
}

#[test]
fn a_bad_frame_is_damage_wherever_it_stands_and_a_cut_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _, _) = open(dir.path()).unwrap();
    let positions = [b"one", b"two", b"end"].map(|bytes| append(&log, bytes, false));
    drop(log);
    let path = &segments(dir.path())[0];
    let whole = fs::read(path).unwrap();
    let (header, _) = header(path);
    for position in positions {
        // A byte of the length, one of the body, and the one that ends the frame.
        for at in [position.offset, position.end() - 2, position.end() - 1]
            .map(|at| (header + at) as usize)
        {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(path, bytes).unwrap();
            let error = error(dir.path());
            let place = format!("is damaged at byte {}: the ", header + position.offset);
            assert!(error.contains(&place) && error.contains("restore the file"), "{error}");
            assert_eq!(error.contains("valid ones follow"), position != positions[2], "{error}");
        }
    }
    fs::write(path, &whole[..whole.len() - 1]).unwrap();
    fs::remove_file(dir.path().join("end")).unwrap();
    let (_, torn, frames) = open(dir.path()).unwrap();
    let at = header + positions[2].offset;
    assert_eq!(torn, Some(TornTail { path: path.clone(), at, bytes: 15 }));
    assert_eq!(frames.len(), 2);
}

#[test]
fn missing_acknowledged_frames_are_noticed_wherever_the_log_was_cut() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _, _) = open(dir.path()).unwrap();
    let positions = [b"one", b"two", b"end"].map(|bytes| append(&log, bytes, false));
    log.rotate();
    let last = append(&log, b"last", false);
    drop(log);
    let record = dir.path().join("end");
    let recorded = fs::read(&record).unwrap();
    for cut in [last.end() - 1, last.offset, positions[2].offset, 0] {
        crash(dir.path(), cut, false);
        fs::write(&record, &recorded).unwrap();
        let files: Vec<_> =
            segments(dir.path()).iter().map(|path| fs::read(path).unwrap()).collect();
        let error = error(dir.path());
        assert!(error.contains(&format!("up to {} was acknowledged", last.end())), "{error}");
        assert!(error.contains(&format!("remove {} to go on", record.display())), "{error}");
        let after: Vec<_> =
            segments(dir.path()).iter().map(|path| fs::read(path).unwrap()).collect();
        assert_eq!(files, after, "nothing was changed");
    }
    // The remedy of the message.
    fs::remove_file(&record).unwrap();
    assert_eq!(open(dir.path()).unwrap().2, []);
}

#[test]
fn frames_inside_of_payloads_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _, _) = open(dir.path()).unwrap();
    append(&log, b"inner", false);
    drop(log);
    let inner = fs::read(&segments(dir.path())[0]).unwrap();
    let (log, _, _) = open(dir.path()).unwrap();
    let outer = append(&log, &inner, false);
    drop(log);
    crash(dir.path(), outer.end() - 1, false);
    let (_, torn, frames) = open(dir.path()).unwrap();
    assert!(torn.is_some() && frames.len() == 1);
}

#[test]
fn a_log_is_opened_by_one_and_by_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _, _) = open(dir.path()).unwrap();
    let holder = format!("in use by process {}", std::process::id());
    assert!(error(dir.path()).contains(&holder));
    drop(log);
    for (other, expected) in [
        (LogOptions::new("queue", "me"), "has the kind \"test\", not \"queue\""),
        (LogOptions::new("test", "you"), "has the identity \"me\", not \"you\""),
    ] {
        let error = SegmentLog::open(dir.path(), other, &mut |_, _| {}).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    drop(open(dir.path()).unwrap());
}

#[test]
fn foreign_missing_and_newer_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _, _) = open(dir.path()).unwrap();
    for _ in 0..3 {
        append(&log, b"x", false);
        log.rotate();
    }
    drop(log);
    let notes = dir.path().join("notes.txt");
    fs::write(&notes, "mine").unwrap();
    assert!(error(dir.path()).contains("notes.txt is not part of a Rollway log"));
    fs::remove_file(notes).unwrap();

    let files = segments(dir.path());
    assert_eq!(files.len(), 4);
    for path in &files[..2] {
        let away = dir.path().with_extension("away");
        fs::rename(path, &away).unwrap();
        let missing = format!("{} is missing", path.display());
        assert!(error(dir.path()).contains(&missing));
        fs::rename(away, path).unwrap();
    }
    let whole = fs::read(&files[1]).unwrap();
    let mut newer = whole.clone();
    newer[8] = 2;
    fs::write(&files[1], newer).unwrap();
    assert!(error(dir.path()).contains("has format version 2"));
    fs::write(&files[1], "short").unwrap();
    assert!(error(dir.path()).contains("is not part of a Rollway log"));
    fs::write(&files[1], fs::read(&files[2]).unwrap()).unwrap();
    assert!(error(dir.path()).contains("header has the number 3"));
    fs::write(&files[1], whole).unwrap();
    assert_eq!(open(dir.path()).unwrap().2.len(), 3);
    files.iter().for_each(|path| fs::remove_file(path).unwrap());
    assert!(error(dir.path()).contains("is missing"), "it must not begin from zero");
}

#[test]
fn segments_are_removed_whole_and_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _, _) = open(dir.path()).unwrap();
    let mut positions = Vec::new();
    for _ in 0..4 {
        positions.push(append(&log, b"x", false));
        log.rotate();
    }
    assert_eq!(log.remove_before(u64::MAX).unwrap(), 0, "nothing is durable");
    log.sync().unwrap();
    assert_eq!(log.remove_before(positions[2].offset + 1).unwrap(), 2);
    assert_eq!(log.first(), positions[2].offset);
    assert!(matches!(log.read(positions[1]), Err(LogError::NotThere { .. })));
    assert_eq!(log.read(positions[2]).unwrap(), "x");
    drop(log);
    // As if the process had died before it had removed this one.
    fs::copy(&segments(dir.path())[0], dir.path().join("00000000000000000001.log")).unwrap();
    let (log, _, frames) = open(dir.path()).unwrap();
    assert_eq!(frames.iter().map(|frame| frame.0).collect::<Vec<_>>(), positions[2..]);
    assert_eq!(log.end(), positions[3].end());
}

#[test]
fn frames_are_limited_and_a_log_reports_being_behind() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions { frame_bytes_max: 10, unsynced_bytes: 40, ..options() };
    let (log, _) = SegmentLog::open(dir.path(), options, &mut |_, _| {}).unwrap();
    let error = log.append(&[FramePart::Copy(&[0; 11])]).unwrap_err();
    assert!(matches!(error, LogError::TooLarge { bytes: 11, max: 10 }));
    append(&log, &[0; 10], false);
    assert!(!log.is_behind());
    append(&log, &[0; 10], false);
    assert!(log.is_behind());
    log.sync().unwrap();
    assert!(!log.is_behind());
}
