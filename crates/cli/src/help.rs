//! Help on a terminal that is narrower than the text was written for.

use clap::{Command, CommandFactory};
use console::{Term, measure_text_width};

use crate::arguments::Arguments;

/// The definition of what can be typed, with help for the terminal that there is.
pub(crate) fn command() -> Command {
    let command = Arguments::command();
    match columns() {
        Some(columns) => narrowed(command, columns),
        None => command,
    }
}

/// Wraps what clap does not: the usage, and options that are longer than a line.
pub(crate) fn fitted(text: &str) -> String {
    match columns() {
        Some(columns) => {
            let lines: Vec<String> = text.lines().map(|line| folded(line, columns)).collect();
            lines.join("\n")
        }
        None => text.trim_end().into(),
    }
}

/// The columns of a terminal that is too narrow for the texts as they are. As clap does, it asks standard output first.
fn columns() -> Option<usize> {
    let size = Term::stdout().size_checked();
    let (_, columns) = size.or_else(|| Term::stderr().size_checked())?;
    (columns < WRITTEN_FOR).then_some(columns.max(NARROWEST).into())
}

/// The columns of the texts behind the options.
const WRITTEN_FOR: u16 = 80;

/// The longest words are no longer.
const NARROWEST: u16 = 40;

fn narrowed(command: Command, columns: usize) -> Command {
    let after = command
        .get_after_help()
        .map(|text| rewrapped(&text.to_string(), columns));
    let command = match after {
        Some(text) => command.after_help(text),
        None => command,
    };
    let command = command.next_line_help(true);
    command.mut_subcommands(|command| narrowed(command, columns))
}

/// Breaks lines anew. A line that goes on with the one before is indented more, or as much where neither is an entry of a
/// list: a term, two spaces, and what it means.
fn rewrapped(text: &str, columns: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        match lines.last_mut() {
            Some(last) if goes_on(last, line) => {
                // A term alone on its line is apart from its meaning, too.
                *last += if indent(line) > indent(last) && !is_entry(last) {
                    "  "
                } else {
                    " "
                };
                *last += line.trim_start();
            }
            _ => lines.push(line.into()),
        }
    }
    let lines: Vec<String> = lines.iter().map(|line| folded(line, columns)).collect();
    lines.join("\n")
}

fn goes_on(last: &str, line: &str) -> bool {
    let is_empty = |line: &str| line.trim().is_empty();
    let (before, now) = (indent(last), indent(line));
    let is_deeper = before > 0 && now > before;
    !is_empty(last)
        && !is_empty(line)
        && (is_deeper || now == before && !is_entry(last) && !is_entry(line))
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn is_entry(line: &str) -> bool {
    line.trim().contains("  ")
}

/// Breaks a line that is too long between words, with the other lines indented more than the first one.
fn folded(line: &str, columns: usize) -> String {
    if measure_text_width(line) <= columns {
        return line.into();
    }
    let indent = indent(line);
    let (term, rest) = line.trim_start().split_once("  ").unwrap_or(("", line));
    let term = (!term.is_empty()).then(|| format!("{term} "));
    let words = term
        .iter()
        .map(String::as_str)
        .chain(rest.split_whitespace());
    let mut text = " ".repeat(indent);
    let mut used = indent;
    let mut is_first = true;
    for word in words {
        let width = measure_text_width(word);
        if is_first {
            is_first = false;
        } else if used + 1 + width > columns {
            text.truncate(text.trim_end().len());
            text += "\n";
            used = indent + 2;
            text += &" ".repeat(used);
        } else {
            text += " ";
            used += 1;
        }
        text += word;
        used += width;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_and_lists_are_broken_anew() {
        let text = "\
One sentence that is longer than a line of the
terminal.

List:
  cpu:0          the heap, where most bytes of most
                 programs are
  sim:N, sim:N/KIND
                 those of the machine
  One that is no entry of
  a list.";
        let narrow = "\
One sentence that is
  longer than a line of
  the terminal.

List:
  cpu:0  the heap, where
    most bytes of most
    programs are
  sim:N, sim:N/KIND
    those of the machine
  One that is no entry
    of a list.";
        assert_eq!(rewrapped(text, 24), narrow);
    }
}
