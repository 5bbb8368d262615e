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
pub(crate) const CONNECT: &str = "/rollway.worker.v1.Worker/Connect";

/// A message on its way out.
#[derive(Debug)]
pub(crate) struct Outgoing<M> {
    /// What is sent.
    pub(crate) body: Body<M>,
    /// Room taken in a byte budget; given back when the message is encoded.
    pub(crate) room: Option<OwnedSemaphorePermit>,
}

impl<M> From<M> for Outgoing<M> {
    fn from(message: M) -> Self {
        Self { body: Body::Message(message), room: None }
    }
}

/// What is sent.
#[derive(Debug)]
pub(crate) enum Body<M> {
    /// A message of the schema.
    Message(M),
    /// Bytes that pass for one.
    Raw(Bytes),
    /// Bytes in parts that together are one: large parts are copied once, to where they leave.
    Parts(Vec<Bytes>),
}

/// A message that arrived.
#[derive(Debug)]
pub(crate) struct Decoded<M> {
    /// How many bytes it had.
    pub(crate) bytes: usize,
    /// What it says, if it says anything.
    pub(crate) message: Result<M, DecodeError>,
}

/// Encodes `E` and decodes `D`.
#[derive(Debug)]
pub(crate) struct WireCodec<E, D>(PhantomData<fn(E) -> D>);

impl<E, D> WireCodec<E, D> {
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<E, D> Codec for WireCodec<E, D>
where
    E: Message + 'static,
    D: Message + Default + 'static,
{
    type Encode = Outgoing<E>;
    type Decode = Decoded<D>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::new()
    }

    fn decoder(&mut self) -> Self {
        Self::new()
    }
}

impl<E: Message, D> Encoder for WireCodec<E, D> {
    type Item = Outgoing<E>;
    type Error = Status;

    fn encode(&mut self, item: Outgoing<E>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        use bytes::BufMut as _;
        let Outgoing { body, room } = item;
        match body {
            Body::Message(message) => message
                .encode(buffer)
                .map_err(|error| Status::internal(format!("encoding a message: {error}")))?,
            Body::Raw(bytes) => buffer.put(bytes),
            Body::Parts(parts) => {
                buffer.reserve(parts.iter().map(Bytes::len).sum());
                parts.into_iter().for_each(|part| buffer.put(part));
            }
        }
        drop(room);
        Ok(())
    }
}

impl<E, D: Message + Default> Decoder for WireCodec<E, D> {
    type Item = Decoded<D>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        use bytes::Buf as _;
        let bytes = buffer.remaining();
        let message = D::decode(&mut *buffer);
        // What an undecodable message leaves behind would be taken for the next one.
        buffer.advance(buffer.remaining());
        Ok(Some(Decoded { bytes, message }))
    }
}
