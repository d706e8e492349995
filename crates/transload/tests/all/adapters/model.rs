//! Random transfers of random shapes, several in flight at a time, compared with plain arrays of bytes.

use transload::{Buffer, Region, Shape, Transfer};

use crate::adapters::machine::{Adapter, Adapters, Random, pattern};

/// Not a multiple of a word, so that buffers end inside one.
const LEN: u64 = 6001;

const ROUNDS: u64 = 30;

/// Number of transfers between two comparisons of all bytes.
const EACH: u64 = 8;

#[test]
fn random_shapes_and_offsets_agree_with_plain_arrays() {
    let Some(adapters) = Adapters::open(1) else {
        return;
    };
    for seed in [1, 2] {
        let mut model = Model::new(&adapters, seed);
        for round in 0..ROUNDS {
            let transfers: Vec<Transfer> = (0..EACH).map(|_| model.submit()).collect();
            model.finish(transfers);
            model.compare(&format!("seed {seed}, round {round}"));
        }
    }
}

/// The location of some bytes, and their expected values.
struct Place<'a> {
    /// `None` for the heap.
    on: Option<&'a Adapter>,
    buffer: Buffer,
    bytes: Vec<u8>,
}

struct Model<'a> {
    adapters: &'a Adapters,
    places: Vec<Place<'a>>,
    random: Random,
}

impl<'a> Model<'a> {
    /// Two buffers in every memory.
    fn new(adapters: &'a Adapters, seed: u64) -> Model<'a> {
        let mut places = Vec::new();
        let ons = adapters.all.iter().map(Some).chain([None]);
        for (number, on) in ons.flat_map(|on| [on, on]).enumerate() {
            let bytes = pattern(LEN, seed << 8 | number as u64);
            let buffer = match on {
                Some(adapter) => adapters.filled(adapter, &bytes),
                None => adapters.manager.adopt(bytes.clone()).unwrap(),
            };
            places.push(Place { on, buffer, bytes });
        }
        Model {
            adapters,
            places,
            random: Random::new(seed),
        }
    }

    /// Submits a random transfer and applies it to the arrays, in the order of submission.
    fn submit(&mut self) -> Transfer {
        let random = &mut self.random;
        let count = self.places.len() as u64;
        loop {
            let [from, to] = [0, 1].map(|_| random.below(count) as usize);
            let dims = Dims::any(random);
            let (src, dst) = (Lay::of(dims, random), Lay::of(dims.refold(random), random));
            let apart = src.end() <= dst.at || dst.end() <= src.at;
            // Within one buffer only plain ranges may overlap.
            if from == to && !apart && !(src.is_plain() && dst.is_plain()) {
                continue;
            }
            let payload: Vec<u8> = src
                .positions()
                .map(|at| self.places[from].bytes[at])
                .collect();
            for (at, byte) in dst.positions().zip(payload) {
                self.places[to].bytes[at] = byte;
            }
            let [src, dst] = [(from, src), (to, dst)]
                .map(|(at, lay)| Region::new(&self.places[at].buffer, lay.at, lay.shape).unwrap());
            return self.adapters.manager.copy(src, dst);
        }
    }

    /// Waits in an order other than that of submission.
    fn finish(&mut self, mut transfers: Vec<Transfer>) {
        self.random.shuffle(&mut transfers);
        for transfer in transfers {
            transfer.wait().unwrap();
        }
    }

    fn compare(&self, when: &str) {
        for (number, place) in self.places.iter().enumerate() {
            let found = match place.on {
                Some(adapter) => adapter.bytes_of(&place.buffer),
                None => place.buffer.read().unwrap().to_vec(),
            };
            let mut pairs = found.iter().zip(&place.bytes);
            let differs = pairs.position(|(found, wanted)| found != wanted);
            assert_eq!(differs, None, "{when}: buffer {number} on {:?}", place.on);
            assert_eq!(found.len(), place.bytes.len());
        }
    }
}

/// The payload: `[width, rows, planes]`.
#[derive(Clone, Copy)]
struct Dims([u64; 3]);

impl Dims {
    fn any(random: &mut Random) -> Dims {
        match random.below(4) {
            0 => Dims([random.below(LEN / 2), 1, 1]),
            1 => Dims([1 + random.below(9), 1, 1]),
            2 => Dims([1 + random.below(70), 1 + random.below(30), 1]),
            _ => Dims([
                1 + random.below(20),
                1 + random.below(8),
                1 + random.below(6),
            ]),
        }
    }

    /// The same number of bytes, perhaps in other rows: only the payloads of both ends must have the same length.
    fn refold(self, random: &mut Random) -> Dims {
        let [width, rows, planes] = self.0;
        match random.below(4) {
            0 => Dims([width * rows, planes, 1]),
            1 => Dims([width * rows * planes, 1, 1]),
            2 => Dims([width, rows * planes, 1]),
            _ => self,
        }
    }
}

/// A shape and its position in a buffer.
#[derive(Clone, Copy)]
struct Lay {
    at: u64,
    dims: Dims,
    row_pitch: u64,
    plane_pitch: u64,
    shape: Shape,
}

impl Lay {
    /// Picks any position in a buffer, with pitches that fit it.
    fn of(dims: Dims, random: &mut Random) -> Lay {
        let [width, rows, planes] = dims.0;
        loop {
            let row_pitch = width + random.below(7);
            let plane_pitch = row_pitch * rows + random.below(40);
            let shape = match (rows, planes) {
                (1, 1) => Shape::contiguous(width),
                (_, 1) => Shape::pitched(width, rows, row_pitch).unwrap(),
                _ => Shape::pitched_3d(width, rows, row_pitch, planes, plane_pitch).unwrap(),
            };
            if let Some(room) = LEN.checked_sub(shape.extent_bytes()) {
                let at = random.below(room + 1);
                return Lay {
                    at,
                    dims,
                    row_pitch,
                    plane_pitch,
                    shape,
                };
            }
        }
    }

    fn end(&self) -> u64 {
        self.at + self.shape.extent_bytes()
    }

    fn is_plain(&self) -> bool {
        let [_, rows, planes] = self.dims.0;
        rows * planes == 1
    }

    /// The position of each byte of the payload.
    fn positions(self) -> impl Iterator<Item = usize> {
        let [width, rows, planes] = self.dims.0;
        (0..planes).flat_map(move |plane| {
            (0..rows).flat_map(move |row| {
                let start = self.at + plane * self.plane_pitch + row * self.row_pitch;
                (start..start + width).map(|at| at as usize)
            })
        })
    }
}
