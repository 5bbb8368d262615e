//! Many messages, large messages, heartbeats, threads.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use rollway_core::metrics::Metrics;
use rollway_core::{AttemptId, Incarnation, RunId, RunOutput, RunnerId};
use rollway_protocol::worker_server::{WorkerServer, WorkerServerEvent, WorkerServerLimits};
use rollway_protocol::{EngineMessage, RunnerHeartbeat, WorkerMessage, WorkerReport};

use crate::common::*;

fn finished(number: u64, payload: Option<Bytes>) -> WorkerMessage {
    let metrics: Metrics = [("reward", 1.0)].into_iter().collect();
    let outcome = Ok(RunOutput { payload, metrics });
    let report = WorkerReport::RunFinished { attempt: AttemptId(number), run: RunId(0), outcome };
    WorkerMessage::Runner { runner: RunnerId(0), incarnation: Incarnation(1), report }
}

fn number(message: &WorkerMessage) -> u64 {
    match message {
        WorkerMessage::Runner { report: WorkerReport::RunFinished { attempt, .. }, .. } => {
            attempt.0
        }
        other => panic!("{other:?}"),
    }
}

/// Four workers send 25,000 messages each; a slower engine receives each worker's in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_messages_arrive_in_order() {
    const WORKERS: usize = 4;
    const EACH: u64 = 25_000;
    let (_dir, address) = unix();
    let mut server =
        listen(address, WorkerServerLimits { events: 256, ..Default::default() }).await;
    let mut pairs = Vec::new();
    for _ in 0..WORKERS {
        pairs.push(join(&mut server, None).await);
    }
    let (_connections, workers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let _sending: Vec<_> = workers
        .into_iter()
        .map(|connected| {
            tokio::spawn(async move {
                for n in 0..EACH {
                    connected.sender.send(finished(n, None)).await.unwrap();
                }
                connected
            })
        })
        .collect();
    let mut next = BTreeMap::new();
    let mut events = Vec::new();
    let mut received = 0;
    while received < WORKERS as u64 * EACH {
        received += soon("events", server.recv_many(&mut events, 1000)).await as u64;
        for event in events.drain(..) {
            let WorkerServerEvent::Message { conn, message } = event else { panic!("{event:?}") };
            let expected = next.entry(conn).or_insert(0);
            assert_eq!(number(&message), *expected);
            *expected += 1;
        }
    }
    assert!(next.values().all(|count| *count == EACH));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_arrive_in_order_and_in_batches() {
    const COMMANDS: u64 = 50_000;
    let (_dir, address) = unix();
    let limits = WorkerServerLimits { outgoing: COMMANDS as usize + 2, ..Default::default() };
    let mut server = listen(address, limits).await;
    let (connection, mut connected) = join(&mut server, None).await;
    let definition = definition(1);
    for n in 0..COMMANDS {
        connection.send(EngineMessage::StartAttempt(attempt(n, &definition))).unwrap();
    }
    let (mut commands, mut wakes) = (Vec::new(), 0);
    while (commands.len() as u64) < COMMANDS {
        soon("commands", connected.receiver.recv_many(&mut commands, 512)).await.unwrap();
        wakes += 1;
    }
    let numbers = commands.iter().map(|command| match command {
        EngineMessage::StartAttempt(start) => start.attempt.0,
        other => panic!("{other:?}"),
    });
    assert!(numbers.eq(0..COMMANDS));
    assert!(wakes < COMMANDS / 8, "{wakes} wakes");
}

/// Large payloads wait for budget in worker and engine, and all arrive.
#[tokio::test]
async fn large_payloads_pass_through_small_budgets() {
    const LARGE: usize = 1_000_000;
    let limits = WorkerServerLimits { event_bytes: LARGE / 2, ..Default::default() };
    let mut server = loopback(limits).await;
    let (_connection, connected) = join(&mut server, None).await;
    let sender = connected.sender.clone();
    let sending = tokio::spawn(async move {
        for n in 0..20 {
            let payload = Bytes::from(vec![u8::try_from(n).unwrap(); LARGE]);
            sender.send(finished(n, Some(payload))).await.unwrap();
        }
    });
    for n in 0..20 {
        let received = message(&mut server).await;
        assert_eq!(number(&received), n);
        let payload = Bytes::from(vec![u8::try_from(n).unwrap(); LARGE]);
        assert_eq!(received, finished(n, Some(payload)));
    }
    soon("sent", sending).await.unwrap();
}

async fn until_heartbeat(server: &mut WorkerServer, expected: &RunnerHeartbeat) {
    let expected = WorkerMessage::Heartbeat(vec![expected.clone()]);
    soon("heartbeat", async { while message(server).await != expected {} }).await;
}

#[tokio::test]
async fn heartbeats_contain_the_current_attempt_and_labels() {
    let mut server = loopback(WorkerServerLimits::default()).await;
    let (_connection, connected) = join(&mut server, Some(Duration::from_millis(5))).await;
    let (runner, incarnation) = (RunnerId(0), Incarnation(1));
    let begin = WorkerReport::AttemptBegan { attempt: AttemptId(4) };
    connected
        .sender
        .report(runner, incarnation, WorkerReport::Ready { after: None })
        .await
        .unwrap();
    connected.sender.report(runner, incarnation, begin).await.unwrap();
    let labels: BTreeMap<String, String> = [("stage".to_owned(), "run".to_owned())].into();
    connected.sender.set_labels(runner, labels.clone());
    let expected = RunnerHeartbeat { runner, incarnation, attempt: Some(AttemptId(4)), labels };
    until_heartbeat(&mut server, &expected).await;
    let ended = WorkerReport::AttemptEnded { attempt: AttemptId(4) };
    connected.sender.report(runner, incarnation, ended).await.unwrap();
    let idle = RunnerHeartbeat { attempt: None, ..expected };
    until_heartbeat(&mut server, &idle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn threads_can_send() {
    let mut server = loopback(WorkerServerLimits::default()).await;
    let (_connection, connected) = join(&mut server, None).await;
    let thread = std::thread::spawn(move || {
        connected.sender.blocking_send(finished(1, None)).unwrap();
        connected
    });
    assert_eq!(number(&message(&mut server).await), 1);
    drop(thread.join().unwrap());
}
