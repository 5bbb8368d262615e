//! Conversions between protobuf messages and validated messages. Invalid fields are refused here.

/// Defines the exhaustive conversions between an enum and its protobuf counterpart. Decoding
/// returns `None` for a value that is unspecified or unknown to this version.
macro_rules! proto_enum {
    (
        $proto:ident as $rust_type:ty: $decode:ident, $encode:ident;
        $($theirs:ident = [$($value:tt)+],)+
    ) => {
        fn $decode(value: i32) -> Option<$rust_type> {
            Some(match proto::$proto::try_from(value) {
                $(Ok(proto::$proto::$theirs) => $($value)+,)+
                Ok(proto::$proto::Unspecified) | Err(_) => return None,
            })
        }

        fn $encode(value: $rust_type) -> i32 {
            let value = match value { $($($value)+ => proto::$proto::$theirs,)+ };
            value.into()
        }
    };
}

mod engine;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub(crate) use engine::DefinitionCache;

/// Maximum length of texts for people, in bytes; the rest is cut off.
const MAX_TEXT: usize = 16 * 1024;

/// Payloads up to this size are copied out of their receive buffer, so that a small payload does
/// not keep the whole buffer alive.
const MAX_COPIED: usize = 16 * 1024;

fn text(text: &str) -> Arc<str> {
    truncate(text).into()
}

fn truncate(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

fn compact(bytes: Bytes) -> Bytes {
    if bytes.len() <= MAX_COPIED { Bytes::copy_from_slice(&bytes) } else { bytes }
}

fn to_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;
    use prost::Message;
    use rollway_core::metrics::Metrics;
    use rollway_core::{
        AttemptId, FailureKind, Incarnation, RunFailure, RunId, RunOutcome, RunOutput, RunnerId,
    };

    use super::*;
    use crate::message::{
        Hello, LogLine, LogSource, RunnerHeartbeat, StopCause, Welcome, WorkerLogLevel,
        WorkerMessage, WorkerReport,
    };
    use crate::proto;

    #[test]
    fn texts_are_truncated_between_characters() {
        let long = "ä".repeat(MAX_TEXT);
        assert!(truncate(&long).len() <= MAX_TEXT && long.starts_with(truncate(&long)));
        let odd = format!("x{long}");
        assert_eq!(truncate(&odd).len(), MAX_TEXT - 1);
    }

    #[test]
    fn durations_are_rounded_up_to_milliseconds() {
        assert_eq!(to_ms(Duration::from_nanos(1)), 1);
        assert_eq!(to_ms(Duration::from_millis(5)), 5);
        assert_eq!(to_ms(Duration::MAX), u64::MAX);
    }

    /// Decodes bytes as a message of either side; must not panic.
    fn decode_any(bytes: &[u8], definitions: &mut DefinitionCache) {
        if let Ok(message) = proto::WorkerMessage::decode(bytes)
            && let Some(kind) = message.kind
        {
            if let proto::worker_message::Kind::Hello(hello) = &kind {
                let _ = Hello::try_from(hello.clone());
            }
            let _ = WorkerMessage::try_from(kind);
        }
        if let Ok(message) = proto::EngineMessage::decode(bytes)
            && let Some(kind) = message.kind
        {
            if let proto::engine_message::Kind::Welcome(welcome) = &kind {
                let _ = Welcome::try_from(welcome.clone());
            }
            let _ = definitions.resolve(kind);
        }
    }

    fn outcome() -> impl Strategy<Value = RunOutcome<Bytes>> {
        let metrics =
            btree_map(".*", any::<f64>().prop_filter("NaN is not NaN", |v| !v.is_nan()), 0..4);
        let payload = proptest::option::of(vec(any::<u8>(), 0..40).prop_map(Bytes::from));
        prop_oneof![
            (payload, metrics).prop_map(|(payload, metrics)| Ok(RunOutput {
                payload,
                metrics: metrics.into_iter().collect::<Metrics>()
            })),
            (proptest::sample::select(FailureKind::ALL), ".*")
                .prop_map(|(kind, message)| { Err(RunFailure { kind, message: message.into() }) }),
        ]
    }

    fn report() -> impl Strategy<Value = WorkerReport> {
        let attempt = || any::<u64>().prop_map(AttemptId);
        prop_oneof![
            proptest::option::of(attempt()).prop_map(|after| WorkerReport::Ready { after }),
            attempt().prop_map(|attempt| WorkerReport::AttemptBegan { attempt }),
            attempt().prop_map(|attempt| WorkerReport::AttemptEnded { attempt }),
            (attempt(), any::<u32>(), outcome()).prop_map(|(attempt, run, outcome)| {
                WorkerReport::RunFinished { attempt, run: RunId(run), outcome }
            }),
            Just(WorkerReport::Stopped(StopCause::Requested)),
            ".*".prop_map(|message| {
                WorkerReport::Stopped(StopCause::StartFailed { message: message.into() })
            }),
            (".*", any::<bool>()).prop_map(|(message, suspect)| {
                WorkerReport::Stopped(StopCause::Lost { message: message.into(), suspect })
            }),
        ]
    }

    fn message() -> impl Strategy<Value = WorkerMessage> {
        let state = (any::<u32>(), any::<u32>(), any::<Option<u64>>(), btree_map(".*", ".*", 0..3));
        let state = state.prop_map(|(runner, incarnation, attempt, labels)| RunnerHeartbeat {
            runner: RunnerId(runner),
            incarnation: Incarnation(incarnation),
            attempt: attempt.map(AttemptId),
            labels,
        });
        use WorkerLogLevel::{Debug, Error, Info, Warning};
        let levels = proptest::sample::select(&[Debug, Info, Warning, Error]);
        let log = (any::<Option<u32>>(), levels, ".*");
        prop_oneof![
            (any::<u32>(), any::<u32>(), report()).prop_map(|(runner, incarnation, report)| {
                WorkerMessage::Runner {
                    runner: RunnerId(runner),
                    incarnation: Incarnation(incarnation),
                    report,
                }
            }),
            vec(state, 0..3).prop_map(WorkerMessage::Heartbeat),
            log.prop_map(|(runner, level, line)| WorkerMessage::Log(LogLine {
                runner: runner.map(RunnerId),
                level,
                line: line.into(),
                source: LogSource {
                    run: runner,
                    batch: runner.map(|_| "1/a".into()),
                    ..LogSource::default()
                },
            })),
            ".*".prop_map(|reason| WorkerMessage::Goodbye { reason: reason.into() }),
        ]
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
            decode_any(&bytes, &mut DefinitionCache::default());
        }

        /// Nearly valid bytes get further than arbitrary ones.
        #[test]
        fn damaged_messages_never_panic(
            message in message(),
            damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = proto::WorkerMessage::from(message).encode_to_vec();
            for (at, byte) in damage {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            decode_any(&bytes, &mut DefinitionCache::default());
        }

        #[test]
        fn worker_messages_survive_a_round_trip(message in message()) {
            let bytes = proto::WorkerMessage::from(message.clone()).encode_to_vec();
            let kind = proto::WorkerMessage::decode(&*bytes).unwrap().kind.unwrap();
            prop_assert_eq!(WorkerMessage::try_from(kind), Ok(message));
        }
    }
}
