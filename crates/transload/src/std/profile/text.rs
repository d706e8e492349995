//! Profiles as TOML.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use transload_core::{Access, Compared, LinkId};

use super::{
    DevicePrint, FORMAT, Fingerprint, MeasuredLink, MeasuredRoute, Point, Profile, ProfileError,
};

/// Read first: what else there is depends on it.
#[derive(Deserialize)]
struct Head {
    format: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct Document {
    format: u32,
    machine: MachineText,
    #[serde(default, rename = "link")]
    links: Vec<LinkText>,
    #[serde(default, rename = "route", skip_serializing_if = "Vec::is_empty")]
    routes: Vec<RouteText>,
}

#[derive(Serialize, Deserialize)]
struct RouteText {
    link: Vec<LinkText>,
    #[serde(rename = "point")]
    points: Vec<ComparedText>,
}

#[derive(Serialize, Deserialize)]
struct ComparedText {
    bytes: u64,
    predicted_ns: u64,
    ns: u64,
}

#[derive(Serialize, Deserialize)]
struct MachineText {
    library: String,
    os: String,
    arch: String,
    cpu: String,
    cpus: u64,
    #[serde(default, rename = "device")]
    devices: Vec<DeviceText>,
}

#[derive(Serialize, Deserialize)]
struct DeviceText {
    id: String,
    backend: String,
    name: String,
    driver: Option<String>,
    uuid: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct LinkText {
    src: String,
    dst: String,
    engine: String,
    access: String,
    #[serde(default, skip_serializing_if = "is_false")]
    faulty: bool,
    #[serde(default, rename = "point", skip_serializing_if = "Vec::is_empty")]
    points: Vec<PointText>,
}

#[derive(Serialize, Deserialize)]
struct PointText {
    bytes: u64,
    ns: u64,
    low_ns: u64,
    high_ns: u64,
    samples: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Profile {
    /// Returns the profile as the text of a file.
    pub(super) fn to_toml(&self) -> io::Result<String> {
        let document = Document {
            format: FORMAT,
            machine: MachineText::from(&self.machine),
            links: self.links.iter().map(LinkText::from).collect(),
            routes: self.routes.iter().map(RouteText::from).collect(),
        };
        let text = toml::to_string_pretty(&document).map_err(io::Error::other)?;
        Ok(format!("{HEADER}\n{text}"))
    }

    /// Reads the text of a file. `origin` is the file's name in errors.
    ///
    /// # Errors
    /// When it is no profile, or is of a later format.
    pub fn parse(text: &str, origin: Option<&Path>) -> Result<Profile, ProfileError> {
        let path = || origin.map(Path::to_path_buf);
        let garbled = |reason: String| ProfileError::Garbled {
            path: path(),
            reason,
        };
        let read = |error: toml::de::Error| garbled(told(&error, text));
        let head: Head = toml::from_str(text).map_err(read)?;
        match head.format {
            None => return Err(garbled("it does not say which format it has".into())),
            Some(format) if format > u64::from(FORMAT) => {
                let path = path();
                return Err(ProfileError::Newer { path, format });
            }
            Some(0) => return Err(garbled("there is no format 0".into())),
            Some(_) => {}
        }
        let document: Document = toml::from_str(text).map_err(read)?;
        let mut links = Vec::with_capacity(document.links.len());
        let mut known = BTreeSet::new();
        for link in document.links {
            let link = link.measured().map_err(garbled)?;
            if !known.insert(link.id) {
                let LinkId {
                    src, dst, engine, ..
                } = link.id;
                return Err(garbled(format!(
                    "it lists {src} → {dst} over {engine} twice"
                )));
            }
            links.push(link);
        }
        let routes = document.routes.into_iter().map(RouteText::measured);
        let routes = routes.collect::<Result<_, _>>().map_err(garbled)?;
        Ok(Profile {
            machine: document.machine.into(),
            links,
            routes,
            origin: path(),
        })
    }
}

impl LinkText {
    fn measured(self) -> Result<MeasuredLink, String> {
        let parse = |error: transload_core::ParseError| error.to_string();
        let access = Access::ALL
            .into_iter()
            .find(|access| access.as_str() == self.access);
        let id = LinkId {
            src: self.src.parse().map_err(parse)?,
            dst: self.dst.parse().map_err(parse)?,
            engine: self.engine.parse().map_err(parse)?,
            access: access.ok_or_else(|| format!("{:?} is no access", self.access))?,
        };
        let points: Vec<Point> = self.points.iter().map(Point::from).collect();
        if points.len() > MOST_POINTS {
            return Err(too_many(&format!("{} → {}", id.src, id.dst), points.len()));
        }
        let first = points.first().is_none_or(|first| first.bytes > 0);
        if !first || points.windows(2).any(|pair| pair[1].bytes <= pair[0].bytes) {
            let (src, dst) = (id.src, id.dst);
            return Err(format!("the sizes of {src} → {dst} do not rise from 1 on"));
        }
        Ok(MeasuredLink {
            id,
            points,
            faulty: self.faulty,
        })
    }
}

impl RouteText {
    fn measured(self) -> Result<MeasuredRoute, String> {
        let links: Vec<MeasuredLink> = { self.link.into_iter() }
            .map(LinkText::measured)
            .collect::<Result<_, _>>()?;
        let links: Vec<LinkId> = links.into_iter().map(|link| link.id).collect();
        let (Some(first), Some(last)) = (links.first(), links.last()) else {
            return Err("a route has no links".into());
        };
        let between = || format!("the route {} → {}", first.src, last.dst);
        if links.windows(2).any(|pair| pair[0].dst != pair[1].src) {
            return Err(format!("{} has a gap", between()));
        }
        let point = |text: &ComparedText| Compared::new(text.bytes, text.predicted_ns, text.ns);
        let points: Vec<Compared> = self.points.iter().map(point).collect();
        if points.len() > MOST_POINTS {
            return Err(too_many(&between(), points.len()));
        }
        let first_size = points.first().is_some_and(|first| first.bytes > 0);
        if !first_size || points.windows(2).any(|pair| pair[1].bytes <= pair[0].bytes) {
            return Err(format!("the sizes of {} do not rise from 1 on", between()));
        }
        Ok(MeasuredRoute::new(links, points))
    }
}

impl From<&MeasuredRoute> for RouteText {
    fn from(route: &MeasuredRoute) -> RouteText {
        let link = |id: &LinkId| LinkText::from(&MeasuredLink::new(*id, Vec::new()));
        let point = |point: &Compared| ComparedText {
            bytes: whole(point.bytes),
            predicted_ns: whole(point.predicted_ns),
            ns: whole(point.ns),
        };
        RouteText {
            link: route.links.iter().map(link).collect(),
            points: route.points.iter().map(point).collect(),
        }
    }
}

/// A probe measures fewer sizes. Planning takes time proportional to them.
const MOST_POINTS: usize = 64;

fn too_many(what: &str, points: usize) -> String {
    format!("{what} has {points} sizes, and the limit is {MOST_POINTS}")
}

/// Integers have 63 bits there: 292 years.
fn whole(value: u64) -> u64 {
    value.min(i64::MAX as u64)
}

impl From<&MeasuredLink> for LinkText {
    fn from(link: &MeasuredLink) -> LinkText {
        let point = |point: &Point| PointText {
            bytes: whole(point.bytes),
            ns: whole(point.ns),
            low_ns: whole(point.low_ns),
            high_ns: whole(point.high_ns),
            samples: point.samples,
        };
        LinkText {
            src: link.id.src.to_string(),
            dst: link.id.dst.to_string(),
            engine: link.id.engine.to_string(),
            access: link.id.access.as_str().into(),
            faulty: link.faulty,
            points: link.points.iter().map(point).collect(),
        }
    }
}

impl From<&PointText> for Point {
    fn from(text: &PointText) -> Point {
        Point {
            bytes: text.bytes,
            ns: text.ns,
            low_ns: text.low_ns,
            high_ns: text.high_ns,
            samples: text.samples,
        }
    }
}

impl From<&Fingerprint> for MachineText {
    fn from(machine: &Fingerprint) -> MachineText {
        let device = |device: &DevicePrint| DeviceText {
            id: device.id.clone(),
            backend: device.backend.clone(),
            name: device.name.clone(),
            driver: device.driver.clone(),
            uuid: device.uuid.clone(),
        };
        MachineText {
            library: machine.library.clone(),
            os: machine.os.clone(),
            arch: machine.arch.clone(),
            cpu: machine.cpu.clone(),
            cpus: machine.cpus,
            devices: machine.devices.iter().map(device).collect(),
        }
    }
}

impl From<MachineText> for Fingerprint {
    fn from(text: MachineText) -> Fingerprint {
        let device = |device: DeviceText| DevicePrint {
            id: device.id,
            backend: device.backend,
            name: device.name,
            driver: device.driver,
            uuid: device.uuid,
        };
        Fingerprint {
            library: text.library,
            os: text.os,
            arch: text.arch,
            cpu: text.cpu,
            cpus: text.cpus,
            devices: text.devices.into_iter().map(device).collect(),
        }
    }
}

/// Returns the parser's message in one line.
fn told(error: &toml::de::Error, text: &str) -> String {
    let message = error
        .message()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    match error.span().and_then(|span| text.get(..span.start)) {
        Some(before) => format!("line {}: {message}", before.matches('\n').count() + 1),
        None => message,
    }
}

const HEADER: &str = "\
# What `transload probe` measured of this machine: the median time of copies over each link, by size,
# with its 95 % confidence interval; and routes that take another time than their links predict. Without this file,
# default figures stand.
";
