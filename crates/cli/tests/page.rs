//! The pages of `--html`.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{Folder, skip, topology};
use transload::{ByteRate, Nanoseconds};

/// A driver's name for a device, with everything that could end a text, a value or an object.
const HOSTILE: &str = "</script></td>\"'><script>alert(1)</script>&amp; 𝄞";

/// Two memories, the device of one with the name.
fn machine(folder: &Folder) {
    let device = |id: &str, name: &str, kind: &str| {
        let name = Value::from(name).to_string();
        format!(
            "[[device]]\nid = \"{id}\"\nname = {name}\nmemory = [{{ kind = \"{kind}\", memory_bytes = 8_000_000_000 }}]\n"
        )
    };
    let link = |src: &str, dst: &str, engine: &str| {
        format!(
            "[[link]]\nsrc = \"{src}\"\ndst = \"{dst}\"\nengine = \"{engine}\"\nclass = \"pcie\"\nlatency_ns = 600\n\
             bytes_per_second = 25_000_000_000\nboth = {}\n",
            src != dst
        )
    };
    let text = [
        "schema = 1\nname = \"hostile\"\n".into(),
        device("cpu:0", "host", "pageable"),
        device("sim:0", HOSTILE, "device"),
        link("cpu:0/pageable", "cpu:0/pageable", "cpu:0#0"),
        link("cpu:0/pageable", "sim:0/device", "sim:0#0"),
    ];
    fs::write(folder.path("machine.toml"), text.concat()).unwrap();
}

const PROBE: [&str; 6] = [
    "probe",
    "--quick",
    "--topology",
    "machine.toml",
    "--html",
    "page.html",
];

/// The object in a page.
fn object(page: &str) -> Value {
    let (_, rest) = page
        .split_once("<script type=\"application/json\">")
        .unwrap();
    let (object, _) = rest.split_once("</script>").unwrap();
    serde_json::from_str(object).unwrap()
}

#[test]
fn a_page_has_the_object_of_json_no_program_and_no_text_that_is_not_escaped() {
    let folder = Folder::new("page-probe");
    machine(&folder);
    let told = folder.run(&PROBE).stdout();
    assert!(told.contains("Page in page.html."), "{told}");
    let page = fs::read_to_string(folder.path("page.html")).unwrap();
    let printed = folder.json(&PROBE);
    assert_eq!(object(&page), printed);
    assert_eq!(
        object(&fs::read_to_string(folder.path("page.html")).unwrap()),
        printed
    );
    assert_eq!(page.matches("<script").count(), 1);
    let escaped =
        "&lt;/script&gt;&lt;/td&gt;&quot;'&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;amp; 𝄞";
    assert!(page.contains(escaped), "{page}");
    for outside in [
        "http:",
        "https:",
        " src=",
        "href=",
        "url(",
        "@import",
        "javascript:",
    ] {
        assert!(!page.contains(outside), "{outside}");
    }
    for word in [
        "Simulated",
        "default-src 'none'",
        "prefers-color-scheme",
        "Budget",
        "Not saved: ",
    ] {
        assert!(page.contains(word), "{word}");
    }
    // Nothing else is in the folder: the page was moved to its place.
    assert_eq!(folder.names(), ["machine.toml", "page.html"]);
}

#[test]
fn a_page_of_measured_ways_has_each_way() {
    let folder = Folder::new("page-explain");
    let machine = topology("workstation.toml");
    let explain = [
        "explain",
        "sim:0",
        "cpu:0",
        "1MiB",
        "--measure",
        "--html",
        "page.html",
        "--topology",
        &machine,
    ];
    let printed = folder.json(&explain);
    let page = fs::read_to_string(folder.path("page.html")).unwrap();
    assert_eq!(object(&page), printed);
    let ways = printed["measured"].as_array().unwrap();
    assert!(ways.len() > 1);
    assert_eq!(page.matches("class=\"dot ").count(), ways.len());
    assert_eq!(page.matches("class=\"guess\"").count(), ways.len());
    for way in ways {
        let time = Nanoseconds((way["seconds"].as_f64().unwrap() * 1e9).round() as u64);
        assert!(page.contains(&format!("<td>{time} ±")), "{time}: {page}");
    }
}

#[test]
fn a_page_that_cannot_be_written_is_refused_before_anything_is_measured() {
    let folder = Folder::new("page-refused");
    machine(&folder);
    fs::create_dir(folder.path("taken")).unwrap();
    for place in ["taken", "machine.toml/page.html", "no/page.html", "-"] {
        for command in [
            &PROBE[..5],
            &["explain", "cpu:0", "cpu:0", "1", "--measure", "--html"],
        ] {
            let run = folder.run(&[command, &[place]].concat());
            assert_eq!((run.code(), run.stdout()), (2, String::new()));
            assert!(run.stderr().contains(place), "{}", run.stderr());
        }
    }
    let run = folder.run(&["explain", "cpu:0", "cpu:0", "1", "--html", "page.html"]);
    assert_eq!(run.code(), 2);
    assert!(run.stderr().contains("--measure"), "{}", run.stderr());
    // The page would replace the profile.
    let both = [&PROBE[..5], &["one.toml", "--profile", "./one.toml"]].concat();
    let run = folder.run(&both);
    assert_eq!((run.code(), run.stdout()), (2, String::new()));
    assert!(
        run.stderr()
            .contains("--html would replace one.toml, which is the profile"),
        "{}",
        run.stderr()
    );
    assert_eq!(folder.names(), ["machine.toml", "taken"]);
}

