//! Why a worker is refused, for the worker, for the counters and for gRPC.

use std::fmt;
use std::sync::Arc;

use tonic::{Code, Status};

use crate::proto;

macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $name:literal, $grpc:ident;)+) => {
        /// Why a worker is refused or disconnected.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum RefusalCode { $($(#[$doc])* $code,)+ }

        impl RefusalCode {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$code,)+];

            /// Returns the name used in logs and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$code => $name,)+ }
            }

            /// Returns the code that gRPC libraries show to whoever does not know ours.
            const fn grpc(self) -> Code {
                match self { $(Self::$code => Code::$grpc,)+ }
            }
        }
    };
}

codes! {
    /// For a reason that only the message tells.
    Other = "other", Unknown;
    /// The first message was not a hello.
    HelloExpected = "hello_expected", FailedPrecondition;
    /// There was no hello in time.
    HelloTimeout = "hello_timeout", DeadlineExceeded;
    /// The secret is wrong.
    BadSecret = "bad_secret", Unauthenticated;
    /// No version of the protocol is spoken by both.
    Version = "version", FailedPrecondition;
    /// A message could not be decoded, or a field of it has no valid value.
    InvalidMessage = "invalid_message", InvalidArgument;
    /// A message is larger than allowed.
    MessageTooLarge = "message_too_large", OutOfRange;
    /// A message is valid, but not now.
    UnexpectedMessage = "unexpected_message", FailedPrecondition;
    /// A message names a runner, or a life of one, that the worker was not given.
    UnknownRunner = "unknown_runner", InvalidArgument;
    /// A message came after a goodbye.
    AfterGoodbye = "after_goodbye", FailedPrecondition;
    /// The engine has as many connections as it may.
    TooManyConnections = "too_many_connections", ResourceExhausted;
    /// The worker did not read what it was sent.
    SlowReader = "slow_reader", ResourceExhausted;
    /// The engine does not want this worker.
    NotWanted = "not_wanted", PermissionDenied;
    /// The engine is shutting down.
    ShuttingDown = "shutting_down", Unavailable;
    /// Somebody connected and never opened a stream: no worker, or none that speaks gRPC. Nobody
    /// is told this; it is only counted.
    NoStream = "no_stream", Unknown;
}

impl RefusalCode {
    /// Tells whether the same worker would be refused again, whenever it tries.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::BadSecret | Self::Version | Self::NotWanted)
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<RefusalCode> for proto::RefusalCode {
    fn from(code: RefusalCode) -> Self {
        match code {
            RefusalCode::Other | RefusalCode::NoStream => Self::Unspecified,
            RefusalCode::HelloExpected => Self::HelloExpected,
            RefusalCode::HelloTimeout => Self::HelloTimeout,
            RefusalCode::BadSecret => Self::BadSecret,
            RefusalCode::Version => Self::Version,
            RefusalCode::InvalidMessage => Self::InvalidMessage,
            RefusalCode::MessageTooLarge => Self::MessageTooLarge,
            RefusalCode::UnexpectedMessage => Self::UnexpectedMessage,
            RefusalCode::UnknownRunner => Self::UnknownRunner,
            RefusalCode::AfterGoodbye => Self::AfterGoodbye,
            RefusalCode::TooManyConnections => Self::TooManyConnections,
            RefusalCode::SlowReader => Self::SlowReader,
            RefusalCode::NotWanted => Self::NotWanted,
            RefusalCode::ShuttingDown => Self::ShuttingDown,
        }
    }
}

impl From<proto::RefusalCode> for RefusalCode {
    fn from(code: proto::RefusalCode) -> Self {
        match code {
            proto::RefusalCode::Unspecified => Self::Other,
            proto::RefusalCode::HelloExpected => Self::HelloExpected,
            proto::RefusalCode::HelloTimeout => Self::HelloTimeout,
            proto::RefusalCode::BadSecret => Self::BadSecret,
            proto::RefusalCode::Version => Self::Version,
            proto::RefusalCode::InvalidMessage => Self::InvalidMessage,
            proto::RefusalCode::MessageTooLarge => Self::MessageTooLarge,
            proto::RefusalCode::UnexpectedMessage => Self::UnexpectedMessage,
            proto::RefusalCode::UnknownRunner => Self::UnknownRunner,
            proto::RefusalCode::AfterGoodbye => Self::AfterGoodbye,
            proto::RefusalCode::TooManyConnections => Self::TooManyConnections,
            proto::RefusalCode::SlowReader => Self::SlowReader,
            proto::RefusalCode::NotWanted => Self::NotWanted,
            proto::RefusalCode::ShuttingDown => Self::ShuttingDown,
        }
    }
}

/// A refusal, in a code for programs and in words for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ConnectRefusal {
    pub code: RefusalCode,
    /// What happened.
    pub message: Arc<str>,
}

impl ConnectRefusal {
    /// Returns a refusal.
    pub fn new(code: RefusalCode, message: impl Into<Arc<str>>) -> Self {
        Self { code, message: message.into() }
    }

    /// Returns what a gRPC library shows of it.
    pub(crate) fn status(&self) -> Status {
        Status::new(self.code.grpc(), self.to_string())
    }
}

impl From<ConnectRefusal> for proto::Refused {
    fn from(refusal: ConnectRefusal) -> Self {
        let ConnectRefusal { code, message } = refusal;
        Self { code: proto::RefusalCode::from(code).into(), message: message.to_string() }
    }
}

impl From<proto::Refused> for ConnectRefusal {
    fn from(refused: proto::Refused) -> Self {
        let proto::Refused { code, message } = refused;
        let code = proto::RefusalCode::try_from(code).unwrap_or_default().into();
        Self::new(code, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_the_journey_and_new_ones_are_other() {
        for code in RefusalCode::ALL.iter().copied().filter(|c| *c != RefusalCode::NoStream) {
            let refusal = ConnectRefusal::new(code, "why");
            assert_eq!(ConnectRefusal::from(proto::Refused::from(refusal.clone())), refusal);
        }
        let newer = proto::Refused { code: 4711, message: "why".into() };
        assert_eq!(ConnectRefusal::from(newer), ConnectRefusal::new(RefusalCode::Other, "why"));
    }
}
