//! How messages become bytes, and where the service is found.
//!
//! Our own codec instead of a generated service: a message that cannot be decoded is an item of
//! the stream and not the end of it, so that its sender can be told what was wrong, and the
//! conformance kit can send bytes that this version has no types for.

use std::marker::PhantomData;

use bytes::Bytes;
use prost::{DecodeError, Message};
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// The path of the one call that there is.
pub(crate) const CONNECT_PATH: &str = "/rollway.worker.v1.Worker/Connect";

/// A message on its way out.
#[derive(Debug)]
pub(crate) struct OutgoingFrame<M> {
    /// What is sent.
    pub(crate) body: FrameBody<M>,
    /// Room taken in a byte budget; given back when the message is encoded.
    pub(crate) room: Option<OwnedSemaphorePermit>,
}

impl<M> From<M> for OutgoingFrame<M> {
    fn from(message: M) -> Self {
        Self { body: FrameBody::Message(message), room: None }
    }
}

/// What is sent.
#[derive(Debug)]
pub(crate) enum FrameBody<M> {
    /// A message of the schema.
    Message(M),
    /// Bytes that pass for one.
    Raw(Bytes),
    /// Bytes in parts that together are one: large parts are copied once, to where they leave.
    Parts(Vec<Bytes>),
}

/// A message that arrived.
#[derive(Debug)]
pub(crate) struct DecodedFrame<M> {
    pub(crate) bytes: usize,
    /// What it says, if it says anything.
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
        // What an undecodable message leaves behind would be taken for the next one.
        buffer.advance(buffer.remaining());
        Ok(Some(DecodedFrame { bytes, message }))
    }
}
