//! The memories of a machine on a ring, and the links between them.

use std::collections::BTreeMap;
use std::f64::consts::{PI, TAU};

use transload::model::{Link, LinkClass, LinkId};
use transload::probe::{Found, ProbeReport};
use transload::{ByteRate, ByteSize, MemoryId, Topology};

use crate::markup::{put, px};
use crate::page::{folded, heading, picture, round};
use crate::scale::Scale;

pub(super) fn draw(page: &mut String, topology: &Topology, report: &ProbeReport) {
    let measured: BTreeMap<LinkId, Measured> = report
        .links
        .iter()
        .map(|link| (link.id, Measured::of(link)))
        .collect();
    let of = |link: &Link| measured.get(&link.id).copied().unwrap_or_default();
    // Links between the same two memories, in both directions, are one line: that of the fastest.
    let mut lines: BTreeMap<(MemoryId, MemoryId, LinkClass), Measured> = BTreeMap::new();
    // A backend lists links to memories of others, which may not be here.
    let is_here = |memory| topology.memory(memory).is_some();
    let links: Vec<&Link> = { topology.links().iter() }
        .filter(|link| is_here(link.id.src) && is_here(link.id.dst))
        .collect();
    for link in &links {
        let (src, dst) = (link.id.src, link.id.dst);
        let line = lines
            .entry((src.min(dst), src.max(dst), link.class))
            .or_default();
        *line = line.and(of(link));
    }
    heading(
        page,
        "Links",
        "The memories of the machine on a ring, by device, and the links between them. A line is as wide as the fastest link \
         between its ends is fast (logarithmic); the disc of a memory is as large as copies within it are fast.",
    );
    let rates = lines.values().filter_map(|line| line.rate());
    let scale = Scale::over(rates, [1.0, 7.0]);
    let mut memories: Vec<MemoryId> = topology.memories().iter().map(|memory| memory.id).collect();
    memories.sort();
    let ring = Ring::new(&memories);
    picture(
        page,
        "The memories and links of the machine",
        [760.0, 720.0],
        |svg| {
            legend(svg, scale);
            for ((src, dst, class), line) in lines.iter().filter(|((src, dst, _), _)| src != dst) {
                ring.line(svg, (*src, *dst), *class, *line, scale);
            }
            ring.memories(svg, |memory| {
                let within = lines
                    .iter()
                    .filter(|((src, dst, _), _)| (*src, *dst) == (memory, memory));
                let rates = within.filter_map(|(_, line)| line.rate());
                scale.between([4.0, 10.0]).at(rates.fold(0.0, f64::max))
            });
        },
    );
    let rows = links.iter().map(|link| {
        let told = match of(link) {
            Measured::Faulty => "wrong bytes: not used".into(),
            Measured::Not => "not measured: default costs".into(),
            Measured::Rate { rate, bytes } => {
                format!("{} at {}", ByteRate(rate * 1e9), ByteSize(bytes))
            }
        };
        let LinkId {
            src,
            dst,
            engine,
            access,
            ..
        } = link.id;
        let (class, access) = (link.class.as_str().into(), access.as_str().into());
        vec![
            format!("{src} → {dst}"),
            engine.to_string(),
            class,
            access,
            told,
        ]
    });
    let header = ["From → to", "Engine", "Class", "Access", "Rate"];
    folded(page, "All links", &header, &rows.collect::<Vec<_>>());
}

/// What a probe found of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Measured {
    #[default]
    Not,
    Faulty,
    /// In GB/s, of the largest size that was timed.
    Rate {
        rate: f64,
        bytes: u64,
    },
}

impl Measured {
    fn of(link: &transload::probe::LinkReport) -> Measured {
        let mut timed = link.sizes.iter().filter_map(|(bytes, found)| match found {
            Found::Time(time) if time.median_ns > 0 => Some((*bytes, time.median_ns)),
            _ => None,
        });
        match timed.next_back() {
            _ if link.faulty => Measured::Faulty,
            Some((bytes, ns)) => Measured::Rate {
                rate: bytes as f64 / ns as f64,
                bytes,
            },
            None => Measured::Not,
        }
    }

    fn rate(self) -> Option<f64> {
        match self {
            Measured::Rate { rate, .. } => Some(rate),
            _ => None,
        }
    }

    /// What a line tells of two links: a fault first, then the faster one.
    fn and(self, other: Measured) -> Measured {
        let is_other = match (self, other) {
            (Measured::Faulty, _) => false,
            (_, Measured::Faulty) => true,
            _ => other.rate() > self.rate(),
        };
        if is_other { other } else { self }
    }
}

/// Where the memories are, as angles.
struct Ring {
    angles: BTreeMap<MemoryId, f64>,
    step: f64,
}

const CENTRE: [f64; 2] = [380.0, 385.0];
const RADIUS: f64 = 200.0;

impl Ring {
    /// Devices are apart by one more place.
    fn new(memories: &[MemoryId]) -> Ring {
        let groups = memories.chunk_by(|one, next| one.device == next.device);
        let places = memories.len() + groups.clone().count();
        let step = TAU / places.max(1) as f64;
        let mut angles = BTreeMap::new();
        let mut place = 0.5;
        for group in groups {
            for memory in group {
                angles.insert(*memory, place * step - PI / 2.0);
                place += 1.0;
            }
            place += 1.0;
        }
        Ring { angles, step }
    }

