//! Text of others, as a terminal may get it.

use std::fmt::{self, Display, Write};

/// A text that others chose, or that contains one (a path, a name in a file, an error), on one line on which nothing acts on
/// a terminal: characters that would are shown as Rust writes them, `\n` or `\u{1b}`.
pub(crate) struct Shown<T>(pub(crate) T);

impl<T: Display> Display for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars()
            .try_for_each(|character| match acts(character) {
                true => write!(self.0, "{}", character.escape_default()),
                false => self.0.write_char(character),
            })
    }
}

/// The same for the text of a JSON object, whose strings keep their values: `\u001b`. All of these characters have four digits.
pub(crate) fn in_json(object: &str) -> String {
    let mut text = String::with_capacity(object.len());
    for character in object.chars() {
        // Lines end between strings alone.
        match acts(character) && character != '\n' {
            true => text += &format!("\\u{:04x}", character as u32),
            false => text.push(character),
        }
    }
    text
}

/// Whether the character is an order to a terminal: the control characters of Unicode, its line and paragraph separators,
/// and those that change the direction of a line (UAX #9, section 2).
fn acts(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_shown_and_all_else_stays() {
        let hostile = "a\u{1b}]0;x\u{7}b\n\r\t\u{9b}\u{7f}\u{202e}c\u{2066}\u{2028}d";
        let shown = r"a\u{1b}]0;x\u{7}b\n\r\t\u{9b}\u{7f}\u{202e}c\u{2066}\u{2028}d";
        assert_eq!(Shown(hostile).to_string(), shown);
        let harmless = r#"C:\dir\"Größe" 𝄞 → ’ x̂ 👩‍🚀"#;
        assert_eq!(Shown(harmless).to_string(), harmless);
        let object = serde_json::to_string_pretty(&[hostile, harmless]).unwrap();
        let safe = in_json(&object);
        assert!(
            !safe.contains(|character| acts(character) && character != '\n'),
            "{safe}"
        );
        let read: Vec<String> = serde_json::from_str(&safe).unwrap();
        assert_eq!(read, [hostile, harmless]);
    }
}
