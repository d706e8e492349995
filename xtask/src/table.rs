//! Tables on the terminal.

use comfy_table::{ContentArrangement, Table, presets::NOTHING};

/// `rows` under `head`, one line each, in columns as wide as their widest cell, without trailing blanks.
pub(crate) fn table<const N: usize>(
    head: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(head)
        .add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    format!("{}\n", table.trim_fmt())
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
        let expected = "\
stage          note
lint           ok
documentation
";
        assert_eq!(table(["stage", "note"], rows), expected);
    }
}
