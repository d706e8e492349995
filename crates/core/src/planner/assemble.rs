//! Builds plans from numbers.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::contest::Pick;
use super::survey::Survey;
use super::way::{Act, Way};
use crate::defaults::LINK_DEPTH;
use crate::{Correction, Estimate, Lane, Method, Plan, Ring, Role, Route, Step, StepKind};

impl Survey {
    /// Builds the plan.
    pub(super) fn assemble(&self, pick: &Pick) -> Arc<Plan> {
        let plan = match pick {
            Pick::One { way, log2 } => self.single(&self.ways[*way], *log2),
            Pick::Several(bundle) => {
                let mut lines = bundle.lines();
                // Below its first size a bundle is never chosen; its first line goes on to 0.
                if let Some((from, _)) = lines.first_mut() {
                    *from = 0;
                }
                let strands = bundle.strands.iter();
                let lanes: Vec<Lane> = strands
                    .map(|strand| {
                        let way = &self.ways[strand.way];
                        self.lane(way, strand.chunk_log2, strand.slots, strand.share)
                    })
                    .collect();
                // The fastest comes first and gives its name.
                let first = bundle.strands.first().map(|strand| &self.ways[strand.way]);
                Plan {
                    method: first.map_or(Method::HostStaged, |way| self.method(way)),
                    lanes,
                    estimate: Estimate::new(lines),
                    correction: Correction::default(),
                }
            }
        };
        Arc::new(plan)
    }

    fn single(&self, way: &Way, log2: u32) -> Plan {
        let slots = self.slots(way, log2, self.limits.staging_bytes);
        let mut lines = Vec::new();
        self.head(way, 1 << log2, &mut lines);
        self.tails(way, log2, slots, &mut lines);
        self.correct(way, 0, &mut lines);
        Plan {
            method: self.method(way),
            lanes: vec![self.lane(way, log2, slots, 1)],
            estimate: Estimate::new(lines),
            correction: self.correction(way).cloned().unwrap_or_default(),
        }
    }

    fn lane(&self, way: &Way, log2: u32, slots: u16, share: u32) -> Lane {
        let rings = way.copies().take(usize::from(way.rings()));
        Lane {
            route: self.route(way),
            steps: self.steps(way),
            rings: rings
                .map(|hop| Ring {
                    memory: self.hops[usize::from(hop)].link.id.dst,
                    slots,
                })
                .collect(),
            chunk_bytes: 1 << log2,
            depth: self.depth(way),
            share,
        }
    }

    /// A copy alone is as deep as its link; where chunks pass several steps, one chunk is in one step
    /// while the next is in another.
    fn depth(&self, way: &Way) -> u16 {
        let mut copies = way.copies();
        match (copies.next(), copies.next()) {
            (Some(hop), None) if way.transform().is_none() => {
                self.hops[usize::from(hop)].link.depth.max(1)
            }
            _ => LINK_DEPTH,
        }
    }

    fn steps(&self, way: &Way) -> Vec<Step> {
        let mut at = Role::Src;
        let mut written = 0;
        let mut steps = Vec::with_capacity(way.acts().len());
        for act in way.acts() {
            steps.push(match *act {
                Act::Copy(hop) => {
                    let link = &self.hops[usize::from(hop)].link;
                    let from = at;
                    at = if written < way.rings() {
                        Role::Slot(written)
                    } else {
                        Role::Dst
                    };
                    written += 1;
                    Step {
                        kind: StepKind::Copy { from, to: at },
                        backend: link.backend,
                        engine: link.id.engine,
                        cost: link.cost.clone(),
                        host_load: self.host_load(*act),
                        link: Some(link.id),
                    }
                }
                Act::Transform(by) => {
                    let transformer = &self.transformers[usize::from(by)].0;
                    Step {
                        kind: StepKind::Transform { at },
                        backend: transformer.backend,
                        engine: transformer.engine,
                        cost: transformer.cost.clone(),
                        host_load: self.host_load(*act),
                        link: None,
                    }
                }
                Act::MakeVisible(end) => {
                    let owner = self.owner(end);
                    Step {
                        kind: StepKind::MakeVisible { at: end.role() },
                        backend: owner.backend,
                        engine: owner.engine,
                        cost: owner.visible.clone(),
                        host_load: self.host_load(*act),
                        link: None,
                    }
                }
            });
        }
        steps
    }

    /// Returns the links of the way; `None` where it has none.
    pub(super) fn route(&self, way: &Way) -> Option<Route> {
        let links = way
            .copies()
            .map(|hop| self.hops[usize::from(hop)].link.clone());
        Route::new(links.collect())
    }

    /// What users call the way.
    pub(super) fn method(&self, way: &Way) -> Method {
        let mut copies = way.copies();
        match (way.rings(), copies.next()) {
            (0, Some(hop)) => Method::of_access(self.hops[usize::from(hop)].link.id.access),
            (0, None) => Method::DirectCopy,
            _ => Method::HostStaged,
        }
    }
}
