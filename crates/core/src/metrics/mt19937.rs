//! NumPy's legacy random generator: the Mersenne Twister as `np.random.seed` starts it, and the
//! indices that `np.random.choice` and `np.random.randint` draw from it. Each caller owns its
//! generator, so that no global state changes.

const STATE_WORDS: usize = 624;
const SHIFT: usize = 397;

/// A Mersenne Twister with 32-bit words.
pub(super) struct Mt19937 {
    state: [u32; STATE_WORDS],
    /// Tempered words of `state`, computed in one sweep that the compiler vectorizes.
    words: [u32; STATE_WORDS],
    next: usize,
}

impl Mt19937 {
    /// Seeds as `np.random.seed(seed)` does.
    pub(super) fn new(seed: u32) -> Self {
        let mut state = [seed; STATE_WORDS];
        for i in 1..STATE_WORDS {
            let before = state[i - 1];
            state[i] = (before ^ (before >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Self { state, words: [0; STATE_WORDS], next: STATE_WORDS }
    }

    pub(super) fn next_u32(&mut self) -> u32 {
        if self.next == STATE_WORDS {
            self.refill();
        }
        let word = self.words[self.next];
        self.next += 1;
        word
    }

    /// Fills `out` with values of `pick` at indices uniform below `n`, as
    /// `np.random.choice(n, size=out.len())` draws them: bits above the highest of `n - 1` are
    /// masked, and larger results are drawn again.
    ///
    /// A range of one value consumes no randomness. Indices up to 2^32 take one word a try,
    /// larger ones two, the high one first. `n` must not be 0.
    pub(super) fn fill<T>(&mut self, n: usize, out: &mut [T], pick: impl Fn(usize) -> T) {
        let largest = n - 1;
        if largest == 0 {
            out.fill_with(|| pick(0));
        } else if let Ok(largest) = u32::try_from(largest) {
            self.fill_u32(largest, out, pick);
        } else {
            let mask = usize::MAX >> largest.leading_zeros();
            for slot in out {
                *slot = loop {
                    let high = u64::from(self.next_u32());
                    let index = (high << 32 | u64::from(self.next_u32())) as usize & mask;
                    if index <= largest {
                        break pick(index);
                    }
                };
            }
        }
    }

    fn fill_u32<T>(&mut self, largest: u32, out: &mut [T], pick: impl Fn(usize) -> T) {
        let mask = u32::MAX >> largest.leading_zeros();
        let mut filled = 0;
        while filled < out.len() {
            if self.next == STATE_WORDS {
                self.refill();
            }
            for word in &self.words[self.next..] {
                let Some(slot) = out.get_mut(filled) else {
                    break;
                };
                // Written before it is checked: a store is cheaper than a branch that is
                // mispredicted every second time.
                let index = word & mask;
                *slot = pick(index.min(largest) as usize);
                filled += usize::from(index <= largest);
                self.next += 1;
            }
        }
    }

    /// Advances the state by as many words as it holds.
    fn refill(&mut self) {
        let state = &mut self.state;
        for i in 0..STATE_WORDS - SHIFT {
            state[i] = state[i + SHIFT] ^ twist(state[i], state[i + 1]);
        }
        for i in STATE_WORDS - SHIFT..STATE_WORDS - 1 {
            state[i] = state[i + SHIFT - STATE_WORDS] ^ twist(state[i], state[i + 1]);
        }
        state[STATE_WORDS - 1] = state[SHIFT - 1] ^ twist(state[STATE_WORDS - 1], state[0]);
        for (word, state) in self.words.iter_mut().zip(state) {
            *word = temper(*state);
        }
        self.next = 0;
    }
}

fn twist(upper: u32, lower: u32) -> u32 {
    let joined = (upper & 0x8000_0000) | (lower & 0x7fff_ffff);
    (joined >> 1) ^ (0x9908_b0df & (joined & 1).wrapping_neg())
}

fn temper(mut word: u32) -> u32 {
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c_5680;
    word ^= (word << 15) & 0xefc6_0000;
    word ^ (word >> 18)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_equal_numpy() {
        let mut generator = Mt19937::new(42);
        let words: Vec<u32> = (0..4).map(|_| generator.next_u32()).collect();
        assert_eq!(words, [0x5fe1_dc66, 0xcbea_3db3, 0xf362_035c, 0x2ef5_950e]);

        let mut generator = Mt19937::new(0);
        let words: Vec<u32> = (0..626).map(|_| generator.next_u32()).collect();
        assert_eq!(words[623..], [3_791_854_820, 341_544_762, 1_076_416_385]);
    }

    /// np.random.seed(7); np.random.randint(0, n, size=5); then one word more.
    #[test]
    fn indices_and_consumed_words_equal_numpy() {
        let cases: &[(u64, [u64; 5], u32)] = &[
            (1, [0, 0, 0, 0, 0], 327_741_615),
            (2, [1, 0, 1, 0, 1], 4_201_435_347),
            (3, [0, 1, 2, 0, 1], 2_312_822_158),
            (64, [47, 4, 25, 54, 3], 4_201_435_347),
            (65, [47, 25, 23, 57, 14], 1_133_316_631),
            (100, [47, 68, 25, 67, 83], 3_107_259_287),
            (
                (1 << 31) + 1,
                [327_741_615, 976_413_892, 1_369_975_286, 1_882_953_283, 1_956_722_279],
                4_200_432_988,
            ),
            (
                1 << 32,
                [327_741_615, 976_413_892, 3_349_725_721, 1_369_975_286, 1_882_953_283],
                4_201_435_347,
            ),
            (
                (1 << 32) + 1,
                [1_322_904_761, 1_133_316_631, 372_560_217, 1_801_189_930, 68_334_472],
                2_146_978_983,
            ),
        ];
        for (n, expected, after) in cases {
            // Targets with 32-bit addresses have no slices of this length.
            let Ok(n) = usize::try_from(*n) else { continue };
            let mut generator = Mt19937::new(7);
            let mut indices = [0; 5];
            generator.fill(n, &mut indices, |index| index as u64);
            assert_eq!(indices, *expected, "n = {n}");
            assert_eq!(generator.next_u32(), *after, "n = {n}");
        }
    }
}