#[test]
fn a_browser_without_a_network_shows_the_figures_of_the_object() {
    let named = std::env::var_os("TRANSLOAD_CHROMIUM");
    let chromium = named
        .as_deref()
        .map_or(Path::new("/usr/bin/chromium"), Path::new);
    if named.is_none() && !chromium.exists() {
        return skip("needs Chromium, which is not here");
    }
    let folder = Folder::new("page-browser");
    machine(&folder);
    let printed = folder.json(&PROBE);
    let (dom, console) = shown(chromium, &folder, "page.html");
    assert_eq!(console, "");
    assert_eq!(object(&dom), printed);
    let pairs = printed["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 4 * 6);
    let (least, most) = (pairs[0]["bytes"].as_u64(), pairs[5]["bytes"].as_u64());
    for (at, pair) in pairs.iter().enumerate() {
        let name = format!(
            "{} → {}",
            pair["src"].as_str().unwrap(),
            pair["dst"].as_str().unwrap()
        );
        // The table of all figures: a row for each pair, a cell for each size.
        let heading = format!("<th scope=\"row\">{name}</th>");
        let (_, row) = dom.split_once(&heading).unwrap();
        let cell = row.split("<td>").nth(1 + at % 6).unwrap();
        let Some(seconds) = pair["seconds"].as_f64() else {
            // No link joins two buffers of the device.
            assert!(name == "sim:0/device → sim:0/device" && cell.starts_with("no way"));
            continue;
        };
        let rate = ByteRate(pair["gb_per_s"].as_f64().unwrap() * 1e9).to_string();
        let time = Nanoseconds((seconds * 1e9).round() as u64).to_string();
        let told = format!("{rate} ±0% ({time})");
        assert!(cell.starts_with(&told), "{name}: {cell}");
        // The heat maps: a cell for each pair.
        let method = pair["method"].as_str().unwrap();
        let size = transload::ByteSize(pair["bytes"].as_u64().unwrap());
        let title = format!("title=\"{name}, {size}: {rate} ±0% ({time}), {method}\">\n<b>");
        let is_shown = [least, most].contains(&pair["bytes"].as_u64());
        assert_eq!(dom.contains(&title), is_shown, "{title}");
        if is_shown {
            let (_, rest) = dom.split_once(&title).unwrap();
            let (figure, _) = rest.split_once("</b>").unwrap();
            assert!(
                figure == time || rate == format!("{figure} GB/s"),
                "{figure}"
            );
        }
    }
    // A page that broke the policy, or had an error, would be told.
    let page = fs::read_to_string(folder.path("page.html")).unwrap();
    let broken = page.replace(
        "</main>",
        "<img src=\"http://127.0.0.1:9/x.png\"><script>document.title = 'x';</script></main>",
    );
    fs::write(folder.path("broken.html"), broken).unwrap();
    let (_, console) = shown(chromium, &folder, "broken.html");
    assert_eq!(console.lines().count(), 2, "{console}");
}

/// The document that a browser makes of a page, and the lines of its console.
fn shown(chromium: &Path, folder: &Folder, page: &str) -> (String, String) {
    let mut command = Command::new(chromium);
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
        ])
        // Every name and every connection fails.
        .args([
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--proxy-server=127.0.0.1:9",
        ])
        .arg(format!(
            "--user-data-dir={}",
            folder.path("browser").display()
        ))
        .arg("--dump-dom")
        .arg(format!("file://{}", folder.path(page).display()));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    let console: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    (
        String::from_utf8(output.stdout).unwrap(),
        console.join("\n"),
    )
}

#[test]
fn no_output_replaces_a_file_that_the_command_reads() {
    let folder = Folder::new("inputs");
    let machine = fs::read_to_string(support::topology("laptop.toml")).unwrap();
    fs::write(folder.path("lap.toml"), &machine).unwrap();
    folder.file("model", 100);
    for (arguments, option) in [
        ("copy model sim:0 --trace ./lap.toml", "--trace"),
        ("copy model sim:0 --out lap.toml", "--out"),
        ("copy model cpu:0/file:lap.toml sim:0", "a stop"),
        (
            "explain cpu:0 sim:0 1MiB --measure --html lap.toml",
            "--html",
        ),
        ("probe --quick --html lap.toml", "--html"),
        ("probe --quick --profile lap.toml", "--profile"),
    ] {
        let arguments = arguments.split(' ').chain(["--topology", "lap.toml"]);
        let run = folder.run(&arguments.collect::<Vec<_>>());
        let told = format!("{option} would replace ");
        assert!(run.stderr().contains(&told), "{}", run.stderr());
        assert_eq!(run.code(), 2);
    }
    let now = fs::read_to_string(folder.path("lap.toml")).unwrap();
    assert_eq!(
        (now, folder.names()),
        (machine, vec!["lap.toml".into(), "model".into()])
    );
}
