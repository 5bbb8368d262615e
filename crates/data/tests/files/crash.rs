//! Writers that die, disks that are full, writers side by side: nothing lost, nothing doubled.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rollway_data::WriteBatch;
use rollway_data::buffer::BufferError;
use rollway_testkit::child_test;

use crate::support::{Kind, everything, lot, now, samples};

/// What a child is told: kind, folder, writer, first lot, end of lots, growth of tokens.
const TASK: &str = "ROLLWAY_TEST_FILES";

/// Writes lots and tells which were acknowledged. It does nothing unless it is told to.
#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    let parts: Vec<&str> = task.split('|').collect();
    let [kind, folder, writer, first, end, growth] = parts[..] else { panic!("{task}") };
    let kind = if kind == "Parquet" { Kind::Parquet } else { Kind::JsonLines };
    let growth: usize = growth.parse().unwrap();
    let mut writer = kind.open(Path::new(folder)).writer(writer).unwrap();
    for number in number(first)..number(end) {
        match writer.write(&lot(number, 20 + number * growth)) {
            Ok(_) => println!("\nwritten {number}"),
            Err(BufferError::Full { .. }) => {
                println!("\nfull {number}");
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn number(text: &str) -> usize {
    text.parse().unwrap()
}

fn task(
    kind: Kind,
    folder: &Path,
    writer: &str,
    first: usize,
    end: usize,
    growth: usize,
) -> String {
    format!("{kind:?}|{}|{writer}|{first}|{end}|{growth}", folder.display())
}

fn start(task: String) -> Child {
    child_test("crash::child", TASK, task).spawn().unwrap()
}

#[test]
fn a_killed_writer_loses_nothing_and_doubles_nothing() {
    const KILLS: u32 = 10;
    for kind in Kind::BOTH {
        let folder = tempfile::tempdir().unwrap();
        let lots =
            |end: usize| -> Vec<WriteBatch> { (0..end).map(|at| lot(at, 20 + at * 100)).collect() };
        let mut acknowledged = 0;
        for kill in 0..KILLS {
            let part = f64::from(kill) / f64::from(KILLS);
            acknowledged = write_and_die(kind, folder.path(), acknowledged, part);
            let there = now(&mut *kind.open(folder.path()).reader("r").unwrap(), usize::MAX);
            // The lot after the last may have been stored without our hearing of it.
            let heard = samples(&lots(acknowledged));
            let whole = there.samples == heard || there.samples == samples(&lots(acknowledged + 1));
            assert!(whole, "{kind:?}: {} of {}", there.samples.len(), heard.len());
        }
        let lots = lots(acknowledged + 2);
        let buffer = kind.open(folder.path());
        let mut writer = buffer.writer("w").unwrap();
        lots.iter().for_each(|lot| drop(writer.write(lot).unwrap()));
        writer.close().unwrap();
        assert_eq!(everything(&*buffer), samples(&lots), "{kind:?}");
    }
}

/// Lets a child write some lots more, and kills it when a part of the next may be written. Returns
/// how many were acknowledged.
fn write_and_die(kind: Kind, folder: &Path, mut acknowledged: usize, part: f64) -> usize {
    // What was written last is written again.
    let first = acknowledged.saturating_sub(2);
    let mut child = start(task(kind, folder, "w", first, usize::MAX, 100));
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut written = lines.filter_map(|line| Some(number(line.strip_prefix("written ")?) + 1));
    let until = acknowledged + 2;
    let mut last = Instant::now();
    let mut between = Duration::ZERO;
    while acknowledged < until {
        acknowledged = acknowledged.max(written.next().unwrap());
        between = last.elapsed();
        last = Instant::now();
    }
    // The next lot takes about as long as the last.
    while last.elapsed() < between.mul_f64(part) {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    written.fold(acknowledged, usize::max)
}

#[test]
fn a_full_disk_is_an_error_after_which_it_goes_on() {
    for kind in Kind::BOTH {
        let folder = tempfile::tempdir().unwrap();
        // No file may grow beyond 512 or 1024 KiB, whichever the shell counts in.
        let mut shell = Command::new("sh");
        let script = r#"trap "" XFSZ; ulimit -f 1024; exec "$0" "$@""#;
        let task = task(kind, folder.path(), "w", 0, 100, 8_000);
        let child = child_test("crash::child", TASK, &task);
        shell.args(["-c", script]).arg(child.get_program()).args(child.get_args());
        let mut child = shell.env(TASK, task).stdout(Stdio::piped()).spawn().unwrap();
        let mut told = String::new();
        child.stdout.take().unwrap().read_to_string(&mut told).unwrap();
        assert!(child.wait().unwrap().success(), "{told}");
        let full = told.lines().find_map(|line| line.strip_prefix("full ")).map(number).unwrap();
        assert!(full > 0, "{told}");

        let lots: Vec<WriteBatch> =
            (0..=full).map(|number| lot(number, 20 + number * 8_000)).collect();
        let buffer = kind.open(folder.path());
        let there = now(&mut *buffer.reader("r").unwrap(), usize::MAX).samples;
        assert_eq!(there.len(), samples(&lots[..full]).len(), "{kind:?}");
        let mut writer = buffer.writer("w").unwrap();
        lots.iter().for_each(|lot| drop(writer.write(lot).unwrap()));
        writer.close().unwrap();
        assert_eq!(everything(&*buffer), samples(&lots), "{kind:?}");
    }
}

#[test]
fn writers_in_several_processes_do_not_disturb_each_other() {
    for kind in Kind::BOTH {
        let folder = tempfile::tempdir().unwrap();
        // Both bring lots 5 to 9.
        let mut children = [("a", 0, 10), ("b", 5, 15)]
            .map(|(writer, first, end)| start(task(kind, folder.path(), writer, first, end, 10)));
        for child in &mut children {
            std::io::copy(&mut child.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
            assert!(child.wait().unwrap().success());
        }
        let buffer = kind.open(folder.path());
        for writer in ["a", "b"] {
            buffer.writer(writer).unwrap().close().unwrap();
        }
        let mut there = everything(&*buffer);
        let mut all =
            samples(&(0..15).map(|number| lot(number, 20 + number * 10)).collect::<Vec<_>>());
        there.sort_by(|a, b| a.id.cmp(&b.id));
        all.sort_by(|a, b| a.id.cmp(&b.id));
        assert_eq!(there, all, "{kind:?}");
    }
}
