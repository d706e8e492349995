//! Short writes to memory that host and device share: the host writes bytes, and a device's engine writes words.

use transload::Shape;

use crate::dice::Dice;
use crate::differential::bytes::Lay;
use crate::differential::copies::Ends;
use crate::differential::worker::{Terms, Worker};

/// Rows of one copy. For an adapter each row takes several commands: a million rows take minutes and gigabytes.
const MOST_ROWS: u64 = 200;

/// A pair of regions as above, of some bytes in each of many words of the destination, or of a few bytes. A copy from a
/// device usually takes the later bytes of a word, so that both sides write the same words but not the same bytes.
pub(crate) fn any_words(dice: &mut Dice, (from, to): (u64, u64), is_device: bool) -> (Lay, Lay) {
    let most = from.min(to);
    let words = (to / 4).min(from / 2).min(MOST_ROWS);
    if words < 4 || dice.below(4) == 0 {
        let len = (1 + dice.below(7)).min(most);
        let near = |dice: &mut Dice, limit: u64| dice.below((limit - len).min(24) + 1);
        return (
            Lay::run(near(dice, from), len),
            Lay::run(near(dice, to), len),
        );
    }
    let column = match dice.below(8) {
        0 => dice.below(4),
        _ => 2 * u64::from(is_device) + dice.below(2),
    };
    let width = 1 + u64::from(column % 2 == 0) * dice.below(2);
    let rows = match dice.below(3) {
        0 => 1 + dice.below(words),
        _ => words,
    };
    // The engine compares rows of the same pitch exactly, whatever their number.
    let shape = Shape::pitched(width, rows, 4).expect("rows are apart");
    let room = (to - column - shape.extent_bytes()) / 4;
    let at = column + 4 * dice.below(room.min(2) + 1);
    (Lay::run(0, width * rows), Lay { at, shape })
}

impl Worker<'_> {
    /// Writes neighbouring pieces of mapped memory, from both sides in turn and all at once. The pieces begin and end
    /// within words.
    pub(crate) fn pieces(&mut self) {
        let number = 0;
        let world = self.worlds[number];
        self.doing("copies pieces");
        let mut state = world.lock();
        let Some(to) = state.any_mapped(&mut self.dice) else {
            return;
        };
        let limit = state.stores[to].len();
        let turn = state.any(&mut self.dice).unwrap_or(0);
        let sources = [false, true].map(|is_device| {
            let mut all = (0..state.stores.len()).map(|at| (at + turn) % state.stores.len());
            all.find(|at| state.stores[*at].is_of_device() == is_device && *at != to)
        });
        let (true, [Some(host), Some(device)]) = (state.stores[to].is_mapped, sources) else {
            return;
        };
        let all = Lay::run(0, limit);
        if !state.stores[to].is_free(&all.range(), true) {
            return;
        }
        let claim = state.claim(to, all.range(), true);
        let first = self.held.len();
        let most = [3, 8, 40, 400][self.below(4) as usize].min(limit / 2) + 1;
        let mut at = self.below(limit.min(64));
        for piece in 0..8 + self.below(60) {
            let from = [host, device][piece as usize % 2];
            let store = &state.stores[from];
            let len = (1 + self.below(most)).min(limit - at).min(store.len());
            let src = Lay::run(self.dice.below(store.len() - len + 1), len);
            let ends = Ends {
                src: (from, src),
                dst: (to, Lay::run(at, len)),
            };
            at += len;
            if !store.is_free(&src.range(), false) {
                continue;
            }
            if let Some(request) = self.request(number, &state, &ends) {
                self.note(&mut state, &ends, "copies a piece");
                let transfer = world.manager.submit(&request);
                self.hold(number, &mut state, &ends, transfer, Terms::default(), false);
            }
        }
        // The thread checks the pieces before any thread writes there again.
        let (store, wanted) = (state.stores[to].number, state.stores[to].bytes.clone());
        let view = state.stores[to].view(&mut self.dice).clone();
        drop(state);
        while self.held.len() > first {
            self.settle_one();
        }
        let found = world.good("read_to_vec", world.manager.read_to_vec(&view));
        world.compare("pieces", (store, all), &wanted, &found);
        world.release(store, claim);
    }
}
