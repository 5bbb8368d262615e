//! Keys, as a terminal sends them.

/// A key that was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// Up or down by one line.
    Up,
    #[expect(missing_docs, reason = "as it says")]
    Down,
    /// Up or down by one page.
    PageUp,
    #[expect(missing_docs, reason = "as it says")]
    PageDown,
    /// To the first or the last line.
    Home,
    #[expect(missing_docs, reason = "as it says")]
    End,
    /// Done with a line of text.
    Enter,
    /// Away with it.
    Escape,
    /// Takes the last character back.
    Backspace,
    /// Ctrl-C.
    Interrupt,
}

/// Returns the keys in what a terminal has sent. What is no key is left out. A terminal sends an
/// escape sequence at once, so that an escape alone is the key.
pub fn read(bytes: &[u8]) -> Vec<Key> {
    let text = String::from_utf8_lossy(bytes);
    let mut rest = &*text;
    let mut keys = Vec::new();
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\x1b' => {
                let (key, after) = sequence(rest);
                keys.extend(key);
                rest = after;
            }
            '\r' | '\n' => keys.push(Key::Enter),
            '\x7f' | '\x08' => keys.push(Key::Backspace),
            '\x03' => keys.push(Key::Interrupt),
            c if !c.is_control() => keys.push(Key::Char(c)),
            _ => {}
        }
    }
    keys
}

/// Reads what follows an escape.
fn sequence(text: &str) -> (Option<Key>, &str) {
    let Some(body) = text.strip_prefix(['[', 'O']) else { return (Some(Key::Escape), text) };
    let Some(end) = body.find(|c: char| c.is_ascii_alphabetic() || c == '~') else {
        return (None, "");
    };
    let (arguments, order) = (&body[..end], &body[end..=end]);
    let key = match (order, arguments) {
        ("A", _) => Some(Key::Up),
        ("B", _) => Some(Key::Down),
        ("H", _) | ("~", "1" | "7") => Some(Key::Home),
        ("F", _) | ("~", "4" | "8") => Some(Key::End),
        ("~", "5") => Some(Key::PageUp),
        ("~", "6") => Some(Key::PageDown),
        _ => None,
    };
    (key, &body[end + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart_and_noise_is_left_out() {
        let typed = b"q\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[1;5H\x1b[99xc\x1b";
        let keys = [
            Key::Char('q'),
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::Char('c'),
            Key::Escape,
        ];
        assert_eq!(read(typed), keys);
        assert_eq!(
            read("é\r\x7f\x03\x01".as_bytes()),
            [Key::Char('é'), Key::Enter, Key::Backspace, Key::Interrupt]
        );
    }
}
