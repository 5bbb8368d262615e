//! Mutations of inputs, for runs without coverage.

/// Bytes that parsers treat specially.
const SPECIAL: [&[u8]; 24] = [
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff",
    b"\n",
    b"\n\n",
    b"\"",
    b"\\",
    b"\\u0000",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"null",
    b"-1",
    b"1e999",
    b"18446744073709551616",
    b"\xc3\x28",
    b"\xef\xbb\xbf",
    b"data: ",
];

/// Makes inputs from others. The seed determines all of them.
#[derive(Debug)]
pub struct Mutator(u64);

impl Mutator {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a mutated input of at most `max_bytes`.
    pub fn mutated(&mut self, inputs: &[Vec<u8>], max_bytes: usize) -> Vec<u8> {
        let mut input = inputs[self.below(inputs.len())].clone();
        for _ in 0..=self.below(4) {
            self.mutate(&mut input, inputs);
        }
        input.truncate(max_bytes);
        input
    }

    fn mutate(&mut self, input: &mut Vec<u8>, others: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        let end = (at + 1 + self.below(16)).min(input.len());
        match self.below(7) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = self.below(256) as u8,
            2 => drop(input.drain(at.min(end)..end)),
            3 => {
                let special = SPECIAL[self.below(SPECIAL.len())];
                input.splice(at..at, special.iter().copied());
            }
            4 => {
                let part = input[at.min(end)..end].to_vec();
                let times = 1 + self.below(8);
                input.splice(at..at, part.repeat(times));
            }
            5 => {
                let other = &others[self.below(others.len())];
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend(&other[from..]);
            }
            _ => input.truncate(at),
        }
    }

    /// Returns a number below `end`, which is not zero.
    fn below(&mut self, end: usize) -> usize {
        // Constants of Knuth's MMIX.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}
