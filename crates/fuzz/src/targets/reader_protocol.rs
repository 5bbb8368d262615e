//! Reader protocol: requests of trainers to a served buffer, and the messages that trainers decode.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use rollway_base::Address;
use rollway_data::buffer::queue::QueueOptions;
use rollway_data::buffer::{Buffer, ExperienceQueue};
use rollway_data::reader::{ReaderServer, ReaderServerOptions, serve};
use rollway_data::{Sample, WriteBatch};
use rollway_protocol::reader::proto::{self, buffer_message, trainer_message::Kind};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::raw_peer::{NONCE, RawPeer, client_proof, secret, send_raw, soon, with_preface};
use crate::FuzzTarget;
use crate::input::{choice, messages, with_bytes, with_messages};

pub(crate) const TARGET: FuzzTarget = FuzzTarget {
    name: "reader_protocol",
    max_bytes: 4096,
    memory: 64 << 20,
    per_byte: 1024,
    parse,
    seeds,
};

const PATH: &str = "/rollway.reader.v1.Reader/Connect";

/// Choices of sessions, which are slow; all other inputs are decoded only.
const CONNECTED: u8 = 253;
const UNAUTHENTICATED: u8 = 254;
const RAW: u8 = 255;

fn parse(input: &[u8]) {
    let (choice, rest) = choice(input);
    match choice {
        CONNECTED => served(|address, runtime| runtime.block_on(requests(address, rest))),
        UNAUTHENTICATED => served(|address, runtime| {
            let mut messages = messages(rest);
            let first = Bytes::copy_from_slice(messages.next().unwrap_or_default());
            runtime.block_on(soon("peer", async {
                if let Some(peer) = RawPeer::open(address, PATH, first).await {
                    peer.finish(messages).await;
                }
            }));
        }),
        RAW => served(|address, runtime| {
            let (is_http2, rest) = crate::input::choice(rest);
            let bytes = if is_http2 > 0 { with_preface(rest) } else { rest.to_vec() };
            runtime.block_on(soon("peer", send_raw(address, &bytes)));
        }),
        _ => {
            let _ = proto::TrainerMessage::decode(rest);
            let _ = proto::BufferMessage::decode(rest);
        }
    }
}

/// Serves a buffer with a few samples during the work.
fn served(work: impl FnOnce(&Address, &Runtime)) {
    let folder: TempDir = tempfile::tempdir().expect("a folder for the socket");
    let address = Address::Unix(folder.path().join("buffer.sock"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let options = ReaderServerOptions {
        address: address.clone(),
        secret: Some(secret()),
        grace: Duration::ZERO,
        ..ReaderServerOptions::default()
    };
    let server: ReaderServer = serve(buffer(), options).expect("the socket is free");
    work(&address, &runtime);
    drop(server);
}

/// Returns a buffer whose only writer has closed: no read waits for more.
fn buffer() -> Arc<dyn Buffer> {
    let queue = ExperienceQueue::open(QueueOptions::default()).expect("a queue in memory");
    let mut writer = queue.writer("writer").expect("a writer");
    let samples = (0..4).map(|number| Sample {
        id: Arc::from(format!("sample-{number}")),
        model_version: number,
        reward: Some(0.5),
        payload: Bytes::from(vec![number as u8; 16]),
    });
    let batch = WriteBatch { key: Arc::from("batch"), samples: samples.collect() };
    writer.write(&batch).expect("there is room");
    writer.close().expect("the queue is open");
    queue
}

/// Requests of an authenticated trainer. Each request that has a response gets one, or the stream
/// ends.
async fn requests(address: &Address, input: &[u8]) {
    let hello = proto_hello();
    let opened = RawPeer::open(address, PATH, encoded(Kind::Hello(hello))).await;
    let mut peer = opened.expect("the server answers a hello");
    let challenge = soon("challenge", peer.next()).await.expect("a challenge");
    let challenge = proto::BufferMessage::decode(challenge).expect("a message").kind;
    let Some(buffer_message::Kind::Challenge(challenge)) = challenge else {
        panic!("not a challenge: {challenge:?}")
    };
    let proof = client_proof(PATH, &challenge.nonce);
    let _ = peer.outgoing.send(encoded(Kind::Proof(proto::Proof { proof }))).await;
    assert!(soon("welcome", peer.next()).await.is_some(), "a correct trainer was refused");
    for message in messages(input) {
        if peer.outgoing.send(Bytes::copy_from_slice(message)).await.is_err() {
            return;
        }
        let kind = proto::TrainerMessage::decode(message).map(|message| message.kind);
        if let Ok(Some(Kind::Read(_) | Kind::Seek(_))) = kind {
            let answered = soon("response", answered(&mut peer)).await;
            if !answered {
                return;
            }
        }
    }
}

/// Reads to the end of a response. Returns false if the stream has ended.
async fn answered(peer: &mut RawPeer) -> bool {
    loop {
        let Some(message) = peer.next().await else { return false };
        let message = proto::BufferMessage::decode(message).expect("a message of the server");
        match message.kind {
            Some(buffer_message::Kind::Done(_) | buffer_message::Kind::Failed(_)) => return true,
            Some(buffer_message::Kind::Refused(_)) => return false,
            _ => {}
        }
    }
}

fn proto_hello() -> proto::Hello {
    proto::Hello {
        min_version: 2,
        max_version: 2,
        name: "trainer".to_owned(),
        session: "session".to_owned(),
        nonce: Bytes::from_static(&NONCE),
        ..Default::default()
    }
}

fn encoded(kind: Kind) -> Bytes {
    proto::TrainerMessage { kind: Some(kind) }.encode_to_vec().into()
}

fn seeds() -> Vec<Vec<u8>> {
    let read = |number, count, keep| {
        encoded(Kind::Read(proto::Read {
            number,
            count,
            timeout_ms: 1,
            keep,
            ..Default::default()
        }))
    };
    let seek = proto::Seek { number: 3, position: "0:0".to_owned() };
    let requests = [
        read(1, 2, true),
        read(1, 2, true),
        read(2, 1, false),
        encoded(Kind::Seek(seek)),
        read(4, 9, false),
        encoded(Kind::Goodbye(proto::Goodbye {})),
    ];
    let hello = encoded(Kind::Hello(proto_hello()));
    let proof = encoded(Kind::Proof(proto::Proof { proof: Bytes::from_static(&[1; 32]) }));
    let sample = proto::Sample { id: "a".to_owned(), payload_bytes: 3, ..Default::default() };
    let samples = proto::Samples { samples: vec![sample], payloads: Bytes::from_static(b"abc") };
    let samples = proto::BufferMessage { kind: Some(buffer_message::Kind::Samples(samples)) };
    let mut seeds: Vec<Vec<u8>> = requests.iter().map(|message| with_bytes(0, message)).collect();
    seeds.extend([
        with_bytes(0, samples.encode_to_vec()),
        with_messages(CONNECTED, &requests),
        with_messages(UNAUTHENTICATED, &[hello, proof, requests[0].clone()]),
        with_bytes(RAW, b"\0GET / HTTP/1.1\r\nhost: x\r\n\r\n"),
        with_bytes(RAW, b"\x01\0\0\x04\x08\0\0\0\0\0\0\0\0\x01"),
    ]);
    seeds
}
