//! A stop while the buffer is full.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rollway::explorer::{ExploreSummary, Explorer, WaitReason};
use rollway_data::buffer::{Buffer, ReadRequest};
use rollway_experience::IdPart;
use tokio::task::JoinHandle;

use crate::waits::{NO_TRAINER, wait_of_kind};
use crate::world::{EventLog, World};

/// A queue with room for one step, which a writer waits for longer than a test may take.
const FULL_QUEUE: [&str; 2] = [
    "buffer.total_steps=2",
    "buffer.trainer_input.experience_buffer={storage_type: queue, path: null, capacity: 1, \
     max_write_timeout: 36000}",
];

/// Bound of a stop and of a read, far above the time that they take.
const TIMEOUT: Duration = Duration::from_secs(60);

fn explore(mut explorer: Explorer) -> JoinHandle<ExploreSummary> {
    tokio::spawn(async move {
        let explored = explorer.explore().await.unwrap();
        explorer.shutdown().await.unwrap();
        explored
    })
}

/// Reads a number of experiences and counts them by step.
fn read(buffer: &Arc<dyn Buffer>, count: usize) -> BTreeMap<u64, usize> {
    let mut reader = buffer.reader("test").unwrap();
    let request = ReadRequest { count, timeout: TIMEOUT, min_model_version: 0, keep: false };
    let mut steps = BTreeMap::new();
    // A read acknowledges the one before, which makes room.
    for _ in 0..count {
        let request = ReadRequest { count: 1, ..request.clone() };
        for sample in reader.read(&request).unwrap().samples {
            let IdPart::Number(step) = sample.decode().unwrap().eid.batch else {
                panic!("a batch that is not a step")
            };
            *steps.entry(step.try_into().unwrap()).or_default() += 1;
        }
    }
    steps
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_ends_the_wait_of_a_delivery_for_room_and_the_next_process_delivers() {
    let world = World::new();
    let overrides = [&NO_TRAINER[..], &FULL_QUEUE].concat();
    let explorer = world.prepare(&overrides, &EventLog::default()).await;
    let (stats, stop) = (explorer.live_stats(), explorer.stopper());
    let exploring = explore(explorer);
    let wait = wait_of_kind(&stats, "reader").await;
    assert_eq!(wait.reason, WaitReason::Reader { batch: 2.into(), unread: 6 });
    stop.stop();
    let explored = tokio::time::timeout(TIMEOUT, exploring).await.expect("the stop ends").unwrap();
    assert_eq!((explored.stopped, explored.steps), (true, 1));

    let explorer = world.prepare(&overrides, &EventLog::default()).await;
    let buffer = explorer.buffer().unwrap();
    let exploring = explore(explorer);
    let reading = tokio::task::spawn_blocking(move || read(&buffer, 12));
    assert_eq!(reading.await.unwrap(), BTreeMap::from([(1, 6), (2, 6)]));
    let explored = exploring.await.unwrap();
    assert_eq!((explored.stopped, explored.steps), (false, 2));
}
