//! The program's output and its format.

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use console::Term;
use serde::Serialize;

use crate::failure::Failure;
use crate::json::{Document, Error, Failed, SCHEMA};
use crate::last_word::have_the_last_word;
use crate::shown::{Shown, in_json};

/// How and where a command says what it did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// One object, for a program.
    pub(crate) json: bool,
    /// On standard error: standard output has the bytes of a file.
    pub(crate) aside: bool,
}

/// Standard output and standard error.
///
/// Every text of others (paths, names, errors) goes to people as [`Shown`]: the methods that take plain text see to that, and
/// the callers of [`Output::line`], which takes text that is dressed.
///
/// If the reader closes the pipe early, only the printing ends: a copy goes on, and the exit code says
/// how it ended.
#[derive(Debug)]
pub(crate) struct Output {
    form: Form,
    closed: bool,
    style: Style,
    /// What people read as notes and remarks, for the object.
    notes: Vec<String>,
}

/// A number of things: `1 tensor`, `2 tensors`.
pub(crate) fn counted(count: usize, of: &str) -> String {
    format!("{count} {of}{}", if count == 1 { "" } else { "s" })
}

/// Whether text is styled for a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    color: bool,
}

impl Output {
    pub(crate) fn new(form: Form) -> Output {
        Output {
            form,
            closed: false,
            style: match form.aside {
                true => Style::of(&io::stderr()),
                false => Style::of(&io::stdout()),
            },
            notes: Vec::new(),
        }
    }

    /// Whether the output is JSON, for a program.
    pub(crate) fn is_json(&self) -> bool {
        self.form.json
    }

    pub(crate) fn style(&self) -> Style {
        self.style
    }

    /// Prints a line for people.
    ///
    /// # Errors
    /// If it cannot be written, except for a closed pipe.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> Result<(), Failure> {
        self.text(&format!("{line}\n"))
    }

    /// Prints text as it is.
    ///
    /// # Errors
    /// As [`Output::line`].
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Failure> {
        if self.closed {
            return Ok(());
        }
        let write = |stream: &mut dyn Write| {
            let written = stream.write_all(text.as_bytes());
            written.and_then(|()| stream.flush())
        };
        let written = match self.form.aside {
            true => write(&mut io::stderr().lock()),
            false => write(&mut io::stdout().lock()),
        };
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            other => other.map_err(Failure::Output),
        }
    }

    /// Prints the one object that a program reads.
    ///
    /// # Errors
    /// As [`Output::line`].
    pub(crate) fn json(&mut self, body: &impl Serialize) -> Result<(), Failure> {
        have_the_last_word();
        let text = self.document(body)?;
        self.line(text)
    }

    /// The text of that object.
    ///
    /// # Errors
    /// As [`Output::line`].
    pub(crate) fn document(&self, body: &impl Serialize) -> Result<String, Failure> {
        let document = Document {
            schema: SCHEMA,
            notes: &self.notes,
            body,
        };
        let text = serde_json::to_string_pretty(&document);
        let text = text.map_err(|error| Failure::Output(error.into()))?;
        Ok(in_json(&text))
    }

    /// What was noted and remarked so far.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Prints a table of plain text: as wide as the terminal, or as its content if the output is no terminal.
    ///
    /// # Errors
    /// As [`Output::line`].
    pub(crate) fn table(
        &mut self,
        header: &[&str],
        mut rows: Vec<Vec<String>>,
    ) -> Result<(), Failure> {
        for cell in rows.iter_mut().flatten() {
            *cell = Shown(&cell).to_string();
        }
        self.figures(header, rows)
    }

    /// Prints a table in which each text is the program's own. Its cells may have several lines.
    ///
    /// # Errors
    /// As [`Output::line`].
    pub(crate) fn figures(
        &mut self,
        header: &[&str],
        rows: Vec<Vec<String>>,
    ) -> Result<(), Failure> {
        let mut table = Table::new();
        table.load_style(NOTHING);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        if let Some((_, columns)) = self.terminal().size_checked() {
            table.set_width(columns);
        }
        table.set_header(header);
        table.add_rows(rows);
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        // Headings are short; where one is wrapped all the same, its second line stays plain.
        let text = table.trim_fmt();
        let (head, body) = text.split_once('\n').unwrap_or((&text, ""));
        let head = self.style.bold(head);
        self.line(format_args!("{head}\n{body}"))
    }

    /// Prints a note on standard error; in JSON mode the object has it.
    pub(crate) fn note(&mut self, text: &str) {
        self.notes.push(text.into());
        if !self.form.json {
            let mut stderr = io::stderr().lock();
            let word = Style::of(&stderr).yellow("note:");
            // If standard error fails, there is no other place to report to.
            let _ = writeln!(stderr, "{word} {}", Shown(text));
        }
    }

    /// Prints a line about what was printed before; in JSON mode the object has it.
    ///
    /// # Errors
    /// As [`Output::line`].
    pub(crate) fn remark(
        &mut self,
        text: &str,
        dress: impl FnOnce(Style, &str) -> String,
    ) -> Result<(), Failure> {
        self.notes.push(text.into());
        match self.form.json {
            true => Ok(()),
            false => self.line(dress(self.style, &Shown(text).to_string())),
        }
    }

    /// The number of columns of a line: those of the terminal, or 100 if the output is no terminal.
    pub(crate) fn columns(&self) -> usize {
        let size = self.terminal().size_checked();
        size.map_or(100, |(_, columns)| columns.into())
    }

    fn terminal(&self) -> Term {
        match self.form.aside {
            true => Term::stderr(),
            false => Term::stdout(),
        }
    }

    /// Prints a failure: an object on standard output for a program, a line on standard error for
    /// people.
    pub(crate) fn failure(&mut self, failure: &Failure) {
        have_the_last_word();
        let message = failure.to_string();
        // If this cannot be written either, the exit code reports the failure.
        if self.form.json {
            let kind = failure.kind();
            let error = Error {
                kind: kind.as_str(),
                exit_code: kind.exit_code(),
                message,
            };
            let _ = self.json(&Failed { error });
        } else if !matches!(failure, Failure::Closed) {
            self.error(&Shown(message).to_string());
        }
    }

    /// Prints a text in which nothing acts on a terminal as an error, for people.
    pub(crate) fn error(&self, text: &str) {
        let mut stderr = io::stderr().lock();
        let word = Style::of(&stderr).red("error:");
        let _ = writeln!(stderr, "{word} {text}");
    }
}

impl Style {
    /// Colours go to a terminal that can show them, unless `NO_COLOR` is set to anything
    /// (<https://no-color.org>).
    fn of(stream: &impl IsTerminal) -> Style {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Style {
            color: stream.is_terminal() && !unwanted && !dumb,
        }
    }

    /// Whether nothing is styled.
    pub(crate) fn is_plain(self) -> bool {
        !self.color
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.dressed("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.dressed("2", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.dressed("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.dressed("33", text)
    }

    fn red(self, text: &str) -> String {
        self.dressed("1;31", text)
    }

    fn dressed(self, code: &str, text: &str) -> String {
        if self.color && !text.is_empty() {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.into()
        }
    }
}

/// A number with its thousands apart.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_kept_apart() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (90_868_376, "90,868,376"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn plain_text_stays_plain() {
        let plain = Style { color: false };
        assert_eq!(plain.bold("text"), "text");
        let colored = Style { color: true };
        assert_eq!(colored.bold("text"), "\u{1b}[1mtext\u{1b}[0m");
    }
}
