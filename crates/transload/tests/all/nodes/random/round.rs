//! A round: transfers are submitted, there is trouble, all end, and the bytes are compared.

use std::time::Duration;

use transload::{Report, Request, Transfer, TransferError};

use super::bytes::Bytes;
use super::pick;
use super::trouble::Trouble;
use super::world::{LEN, World};
use crate::nodes::bytes_of;

/// Longer than any session without a byte, one after the other.
const LIMIT: Duration = Duration::from_secs(600);

/// A part of a buffer: the buffer's number, and where the part begins.
type Place = (usize, usize);

/// A transfer that was submitted.
struct Sent {
    transfer: Transfer,
    from: Place,
    to: Place,
    len: usize,
    has_deadline: bool,
    is_cancelled: bool,
}

type Outcome = Result<Report, TransferError>;

impl World {
    pub(super) fn round(&mut self) {
        self.rounds += 1;
        let count = 4 + self.dice.below(12) as usize;
        let node = self.dice.below(self.machines.len() as u64) as usize;
        let trouble = Trouble::any(&mut self.dice);
        let begins = self.dice.below(count as u64) as usize;
        let mut sent = Vec::new();
        for number in 0..count {
            self.step("a submission");
            self.submit(&mut sent);
            if let Some(trouble) = trouble.filter(|_| number == begins) {
                self.count(format!("{trouble:?}"));
                trouble.begin(&mut self.machines[node], &mut self.dice);
            }
        }
        for sent in &mut sent {
            if self.dice.below(8) == 0 {
                sent.is_cancelled = true;
                sent.transfer.canceller().cancel();
            }
        }
        if let Some(trouble) = trouble {
            trouble.go_on(&mut self.machines[node], &mut self.dice);
        }
        let lost = trouble.filter(|trouble| trouble.is_fatal()).map(|_| node);
        let mut ended = Vec::new();
        for mut sent in sent {
            self.step("a wait");
            let outcome = sent.transfer.wait_timeout(LIMIT);
            let outcome =
                outcome.unwrap_or_else(|| panic!("{}: no end of {:?}", self.now(), sent.transfer));
            ended.push((sent, outcome));
        }
        if let Some(trouble) = trouble {
            self.step("the end of the trouble");
            trouble.end(&mut self.machines[node]);
        }
        for (sent, outcome) in ended {
            self.settle(&sent, outcome, lost);
        }
        self.check(lost);
        if trouble.is_none() {
            self.race();
        }
        self.measure();
    }

    /// Submits a transfer, or a broadcast.
    fn submit(&mut self, sent: &mut Vec<Sent>) {
        let spots = self.spots.len() as u64;
        let most = pick(&mut self.dice, &[64, 64 << 10, 64 << 10, LEN as u64]);
        let len = self.dice.below(most) as usize + usize::from(most > 64);
        let place = |world: &mut World| {
            let spot = world.dice.below(spots) as usize;
            let room = (LEN - len + 1) as u64;
            // Often where others begin too.
            let start = match world.dice.below(3) {
                0 => 0,
                _ => world.dice.below(room) as usize,
            };
            (spot, start)
        };
        let from = place(self);
        let copies = match self.dice.below(8) {
            0 => 2 + self.dice.below(2) as usize,
            _ => 1,
        };
        let mut to: Vec<Place> = Vec::new();
        while to.len() < copies {
            let place = place(self);
            let is_taken = |(spot, _): &Place| *spot == place.0;
            if copies == 1 || !(to.iter().any(is_taken) || is_taken(&from)) {
                to.push(place);
            }
        }
        let has_deadline = self.dice.below(10) == 0;
        let verifies = self.dice.below(6) == 0;
        let part = |(spot, start): Place| {
            let range = start as u64..(start + len) as u64;
            self.spots[spot].buffer.slice(range).unwrap()
        };
        let mut requests = Vec::new();
        for to in &to {
            let mut request = Request::new(part(from), part(*to));
            if verifies && to.0 != from.0 {
                request = request.verify();
            }
            if has_deadline {
                let limit = Duration::from_micros(self.dice.below(5000));
                request = request.deadline(self.manager.now() + limit);
            }
            requests.push(request);
        }
        let transfers = match &requests[..] {
            [one] => vec![self.manager.submit(one)],
            all => {
                self.count("broadcasts");
                let batch = self.manager.broadcast(all);
                batch
                    .unwrap_or_else(|error| panic!("{}: {error}", self.now()))
                    .into_transfers()
            }
        };
        for (transfer, to) in transfers.into_iter().zip(to) {
            self.count("submitted");
            sent.push(Sent {
                transfer,
                from,
                to,
                len,
                has_deadline,
                is_cancelled: false,
            });
        }
    }

