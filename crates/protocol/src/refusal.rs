//! Reasons for refusing or disconnecting a peer: on the wire, in counters and as gRPC status.

use std::fmt;
use std::sync::Arc;

use tonic::{Code, Status};

use crate::proto;

macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $name:literal, $grpc:ident;)+) => {
        /// Reason why a peer is refused or disconnected.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum RefusalCode {
            /// A reason without a code of its own: the message describes it.
            Other,
            $($(#[$doc])* $code,)+
            /// The peer connected and never opened a stream. Counted, never sent.
            NoStream,
        }

        impl RefusalCode {
            pub const ALL: &'static [Self] = &[Self::Other, $(Self::$code,)+ Self::NoStream];

            /// Returns the name used in logs and metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    Self::Other => "other",
                    $(Self::$code => $name,)+
                    Self::NoStream => "no_stream",
                }
            }

            /// Returns the status code for gRPC libraries that do not know this protocol.
            const fn grpc(self) -> Code {
                match self {
                    Self::Other | Self::NoStream => Code::Unknown,
                    $(Self::$code => Code::$grpc,)+
                }
            }
        }

        impl From<RefusalCode> for proto::RefusalCode {
            fn from(code: RefusalCode) -> Self {
                match code {
                    RefusalCode::Other | RefusalCode::NoStream => Self::Unspecified,
                    $(RefusalCode::$code => Self::$code,)+
                }
            }
        }

        impl From<proto::RefusalCode> for RefusalCode {
            fn from(code: proto::RefusalCode) -> Self {
                match code {
                    proto::RefusalCode::Unspecified => Self::Other,
                    $(proto::RefusalCode::$code => Self::$code,)+
                }
            }
        }
    };
}

codes! {
    /// The first message was not a hello.
    HelloExpected = "hello_expected", FailedPrecondition;
    HelloTimeout = "hello_timeout", DeadlineExceeded;
    BadSecret = "bad_secret", Unauthenticated;
    /// The peers have no protocol version in common.
    Version = "version", FailedPrecondition;
    /// A message could not be decoded, or one of its fields is invalid.
    InvalidMessage = "invalid_message", InvalidArgument;
    MessageTooLarge = "message_too_large", OutOfRange;
    /// A message is valid, but not in this state.
    UnexpectedMessage = "unexpected_message", FailedPrecondition;
    /// A message names a runner, or an incarnation of one, that the worker does not host.
    UnknownRunner = "unknown_runner", InvalidArgument;
    AfterGoodbye = "after_goodbye", FailedPrecondition;
    TooManyConnections = "too_many_connections", ResourceExhausted;
    /// Too much is queued for a worker that does not read.
    SlowReader = "slow_reader", ResourceExhausted;
    /// The engine does not need this worker.
    NotWanted = "not_wanted", PermissionDenied;
    ShuttingDown = "shutting_down", Unavailable;
}

impl RefusalCode {
    /// Tells whether another attempt of the same worker would be refused as well.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::BadSecret | Self::Version | Self::NotWanted)
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Refusal of a connection: a code for programs, a message for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ConnectRefusal {
    pub code: RefusalCode,
    pub message: Arc<str>,
}

impl ConnectRefusal {
    pub fn new(code: RefusalCode, message: impl Into<Arc<str>>) -> Self {
        Self { code, message: message.into() }
    }

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
        Self::new(refused.code().into(), refused.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_a_round_trip_and_unknown_ones_become_other() {
        for code in RefusalCode::ALL.iter().copied().filter(|c| *c != RefusalCode::NoStream) {
            let refusal = ConnectRefusal::new(code, "reason");
            assert_eq!(ConnectRefusal::from(proto::Refused::from(refusal.clone())), refusal);
        }
        let newer = proto::Refused { code: 4711, message: "reason".into() };
        assert_eq!(ConnectRefusal::from(newer), ConnectRefusal::new(RefusalCode::Other, "reason"));
    }
}
