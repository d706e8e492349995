//! Plain text tables: columns as wide as their widest cell.

/// `rows` under `head`, one line each, without trailing blanks. The last
/// column is never padded, so that long texts there do no harm.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = head.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = line(&head, &widths);
    let rules = widths.map(|width| "-".repeat(width.min(40)));
    text.push_str(&line(&rules, &widths));
    for row in rows {
        text.push_str(&line(row, &widths));
    }
    text
}

fn line<S: AsRef<str>>(cells: &[S], widths: &[usize]) -> String {
    let mut text = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        let cell = cell.as_ref();
        text.push_str(cell);
        text.push_str(&" ".repeat(width.saturating_sub(cell.chars().count()) + 2));
    }
    format!("{}\n", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_no_line_ends_in_blanks() {
        let rows = [
            ["lint".to_owned(), "ok".to_owned()],
            ["documentation".to_owned(), String::new()],
        ];
        let text = table(["stage", "note"], &rows);
        let expected = "\
stage          note
-------------  ----
lint           ok
documentation
";
        assert_eq!(text, expected);
    }
}