    /// Does in the model what a transfer did, as its result says.
    fn settle(&mut self, sent: &Sent, outcome: Outcome, lost: Option<usize>) {
        let &Sent { from, to, len, .. } = sent;
        let now = self.now();
        let bytes = self.spots[from.0].bytes.part(from.1..from.1 + len);
        let nodes = [from, to].map(|(spot, _)| self.spots[spot].node);
        let (word, bytes) = match outcome {
            Ok(report) => {
                assert_eq!(report.bytes(), len as u64, "{now}");
                let word = match report.fallbacks().is_empty() {
                    true => "done",
                    false => "done by another way",
                };
                (word, bytes)
            }
            Err(TransferError::Cancelled { leading_bytes }) if sent.is_cancelled => {
                ("cancelled", bytes.leading(leading_bytes as usize))
            }
            Err(TransferError::Deadline { leading_bytes }) if sent.has_deadline => {
                ("late", bytes.leading(leading_bytes as usize))
            }
            Err(error) => {
                let told = format!("{now}: {nodes:?}, {len} bytes: {error}");
                let node = lost.filter(|lost| nodes.contains(&Some(*lost)));
                let node = node.unwrap_or_else(|| panic!("no trouble there: {told}"));
                assert!(self.machines[node].is_named(&told), "{told}");
                ("failed", bytes.leading(0))
            }
        };
        self.count(word);
        self.spots[to.0].bytes.put(to.1, &bytes);
    }

    /// Has both clients write overlapping bytes of a shared buffer at once, in no order that is known before.
    fn race(&mut self) {
        let shared: Vec<usize> = (0..self.spots.len())
            .filter(|at| self.spots[*at].others.is_some())
            .collect();
        let at = pick(&mut self.dice, &shared);
        let len = 2 + self.dice.below(256 << 10) as usize;
        let overlap = 1 + self.dice.below(len as u64 - 1) as usize;
        let start = self.dice.below((LEN - 2 * len) as u64) as usize;
        let starts = [start, start + len - overlap];
        let bytes = [(); 2].map(|()| bytes_of(&mut self.dice, len));
        let spot = &self.spots[at];
        let others = spot.others.as_ref().unwrap();
        let ends = [(&self.manager, &spot.buffer), (&self.other, others)];
        self.step("a race");
        let writes = [0, 1].map(|at| {
            let ((manager, buffer), start) = (ends[at], starts[at] as u64);
            let source = manager.adopt(bytes[at].clone()).unwrap();
            let part = buffer.slice(start..start + len as u64).unwrap();
            manager.copy(&source, part)
        });
        for mut write in writes {
            let outcome = write.wait_timeout(LIMIT);
            let outcome = outcome.unwrap_or_else(|| panic!("{}: no end of {write:?}", self.now()));
            outcome.unwrap_or_else(|error| panic!("{}: {error}", self.now()));
        }
        let both = start as u64..(starts[1] + len) as u64;
        let found = self.manager.read_to_vec(spot.buffer.slice(both).unwrap());
        let found = found.unwrap_or_else(|error| panic!("{}: {error}", self.now()));
        let orders = [[0, 1], [1, 0]].map(|order| {
            let mut bytes_of_order = vec![0; found.len()];
            for at in order {
                let from = starts[at] - start;
                bytes_of_order[from..from + len].copy_from_slice(&bytes[at]);
            }
            bytes_of_order
        });
        assert!(
            orders.contains(&found),
            "{}: parts of both writes",
            self.now()
        );
        self.spots[at].bytes.put(start, &Bytes::known(found));
        self.count("races");
    }
}
