//! Texts as tokens: one for every character that the model knows, and two marks.

/// The characters that a model knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    characters: Vec<char>,
}

/// A text has a character that the model does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model does not know the character {character:?}: it knows {known:?}")]
pub struct UnknownCharacter {
    pub character: char,
    /// Those that it knows.
    pub known: String,
}

impl Vocabulary {
    /// Begins a sequence.
    pub const BEGIN: u32 = 0;
    /// Ends what the model says.
    pub const END: u32 = 1;

    /// Returns a vocabulary of these characters, each counted once, in this order.
    pub fn new(characters: &str) -> Self {
        let mut known = Vec::new();
        for character in characters.chars() {
            if !known.contains(&character) {
                known.push(character);
            }
        }
        Self { characters: known }
    }

    /// How many tokens there are.
    pub fn size(&self) -> usize {
        self.characters.len() + 2
    }

    /// Returns the tokens of a text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, UnknownCharacter> {
        let token = |character| {
            let place = self.characters.iter().position(|known| *known == character);
            let known = || self.characters.iter().collect();
            place
                .map(|place| place as u32 + 2)
                .ok_or_else(|| UnknownCharacter { character, known: known() })
        };
        text.chars().map(token).collect()
    }

    /// Returns the text of tokens. Marks, and what is no token, have none.
    pub fn decode(&self, tokens: &[u32]) -> String {
        tokens.iter().filter_map(|token| self.character(*token)).collect()
    }

    /// Returns the character of a token.
    pub fn character(&self, token: u32) -> Option<char> {
        self.characters.get((token as usize).checked_sub(2)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_go_there_and_back() {
        let vocabulary = Vocabulary::new("0123456789+=0");
        assert_eq!(vocabulary.size(), 14);
        let tokens = vocabulary.encode("12+3=").unwrap();
        assert_eq!(vocabulary.decode(&tokens), "12+3=");
        assert_eq!(vocabulary.decode(&[Vocabulary::BEGIN, 2, Vocabulary::END, 99]), "0");
        let error = vocabulary.encode("1-1").unwrap_err();
        assert_eq!(error.character, '-');
    }
}
