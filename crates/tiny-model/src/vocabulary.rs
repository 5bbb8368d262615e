//! Tokenizer: one token per known character, and two special tokens.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    characters: Vec<char>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model does not know the character {character:?}: it knows {characters:?}")]
pub struct UnknownCharacter {
    pub character: char,
    pub characters: String,
}

impl Vocabulary {
    /// Begins a sequence.
    pub const BEGIN: u32 = 0;
    /// Ends a completion.
    pub const END: u32 = 1;

    /// Takes the known characters in the order of their tokens; repetitions count once.
    pub fn new(characters: &str) -> Self {
        let mut known = Vec::new();
        for character in characters.chars() {
            if !known.contains(&character) {
                known.push(character);
            }
        }
        Self { characters: known }
    }

    pub fn size(&self) -> usize {
        self.characters.len() + 2
    }

    pub fn encode(&self, text: &str) -> Result<Vec<u32>, UnknownCharacter> {
        let token = |character| {
            let index = self.characters.iter().position(|known| *known == character);
            let known = || self.characters.iter().collect();
            let unknown = || UnknownCharacter { character, characters: known() };
            index.map(|index| index as u32 + 2).ok_or_else(unknown)
        };
        text.chars().map(token).collect()
    }

    /// Returns the text of tokens. Special and unknown tokens have none.
    pub fn decode(&self, tokens: &[u32]) -> String {
        tokens.iter().filter_map(|token| self.character(*token)).collect()
    }

    pub fn character(&self, token: u32) -> Option<char> {
        self.characters.get((token as usize).checked_sub(2)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        let vocabulary = Vocabulary::new("0123456789+=0");
        assert_eq!(vocabulary.size(), 14);
        let tokens = vocabulary.encode("12+3=").unwrap();
        assert_eq!(vocabulary.decode(&tokens), "12+3=");
        assert_eq!(vocabulary.decode(&[Vocabulary::BEGIN, 2, Vocabulary::END, 99]), "0");
        let error = vocabulary.encode("1-1").unwrap_err();
        assert_eq!(error.character, '-');
    }
}
