//! Message codec and path of the service.
//!
//! Not a generated service: an undecodable message is an item of the stream, so that its sender
//! gets a reason, and the conformance kit can send arbitrary bytes.

use std::marker::PhantomData;

use bytes::Bytes;
use prost::{DecodeError, Message};
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

pub(crate) const CONNECT_PATH: &str = "/rollway.worker.v1.Worker/Connect";

/// An outgoing message.
#[derive(Debug)]
pub(crate) struct OutgoingFrame<M> {
    pub(crate) body: FrameBody<M>,
    /// Share of a byte budget, released when the message is encoded.
    pub(crate) room: Option<OwnedSemaphorePermit>,
}

impl<M> From<M> for OutgoingFrame<M> {
    fn from(message: M) -> Self {
        Self { body: FrameBody::Message(message), room: None }
    }
}

#[derive(Debug)]
pub(crate) enum FrameBody<M> {
    Message(M),
    /// Encoded bytes, possibly invalid.
    Raw(Bytes),
    /// Concatenated encoded bytes: large parts are copied once, into the send buffer.
    Parts(Vec<Bytes>),
}

/// A received message.
#[derive(Debug)]
pub(crate) struct DecodedFrame<M> {
    pub(crate) bytes: usize,
    pub(crate) message: Result<M, DecodeError>,
}

/// Encodes `E` and decodes `D`.
#[derive(Debug)]
pub(crate) struct ProtoCodec<E, D>(PhantomData<fn(E) -> D>);

impl<E, D> ProtoCodec<E, D> {
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<E, D> Codec for ProtoCodec<E, D>
where
    E: Message + 'static,
    D: Message + Default + 'static,
{
    type Encode = OutgoingFrame<E>;
    type Decode = DecodedFrame<D>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::new()
    }

    fn decoder(&mut self) -> Self {
        Self::new()
    }
}

impl<E: Message, D> Encoder for ProtoCodec<E, D> {
    type Item = OutgoingFrame<E>;
    type Error = Status;

    fn encode(&mut self, item: OutgoingFrame<E>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        use bytes::BufMut as _;
        let OutgoingFrame { body, room } = item;
        match body {
            FrameBody::Message(message) => message
                .encode(buffer)
                .map_err(|error| Status::internal(format!("encoding a message: {error}")))?,
            FrameBody::Raw(bytes) => buffer.put(bytes),
            FrameBody::Parts(parts) => {
                buffer.reserve(parts.iter().map(Bytes::len).sum());
                parts.into_iter().for_each(|part| buffer.put(part));
            }
        }
        drop(room);
        Ok(())
    }
}

impl<E, D: Message + Default> Decoder for ProtoCodec<E, D> {
    type Item = DecodedFrame<D>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        use bytes::Buf as _;
        let bytes = buffer.remaining();
        let message = D::decode(&mut *buffer);
        // The rest of an undecodable message would be read as the next one.
        buffer.advance(buffer.remaining());
        Ok(Some(DecodedFrame { bytes, message }))
    }
}
