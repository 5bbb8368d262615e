//! Parts of an input.

/// Splits an input into its first byte, which chooses what to do, and the rest.
pub(crate) fn choice(input: &[u8]) -> (u8, &[u8]) {
    input.split_first().map_or((0, input), |(first, rest)| (*first, rest))
}

/// Iterates over messages, each after two bytes with its length. The last one may be cut short.
pub(crate) fn messages(mut input: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = input.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (message, rest) = rest.split_at(length);
        input = rest;
        Some(message)
    })
}

/// Joins a choice and messages to an input.
pub(crate) fn with_messages<T: AsRef<[u8]>>(choice: u8, messages: &[T]) -> Vec<u8> {
    let mut input = vec![choice];
    for message in messages {
        let message = message.as_ref();
        let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
        input.extend(length.to_le_bytes());
        input.extend(&message[..usize::from(length)]);
    }
    input
}

/// Joins a choice and one text or file to an input.
pub(crate) fn with_bytes(choice: u8, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    [&[choice], bytes.as_ref()].concat()
}
