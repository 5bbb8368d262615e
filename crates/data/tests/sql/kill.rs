//! A writing process that is killed at arbitrary moments, and started again.

use std::env;
use std::io::{BufRead, BufReader, Write};

use rollway_testkit::child_test;

use crate::bed::{Bed, lot, numbers, open, take};

const CHILD: &str = "ROLLWAY_TEST_SQL_CHILD";
const KILLS: u64 = 10;
const PER_LOT: u64 = 20;

#[test]
fn a_killed_writer_loses_and_doubles_nothing() {
    for bed in Bed::both("killed") {
        drop(bed.open());
        let mut acknowledged = 0;
        for kill in 0..KILLS {
            acknowledged = write_until_killed(&bed, acknowledged, kill);
        }
        // The next life does not know how far the last one came, and writes everything again.
        let buffer = bed.open();
        let mut writer = buffer.writer("w").unwrap();
        let total = acknowledged + 5;
        for number in 0..total {
            let written = writer.write(&numbered(number)).unwrap();
            let whole = (written.stored as u64, written.known as u64);
            assert!(whole == (PER_LOT, 0) || whole == (0, PER_LOT), "{written:?}");
            assert!(number >= acknowledged || written.stored == 0, "lot {number} was lost");
        }
        writer.close().unwrap();
        let taken = take(&mut *buffer.reader("r").unwrap(), usize::MAX >> 1);
        assert_eq!(numbers(&taken), (0..total * PER_LOT).collect::<Vec<_>>());
    }
}

/// Starts a child that goes on from a lot, kills it and returns how many lots it said were stored.
fn write_until_killed(bed: &Bed, from: u64, kill: u64) -> u64 {
    let told = format!("{from} {} {}", bed.table, bed.address);
    let child = child_test("kill::child", CHILD, told).spawn();
    let mut child = child.expect("this program starts again");
    let lines =
        BufReader::new(child.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    let mut stored = lines.filter_map(|line| line.strip_prefix("stored ")?.parse::<u64>().ok());
    // Moments that differ: after some lots, and somewhere within the next.
    let enough = from + kill * 7 % 5;
    let last = stored.find(|number| *number >= enough).unwrap_or(from);
    let spin = kill * 7919 % 10 * 40_000;
    std::hint::black_box((0..spin).map(std::hint::black_box).sum::<u64>());
    child.kill().expect("the child lives");
    child.wait().expect("it is our child");
    // What it said while it was being killed counts as well.
    stored.last().unwrap_or(last)
}

/// Not a test of its own: what the child does.
#[test]
fn child() {
    let Ok(told) = env::var(CHILD) else {
        return;
    };
    let told: Vec<&str> = told.splitn(3, ' ').collect();
    let bed = Bed::at(told[2].into(), told[1]);
    let mut writer = open(&bed.address, bed.options()).unwrap().writer("w").unwrap();
    let mut out = std::io::stdout();
    for number in told[0].parse().unwrap().. {
        writer.write(&numbered(number)).unwrap();
        writeln!(out, "stored {}", number + 1).unwrap();
    }
}

fn numbered(number: u64) -> rollway_data::WriteBatch {
    lot(number * PER_LOT..(number + 1) * PER_LOT)
}
