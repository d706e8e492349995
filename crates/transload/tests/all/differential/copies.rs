//! Copies, singly and in batches.

use std::sync::Arc;
use std::time::Duration;

use transload::{Cancelled, OnFailure, Priority, Request, Shape, TransferError};

use crate::differential::bytes::{Lay, any_pair};
use crate::differential::tally::{Kind, count};
use crate::differential::words::any_words;
use crate::differential::worker::{Held, Terms, Worker};
use crate::differential::world::State;

/// Two ends, as the places of their stores in the list.
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    pub(crate) src: (usize, Lay),
    pub(crate) dst: (usize, Lay),
}

impl Ends {
    fn in_use(&self, state: &State) -> Vec<Arc<()>> {
        let stores = [self.src, self.dst].map(|(at, _)| &state.stores[at]);
        stores.map(|store| Arc::clone(&store.in_use)).into()
    }
}

impl Worker<'_> {
    /// Ends that may be copied now, or `None`.
    fn ends(&mut self, state: &State) -> Option<Ends> {
        let dice = &mut self.dice;
        let from = state.any(dice)?;
        let wants_words = self.words || dice.below(4) == 0;
        let to = match (wants_words, dice.below(12)) {
            (true, 1..) => state.any_mapped(dice)?,
            (false, 0..2) => from,
            _ => state.any(dice)?,
        };
        let words = wants_words && state.stores[to].is_mapped;
        let lens = (state.stores[from].len(), state.stores[to].len());
        let (src, dst) = match words {
            true => any_words(dice, lens, state.stores[from].is_of_device()),
            false => any_pair(dice, lens),
        };
        let is_free = state.stores[from].is_free(&src.range(), false)
            && state.stores[to].is_free(&dst.range(), true);
        let (src, dst) = ((from, src), (to, dst));
        is_free.then_some(Ends { src, dst })
    }

    /// The request, if the chosen view of the destination may be written.
    pub(crate) fn request(&mut self, world: usize, state: &State, ends: &Ends) -> Option<Request> {
        let world = self.worlds[world];
        let [from, to] = [ends.src, ends.dst].map(|(at, _)| &state.stores[at]);
        let view = from.view(&mut self.dice).clone();
        let Some(target) = to.writable(&mut self.dice).cloned() else {
            let target = to.view(&mut self.dice);
            if !target.is_writable() {
                let regions = (
                    world.region(&view, ends.src.1),
                    world.region(target, ends.dst.1),
                );
                let answer = world.manager.copy(regions.0, regions.1).wait();
                assert!(
                    matches!(answer, Err(TransferError::ReadOnly { .. })),
                    "{answer:?}"
                );
                count(Kind::ReadOnlyRefused);
            }
            return None;
        };
        let regions = (
            world.region(&view, ends.src.1),
            world.region(&target, ends.dst.1),
        );
        Some(Request::new(regions.0, regions.1))
    }

    /// Counts the kind of copy, and writes the copy to the log.
    pub(crate) fn note(&self, state: &mut State, ends: &Ends, how: &str) {
        let (Ends { src, dst }, seat) = (*ends, self.seat);
        let numbers = [src, dst].map(|(at, _)| state.stores[at].number);
        state.note(&numbers, || {
            format!(
                "{seat}: {how} {}[{:?}] to {}[{:?}]",
                numbers[0], src.1, numbers[1], dst.1
            )
        });
        let is_plain = src.1.shape.is_contiguous() && dst.1.shape.is_contiguous();
        count(if is_plain { Kind::Copy } else { Kind::Pitched });
        if src.0 == dst.0 && src.1.meets(dst.1) {
            count(Kind::Overlapping);
        }
        if state.stores[dst.0].is_mapped && dst.1.shape.width_bytes() < 8 {
            count(Kind::MappedWord);
        }
    }

    fn is_refused(ends: &Ends) -> bool {
        let (src, dst) = (ends.src.1, ends.dst.1);
        let is_plain = src.shape.is_contiguous() && dst.shape.is_contiguous();
        let rows = |lay: Lay| lay.shape.rows() * lay.shape.planes();
        // The engine does not check the overlap of more rows than that.
        let meet = match rows(src) + rows(dst) > Shape::OVERLAP_ROWS {
            true => src.shape.overlaps(src.at, &dst.shape, dst.at),
            false => src.meets(dst),
        };
        ends.src.0 == ends.dst.0 && !is_plain && meet
    }

    pub(crate) fn copy(&mut self) {
        let number = self.any_world();
        let world = self.worlds[number];
        self.doing("copies");
        let mut state = world.lock();
        let Some(ends) = self.ends(&state) else {
            return;
        };
        let Some(request) = self.request(number, &state, &ends) else {
            return;
        };
        if Self::is_refused(&ends) {
            let answer = world.manager.submit(&request).wait();
            assert!(
                matches!(answer, Err(TransferError::Overlap { .. })),
                "{answer:?}"
            );
            return count(Kind::OverlapRefused);
        }
        let (mut request, mut terms) = self.terms(number, request);
        let verifies = self.below(10) == 0;
        if verifies {
            request = request.verify();
            if ends.src.0 == ends.dst.0 && ends.src.1.meets(ends.dst.1) {
                let answer = world.manager.submit(&request).wait();
                assert!(
                    matches!(answer, Err(TransferError::VerifyOverlap { .. })),
                    "{answer:?}"
                );
                // The event that the transfer sets at its end must be set.
                assert!(terms.then.is_none_or(|event| event.is_set()));
                return count(Kind::VerifyOverlapRefused);
            }
            count(Kind::Verify);
            terms.verified = true;
        }
        let fallible = terms.may_be_late || terms.stops_when_dropped || self.below(6) == 0;
        let times = match terms.then.is_none() && self.below(8) == 0 {
            true => 1 + self.below(3),
            false => 0,
        };
        if times > 0 {
            count(Kind::Prepared);
            let prepared = world.good("prepare", world.manager.prepare(&request));
            for _ in 0..times {
                self.note(&mut state, &ends, "posts");
                let transfer = prepared.post();
                self.hold(number, &mut state, &ends, transfer, terms.clone(), fallible);
            }
        } else {
            self.note(&mut state, &ends, "copies");
            let transfer = world.manager.submit(&request);
            self.hold(number, &mut state, &ends, transfer, terms, fallible);
        }
    }

    pub(crate) fn hold(
        &mut self,
        world: usize,
        state: &mut State,
        ends: &Ends,
        transfer: transload::Transfer,
        mut terms: Terms,
        fallible: bool,
    ) {
        terms.open = state.copied(ends.src, ends.dst, fallible);
        terms.in_use = ends.in_use(state);
        if let Some(open) = terms.open {
            let store = state.stores[ends.dst.0].number;
            state.note(&[store], || format!("  that is copy {open}"));
        }
        self.held.push(Held {
            world,
            transfer,
            len: ends.src.1.len() as u64,
            terms,
        });
    }

    /// A request on random terms.
    fn terms(&mut self, number: usize, mut request: Request) -> (Request, Terms) {
        let world = self.worlds[number];
        let mut terms = Terms::default();
        if self.below(6) == 0 {
            count(Kind::Priority);
            request = request.priority([Priority::Low, Priority::High][self.below(2) as usize]);
        }
        if !self.words && self.below(8) == 0 {
            count(Kind::After);
            let gate = world.event();
            request = request.after(&gate);
            // The receiver may be gone when the test has failed.
            let _ = self.gates.send(gate);
        }
        match self.below(16) {
            0 => {
                let late = Duration::from_micros(self.below(300));
                request = request.deadline(world.manager.now() + late);
                count(Kind::DeadlineNear);
                terms.may_be_late = true;
            }
            1 => {
                count(Kind::DeadlineFar);
                request = request.deadline(world.manager.now() + Duration::from_secs(3600));
            }
            2 => {
                request = request.cancel_on_drop();
                terms.stops_when_dropped = true;
            }
            3 => {
                if let Some((_, event)) = self.ends.take_if(|ends| ends.0 == number) {
                    count(Kind::Then);
                    request = request.after(&event);
                }
                let event = world.event();
                request = request.then(&event);
                self.ends = Some((number, event.clone()));
                terms.then = Some(event);
            }
            _ => {}
        }
        (request, terms)
    }

    pub(crate) fn batch(&mut self) {
        let number = self.any_world();
        let world = self.worlds[number];
        let stops = self.below(2) == 0;
        self.doing("submits a batch");
        let mut state = world.lock();
        let mut all = Vec::new();
        for _ in 0..2 + self.below(10) {
            let Some(ends) = self.ends(&state) else {
                continue;
            };
            if let Some(request) = self.request(number, &state, &ends) {
                let (request, terms) = self.terms(number, request);
                all.push((ends, request, terms));
            }
        }
        let requests: Vec<Request> = all.iter().map(|(_, request, _)| request.clone()).collect();
        let on_failure = [OnFailure::GoOn, OnFailure::Stop][usize::from(stops)];
        let answer = world.manager.copy_batch(&requests, on_failure);
        if let Some(first) = all.iter().position(|(ends, ..)| Self::is_refused(ends)) {
            let error = answer.map(drop).unwrap_err();
            assert_eq!(error.index, first, "{error}");
            assert!(
                matches!(error.source, TransferError::Overlap { .. }),
                "{error}"
            );
            // The batch did nothing. Its events may never be set.
            self.ends = None;
            return count(Kind::BatchRefused);
        }
        let what = format!(
            "batch of {:?}",
            all.iter()
                .map(|all| (all.0.src, all.0.dst))
                .collect::<Vec<_>>()
        );
        let batch = world.good(&what, answer);
        count(if stops {
            Kind::BatchStop
        } else {
            Kind::BatchGoOn
        });
        let is_waited = self.below(3);
        let first = self.held.len();
        let mut lens = Vec::new();
        for (ends, _, mut terms) in all {
            self.note(
                &mut state,
                &ends,
                if stops { "stops in batch" } else { "in batch" },
            );
            let fallible = stops || terms.may_be_late || terms.stops_when_dropped || is_waited == 2;
            terms.of_batch = stops;
            terms.open = state.copied(ends.src, ends.dst, fallible);
            terms.in_use = ends.in_use(&state);
            lens.push((ends.src.1.len() as u64, terms));
        }
        drop(state);
        assert_eq!(first, self.held.len());
        match is_waited {
            0 => {
                for (transfer, (len, terms)) in batch.into_transfers().into_iter().zip(lens) {
                    self.held.push(Held {
                        world: number,
                        transfer,
                        len,
                        terms,
                    });
                }
            }
            1 => {
                self.doing("waits for a batch");
                let results = if self.below(2) == 0 {
                    count(Kind::BatchWait);
                    batch.wait()
                } else {
                    count(Kind::BatchAwait);
                    pollster::block_on(batch)
                };
                for (result, (len, terms)) in results.into_iter().zip(lens) {
                    self.ended(number, len, &terms, result);
                }
            }
            _ => {
                self.doing("cancels a batch");
                count(Kind::BatchCancel);
                let (came, of) = batch.progress();
                assert!(came <= of);
                let answers: Vec<Cancelled> = batch.cancel();
                for (answer, (len, terms)) in answers.into_iter().zip(lens) {
                    self.cancelled(number, len, &terms, answer);
                }
            }
        }
    }

    /// A request that can be refused at once is refused, and nothing is done.
    pub(crate) fn refused(&mut self) {
        let number = self.any_world();
        let world = self.worlds[number];
        self.doing("is refused");
        let state = world.lock();
        let (Some(from), Some(to)) = (state.any(&mut self.dice), state.any(&mut self.dice)) else {
            return;
        };
        let [from, to] = [from, to].map(|at| &state.stores[at]);
        let Some(target) = to.writable(&mut self.dice).cloned() else {
            return;
        };
        let view = from.view(&mut self.dice);
        if view.len() == target.len() {
            return;
        }
        let answer = world.manager.copy(view, &target).wait();
        assert!(
            matches!(answer, Err(TransferError::LengthMismatch { .. })),
            "{answer:?}"
        );
        assert!(view.slice(1..view.len() + 2).is_err());
        count(Kind::LengthRefused);
    }
}