    fn line(
        &self,
        svg: &mut String,
        (src, dst): (MemoryId, MemoryId),
        class: LinkClass,
        line: Measured,
        scale: Scale,
    ) {
        let (from, to) = (self.angles[&src], self.angles[&dst]);
        let apart = (to - from).abs().min(TAU - (to - from).abs());
        // The nearer the ends, the nearer to the ring the line stays.
        let turn = if (to - from).abs() > PI { PI } else { 0.0 };
        let bend = RADIUS * 0.85 * (1.0 - apart / PI);
        let [x, y] = at((from + to) / 2.0 + turn, bend);
        let ([fx, fy], [tx, ty]) = (at(from, RADIUS), at(to, RADIUS));
        let path = format!("M{fx} {fy}Q{x} {y} {tx} {ty}");
        let (style, width, told) = match line {
            Measured::Rate { rate, .. } => ("", scale.at(rate), ByteRate(rate * 1e9).to_string()),
            Measured::Faulty => (" bad", 3.0, "wrong bytes".into()),
            Measured::Not => (" unknown", 1.0, "not measured".into()),
        };
        let class = class.as_str();
        put!(svg, r#"<path class="link {}{}" d="{}" stroke-width="{}">"#; class, style, path, px(width));
        put!(svg, "<title>{} – {}, {}: {}</title></path>"; src, dst, class, told);
        if line == Measured::Faulty {
            // The middle of the curve.
            let middle = |from: f64, by: f64, to: f64| px(from / 4.0 + by / 2.0 + to / 4.0);
            let (x, y) = (middle(fx, x, tx), middle(fy, y, ty) + 4.0);
            put!(svg, r#"<text class="mid strong" x="{}" y="{}">✕</text>"#; x, y);
        }
    }

    fn memories(&self, svg: &mut String, radius: impl Fn(MemoryId) -> f64) {
        let all: Vec<(MemoryId, f64)> = self
            .angles
            .iter()
            .map(|(id, angle)| (*id, *angle))
            .collect();
        for group in all.chunk_by(|(one, _), (next, _)| one.device == next.device) {
            let (first, last) = (group[0].1, group[group.len() - 1].1);
            let [fx, fy] = at(first - self.step * 0.4, RADIUS + 16.0);
            let [tx, ty] = at(last + self.step * 0.4, RADIUS + 16.0);
            let r = RADIUS + 16.0;
            let large = u8::from(last - first + self.step * 0.8 > PI);
            let path = format!("M{fx} {fy}A{r} {r} 0 {large} 1 {tx} {ty}");
            put!(svg, r#"<path class="arc" d="{}"/>"#; path);
        }
        for (memory, angle) in all {
            let [cx, cy] = at(angle, RADIUS);
            put!(svg, r#"<circle class="node" cx="{}" cy="{}" r="{}"/>"#; cx, cy, px(radius(memory)));
            let [x, y] = at(angle, RADIUS + 24.0);
            let (class, turn) = if angle > PI / 2.0 {
                ("end", 180.0)
            } else {
                ("", 0.0)
            };
            let turn = format!("rotate({} {x} {y})", px(angle.to_degrees() + turn));
            put!(svg, r#"<text class="{}" x="{}" y="{}" dy="0.35em" transform="{}">{}</text>"#;
                class, x, y, turn, memory);
        }
    }
}

/// A place by its angle, clockwise from the right, and its distance from the centre.
fn at(angle: f64, distance: f64) -> [f64; 2] {
    let [x, y] = CENTRE;
    [
        px(x + distance * angle.cos()),
        px(y + distance * angle.sin()),
    ]
}

/// The classes of links, and three widths.
fn legend(svg: &mut String, scale: Scale) {
    let mut entry = |at: usize, y: f64, class: &str, width: f64, text: &str| {
        let x = 20.0 + 122.0 * at as f64;
        put!(svg, r#"<path class="link {}" d="M{} {}h32" stroke-width="{}"/>"#; class, x, y, px(width));
        put!(svg, r#"<text x="{}" y="{}">{}</text>"#; x + 38.0, y + 4.0, text);
    };
    for (index, class) in LinkClass::ALL.into_iter().enumerate() {
        entry(index, 14.0, class.as_str(), 3.0, class.as_str());
    }
    let mut ticks = scale.ticks(false);
    if ticks.len() < 3 {
        ticks = scale.ticks(true);
    }
    let [first, last] = [0, ticks.len().saturating_sub(1)];
    let mut shown = vec![first, last / 3, last * 2 / 3, last];
    shown.dedup();
    for (index, rate) in shown.iter().filter_map(|at| ticks.get(*at)).enumerate() {
        let text = round(ByteRate(rate * 1e9));
        entry(index, 34.0, "local", scale.at(*rate), &text);
    }
    entry(4, 34.0, "unknown", 1.0, "not measured");
}
