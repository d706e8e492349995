//! SVG and HTML as text, in which every value is escaped. The benchmarks draw with it too.

use std::fmt::{self, Display, Write};

/// Appends elements to a string. The template is a literal; each argument takes the place of a `{}` in it, escaped. A
/// template cannot name variables: `concat!` forbids that, so nothing gets past [`Escaped`].
macro_rules! put {
    ($text:expr, $template:literal $(; $($value:expr),+)?) => {{
        use std::fmt::Write as _;
        let text: &mut String = $text;
        write!(text, concat!($template, "\n") $($(, crate::markup::Escaped(&$value))+)?)
            .expect("a string takes every text")
    }};
}
pub(crate) use put;

/// A value as it stands between elements, or in double quotes as the value of an attribute.
pub(crate) struct Escaped<T>(pub(crate) T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|character| match character {
            '&' => self.0.write_str("&amp;"),
            '<' => self.0.write_str("&lt;"),
            '>' => self.0.write_str("&gt;"),
            '"' => self.0.write_str("&quot;"),
            '\n' | '\t' => self.0.write_char(character),
            // Neither XML nor HTML can hold the other control characters; the rest would turn the text around it.
            '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => self.0.write_char(char::REPLACEMENT_CHARACTER),
            _ if character.is_control() => self.0.write_char(char::REPLACEMENT_CHARACTER),
            _ => self.0.write_char(character),
        })
    }
}

/// An object for programs as the content of an element `script`, which no text in the object can end. In JSON `<` stands
/// in strings alone.
pub(crate) fn json(object: &str) -> String {
    object.replace('<', "\\u003c")
}

/// A length or a place, to a tenth.
pub(crate) fn px(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "</script>\"><!--<script>a && 'b'\0\u{1b}\u{202e}𝄞";

    #[test]
    fn no_value_ends_its_place() {
        let mut text = String::new();
        put!(&mut text, r#"<td title="{}">{}</td>"#; HOSTILE, 1.5);
        let safe = "&lt;/script&gt;&quot;&gt;&lt;!--&lt;script&gt;a &amp;&amp; 'b'\u{fffd}\u{fffd}\u{fffd}𝄞";
        assert_eq!(text, format!("<td title=\"{safe}\">1.5</td>\n"));
    }

    #[test]
    fn an_object_for_programs_is_the_same_object_and_ends_nothing() {
        let object = serde_json::json!({ "name": HOSTILE });
        let inside = json(&object.to_string());
        assert!(!inside.contains('<'));
        let read: serde_json::Value = serde_json::from_str(&inside).unwrap();
        assert_eq!(read, object);
    }
}
