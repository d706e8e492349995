//! A page for a browser: one file, without a script and without the network, light and dark, on a screen, a phone or paper.

use std::fmt::Display;
use std::time::{SystemTime, UNIX_EPOCH};

use transload::{ByteSize, Profile};

use crate::machine::Machine;
use crate::markup::{json, put};

/// Begins a page with what was done and on which machine. `facts` are names and values beside those of the machine, `notes`
/// what the command told beside its figures.
pub(crate) fn begin(
    title: &str,
    machine: &Machine,
    facts: &[(&str, String)],
    notes: &[String],
) -> String {
    let mut page = format!("{HEAD}{STYLE}");
    put!(&mut page, "<title>{} – Transload</title></head>\n<body><main>\n<h1>{}</h1>"; title, title);
    if machine.is_mixed() {
        let told =
            "Simulated: a stand-in takes part. Its times are those of a model, and no measurement.";
        put!(&mut page, r#"<p class="banner">{}</p>"#; told);
    }
    let opened = machine.manager.opened();
    let print = Profile::new(&opened, Vec::new());
    let print = print.machine();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let cores = (print.cpus > 0).then(|| ("Cores", print.cpus.to_string()));
    let own = [
        ("System", format!("{} {}", print.os, print.arch)),
        ("Transload", env!("CARGO_PKG_VERSION").into()),
        ("Date", date(now.map_or(0, |since| since.as_secs()))),
    ];
    let all = [("Processor", print.cpu.clone())]
        .into_iter()
        .chain(cores)
        .chain(own);
    page += "<dl>\n";
    for (name, value) in all.chain(facts.iter().cloned()) {
        put!(&mut page, "<div><dt>{}</dt><dd>{}</dd></div>"; name, value);
    }
    page += "</dl>\n";
    let devices = opened.devices().iter().map(|device| {
        let kind = match (device.simulated, device.software) {
            (true, _) => "simulated",
            (false, true) => "software",
            (false, false) => "hardware",
        };
        let size = |bytes| ByteSize(bytes).to_string();
        let memory = device.memory_bytes.map_or_else(String::new, size);
        let pci = device.pci.map_or_else(String::new, |pci| pci.to_string());
        let driver = device.driver.clone().unwrap_or_default();
        vec![
            device.id.to_string(),
            device.name.clone(),
            kind.into(),
            driver,
            memory,
            pci,
        ]
    });
    let header = ["Device", "Name", "Kind", "Driver", "Memory", "PCI"];
    table(&mut page, &header, &devices.collect::<Vec<_>>());
    if !notes.is_empty() {
        page += "<h2>Remarks</h2>\n<ul>\n";
        notes
            .iter()
            .for_each(|note| put!(&mut page, "<li>{}</li>"; note));
        page += "</ul>\n";
    }
    page
}

/// Ends a page with the object that `--json` prints.
pub(crate) fn end(mut page: String, object: &str) -> String {
    page += "<p class=\"dim\">This page needs no network and contains no program. Its source ends with the object that \
             --json prints.</p>\n<script type=\"application/json\">";
    page += &json(object);
    page + "</script>\n</main></body></html>\n"
}

/// A heading, and how to read what follows.
pub(crate) fn heading(page: &mut String, title: &str, told: &str) {
    put!(page, "<h2>{}</h2>\n<p>{}</p>"; title, told);
}

/// A picture of that size, which shrinks to the page as far as it stays legible.
pub(crate) fn picture(
    page: &mut String,
    told: &str,
    [width, height]: [f64; 2],
    draw: impl FnOnce(&mut String),
) {
    let style = format!(
        "width:100%;max-width:{width}px;min-width:{}px",
        width * 0.75
    );
    put!(page, r#"<div class="wide"><svg viewBox="0 0 {} {}" style="{}" role="img" aria-label="{}">"#;
        width, height, style, told);
    draw(page);
    *page += "</svg></div>\n";
}

/// A table of plain text, folded.
pub(crate) fn folded(page: &mut String, summary: &str, header: &[&str], rows: &[Vec<String>]) {
    put!(page, "<details><summary>{}</summary>"; summary);
    table(page, header, rows);
    *page += "</details>\n";
}

/// A table of plain text. The first cell of a row is its heading. Columns without any text are left out.
pub(crate) fn table(page: &mut String, header: &[&str], rows: &[Vec<String>]) {
    let is_told = |at: usize| rows.iter().any(|row| !row[at].is_empty());
    let told: Vec<usize> = (0..header.len()).filter(|at| is_told(*at)).collect();
    *page += "<div class=\"wide\"><table class=\"list\"><thead><tr>\n";
    told.iter()
        .for_each(|at| put!(page, r#"<th scope="col">{}</th>"#; header[*at]));
    *page += "</tr></thead><tbody>\n";
    for row in rows {
        *page += "<tr>\n";
        for at in &told {
            match at {
                0 => put!(page, r#"<th scope="row">{}</th>"#; row[0]),
                _ => put!(page, "<td>{}</td>"; row[*at]),
            }
        }
        *page += "</tr>\n";
    }
    *page += "</tbody></table></div>\n";
}

/// A value with three digits.
pub(crate) fn digits(value: f64) -> String {
    // Rounded first: 9.996 has two digits before the point then.
    let rounded: f64 = format!("{value:.2e}").parse().unwrap_or(value);
    let before = rounded.max(1e-9).log10().floor() as i32;
    format!("{rounded:.*}", (2 - before).clamp(0, 9) as usize)
}

/// A round value with its unit, without digits that say nothing.
pub(crate) fn round(value: impl Display) -> String {
    value.to_string().replace(".00", "").replace(".0 ", " ")
}

/// A time in seconds since 1970 as a date, after Howard Hinnant's `civil_from_days`.
fn date(unix_s: u64) -> String {
    let days = unix_s / 86400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    // Years begin in March here.
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        ..10 => (era * 400 + year, month + 3),
        _ => (era * 400 + year + 1, month - 9),
    };
    let (hour, minute) = (unix_s / 3600 % 24, unix_s / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// The policy allows the page's own style and nothing else: no script, no request.
const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
"#;

const STYLE: &str = r"<style>
:root { color-scheme: light dark; --page: #fff; --card: #f6f8fa; --ink: #1f2328; --dim: #59636e; --line: #d1d9e0;
--warn: #a40e26; --low: #eaf3fc; --high: #0a3f80; --slow: #7a3303; --fast: #fdf1e3; --over: #fff;
--m1: #0969da; --m2: #1a7f37; --m3: #bc4c00; --m4: #8250df; --m5: #0b7285 }
@media screen and (prefers-color-scheme: dark) { :root { --page: #0d1117; --card: #151b23; --ink: #e6edf3; --dim: #9198a1;
--line: #3d444d; --warn: #ff7b72; --low: #0f2238; --high: #79c0ff; --slow: #ffb26b; --fast: #2b1a0c; --over: #0d1117;
--m1: #58a6ff; --m2: #3fb950; --m3: #f0883e; --m4: #bc8cff; --m5: #39c5cf } }
* { box-sizing: border-box } body { margin: 0; background: var(--page); color: var(--ink); font: 14px/1.45 system-ui, sans-serif }
main { max-width: 1440px; margin: 0 auto; padding: 16px } h1 { font-size: 24px; margin: 8px 0 16px } h2 { font-size: 18px; margin: 36px 0 6px }
p { margin: 6px 0; max-width: 75ch } ul { margin: 6px 0; padding-left: 20px } .dim, dt, figcaption { color: var(--dim) }
.banner { border: 2px dashed var(--warn); padding: 6px 12px; font-weight: 600 }
dl { display: flex; flex-wrap: wrap; gap: 8px 28px; margin: 12px 0 } dt { font-size: 12px } dd { margin: 0; font-weight: 600 }
.wide { overflow-x: auto; margin: 8px 0 } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th { font-weight: 600; text-align: left; white-space: nowrap } .list td, .list th { padding: 3px 14px 3px 0; border-top: 1px solid var(--line); vertical-align: top }
.list thead th { border-top: 0; color: var(--dim); font-size: 12px } details { margin: 8px 0 } summary { cursor: pointer; color: var(--dim) }
.grid { font-size: 12px; line-height: 1.25; border-collapse: separate; border-spacing: 1px } .grid thead th { font-size: 11px; text-align: center; padding: 2px }
.grid tbody th { position: sticky; left: 0; background: var(--page); padding-right: 8px; z-index: 1 } .grid tbody td { text-align: center; padding: 4px 2px 9px; min-width: 66px; height: 44px }
.grid .first { border-left: 5px solid var(--page) } .grid .device { color: var(--dim); border-bottom: 2px solid var(--line) } tr.first > * { border-top: 5px solid var(--page) }
.grid b { display: block; white-space: nowrap } .grid small { display: block; font-size: 10px; white-space: nowrap }
.heat { background: color-mix(in oklab, var(--high) var(--t), var(--low)) } .time .heat { background: color-mix(in oklab, var(--slow) var(--t), var(--fast)) }
.deep { color: var(--over) } .grid tbody .doubt { background-image: repeating-linear-gradient(135deg, var(--ink) 0 2px, var(--page) 2px 6px); background-size: 100% 7px; background-repeat: no-repeat; background-position: bottom }
.none { background: repeating-linear-gradient(45deg, transparent 0 4px, var(--line) 4px 5px); color: var(--dim) }
.grid .wrong { outline: 3px double var(--warn); outline-offset: -3px; color: var(--warn); background: repeating-linear-gradient(45deg, transparent 0 4px, var(--warn) 4px 5px) } .none b, .none small, .wrong b, .wrong small { background: var(--page) }
.grid.curves tbody td { padding: 0; box-shadow: inset 0 0 0 1px var(--line); min-width: 68px } .curves svg { display: block; width: 70px; height: 45px }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink) } svg .dim { fill: var(--dim) } svg .end { text-anchor: end } svg .mid { text-anchor: middle } svg .strong { font-weight: 600; font-size: 12px }
.rule { stroke: var(--line); fill: none } .curve { fill: none; stroke: var(--c); stroke-width: 1.5 } .faint { stroke-width: 1; opacity: .55 } .dot { fill: var(--c) } .open { fill: var(--page); stroke: var(--c) }
.switch { stroke: var(--ink); stroke-dasharray: 3 2 } .cut { stroke: var(--dim) } .bar { stroke: var(--c); stroke-width: 2; fill: none } .guess { fill: var(--page); stroke: var(--ink); stroke-width: 1.5 }
.DirectCopy { --c: var(--m1) } .ZeroCopy { --c: var(--m2); stroke-dasharray: 1 2 } .HostStaged { --c: var(--m3); stroke-dasharray: 6 2 } .PeerToPeer { --c: var(--m4); stroke-dasharray: 8 2 2 2 } .UnifiedMemory { --c: var(--m5); stroke-dasharray: 3 3 }
.back { fill: var(--page) } .dot, .open, .bar { stroke-dasharray: none } .link { fill: none; stroke: var(--c); opacity: .7 } .local { --c: var(--m1) } .fabric { --c: var(--m4); stroke-dasharray: 14 3 } .pcie { --c: var(--m2); stroke-dasharray: 7 3 } .storage { --c: var(--m3); stroke-dasharray: 2 3 } .network { --c: var(--m5); stroke-dasharray: 10 3 2 3 }
.bad { --c: var(--warn); opacity: 1 } .unknown { --c: var(--dim); opacity: .5 } .arc { fill: none; stroke: var(--dim); stroke-width: 3 } .node { fill: var(--ink) }
.dense { font-size: 10px } .grid.dense tbody td { min-width: 40px; padding: 3px 1px 8px; height: 36px } .dense small, .grid.dense thead th { font-size: 8px } .grid.dense .first { border-left-width: 1px } .dense tr.first > * { border-top-width: 2px }
.grid.curves.dense tbody td { min-width: 40px } .dense.curves svg { width: 42px; height: 27px }
@media print { body { font-size: 11px } main { max-width: none; padding: 0 } .wide { overflow: visible } .wide svg { max-width: 100% !important; min-width: 0 !important } h2, p { break-after: avoid } tr, svg, .grid { break-inside: avoid } .list { font-size: 8px } .list td, .list th { padding-right: 6px } p { max-width: none }
* { print-color-adjust: exact; -webkit-print-color-adjust: exact } details::details-content { content-visibility: visible; display: block } .grid td { min-width: 0 } .grid { font-size: 9px } }
</style>
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix_s, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_827_696, "2000-02-29 12:34 UTC"),
            (1_767_225_599, "2025-12-31 23:59 UTC"),
        ] {
            assert_eq!(date(unix_s), text);
        }
    }

    #[test]
    fn values_have_three_digits() {
        for (value, text) in [
            (306.4, "306"),
            (23.26, "23.3"),
            (9.996, "10.0"),
            (0.07131, "0.0713"),
        ] {
            assert_eq!(digits(value), text);
        }
    }
}
