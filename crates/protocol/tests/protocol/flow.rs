//! Many messages, large messages, heartbeats, threads.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use rollway_core::metrics::Metrics;
use rollway_core::{AttemptId, Incarnation, RunId, RunOutput, RunnerId};
use rollway_protocol::worker_client::{self, ConnectedWorker};
use rollway_protocol::worker_server::{
    WorkerConnection, WorkerServer, WorkerServerEvent, WorkerServerLimits,
};
use rollway_protocol::{EngineMessage, RunnerHeartbeat, WorkerMessage, WorkerReport};

use crate::common::*;

async fn joined(
    server: &mut WorkerServer,
    heartbeat: Option<Duration>,
) -> (WorkerConnection, ConnectedWorker) {
    let address = server.address().clone();
    let options = worker_client::WorkerClientOptions {
        heartbeats: heartbeat.is_some(),
        ..Default::default()
    };
    let worker =
        tokio::spawn(
            async move { worker_client::connect(&address, hello(1), options).await.unwrap() },
        );
    let greeting = greeting(server).await;
    let interval = heartbeat.unwrap_or(HEARTBEAT);
    let connection = greeting.welcome(&[(RunnerId(0), Incarnation(1))], interval);
    (connection, soon("welcome", worker).await.unwrap())
}

fn finished(number: u64, payload: Option<Bytes>) -> WorkerMessage {
    let metrics: Metrics = [("reward", 1.0)].into_iter().collect();
    let outcome = Ok(RunOutput { payload, metrics });
    let report = WorkerReport::RunFinished { attempt: AttemptId(number), run: RunId(0), outcome };
    WorkerMessage::Runner { runner: RunnerId(0), life: Incarnation(1), report }
}

fn number(message: &WorkerMessage) -> u64 {
    match message {
        WorkerMessage::Runner { report: WorkerReport::RunFinished { attempt, .. }, .. } => {
            attempt.0
        }
        other => panic!("{other:?}"),
    }
}

/// Four workers send 25,000 messages each; an engine that is slower than they are gets all of
/// them, each worker's in its order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_messages_arrive_in_order() {
    const WORKERS: usize = 4;
    const EACH: u64 = 25_000;
    let (_dir, address) = unix();
    let mut server =
        listen(address, WorkerServerLimits { events: 256, ..WorkerServerLimits::default() }).await;
    let mut pairs = Vec::new();
    for _ in 0..WORKERS {
        pairs.push(joined(&mut server, None).await);
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
async fn orders_arrive_in_order_and_in_batches() {
    const ORDERS: u64 = 50_000;
    let (_dir, address) = unix();
    let limits =
        WorkerServerLimits { outgoing: ORDERS as usize + 2, ..WorkerServerLimits::default() };
    let mut server = listen(address, limits).await;
    let (connection, mut connected) = joined(&mut server, None).await;
    let definition = definition(1);
    for n in 0..ORDERS {
        connection.send(EngineMessage::StartAttempt(attempt(n, &definition))).unwrap();
    }
    let (mut orders, mut wakes) = (Vec::new(), 0);
    while (orders.len() as u64) < ORDERS {
        soon("orders", connected.receiver.recv_many(&mut orders, 512)).await.unwrap();
        wakes += 1;
    }
    let numbers = orders.iter().map(|order| match order {
        EngineMessage::StartAttempt(start) => start.attempt.0,
        other => panic!("{other:?}"),
    });
    assert!(numbers.eq(0..ORDERS));
    assert!(wakes < ORDERS / 8, "{wakes} wakes");
}

/// Large payloads wait for room, both in the worker and in the engine, and all arrive.
#[tokio::test]
async fn large_payloads_pass_through_small_budgets() {
    const LARGE: usize = 1_000_000;
    let limits = WorkerServerLimits { event_bytes: LARGE / 2, ..WorkerServerLimits::default() };
    let mut server = loopback(limits).await;
    let (_connection, connected) = joined(&mut server, None).await;
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

#[tokio::test]
async fn heartbeats_tell_what_was_said_and_set() {
    let mut server = loopback(WorkerServerLimits::default()).await;
    let (_connection, connected) = joined(&mut server, Some(Duration::from_millis(5))).await;
    let (runner, life) = (RunnerId(0), Incarnation(1));
    let begin = WorkerReport::AttemptBegan { attempt: AttemptId(4) };
    connected.sender.report(runner, life, WorkerReport::Ready { after: None }).await.unwrap();
    connected.sender.report(runner, life, begin).await.unwrap();
    let state: BTreeMap<String, String> = [("stage".to_owned(), "run".to_owned())].into();
    connected.sender.set_state(runner, state.clone());
    let wanted = RunnerHeartbeat { runner, life, attempt: Some(AttemptId(4)), state };
    soon("heartbeat", async {
        while message(&mut server).await != WorkerMessage::Heartbeat(vec![wanted.clone()]) {}
    })
    .await;
    let ended = WorkerReport::AttemptEnded { attempt: AttemptId(4) };
    connected.sender.report(runner, life, ended).await.unwrap();
    let idle = RunnerHeartbeat { attempt: None, ..wanted };
    soon("heartbeat", async {
        while message(&mut server).await != WorkerMessage::Heartbeat(vec![idle.clone()]) {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn threads_can_send() {
    let mut server = loopback(WorkerServerLimits::default()).await;
    let (_connection, connected) = joined(&mut server, None).await;
    let thread = std::thread::spawn(move || {
        connected.sender.blocking_send(finished(1, None)).unwrap();
        connected
    });
    assert_eq!(number(&message(&mut server).await), 1);
    drop(thread.join().unwrap());
}
