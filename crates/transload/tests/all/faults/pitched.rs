//! Faults under shapes with gaps: the bytes between the rows stay as they are.

use transload::{Buffer, Method, Region, Report, Request, Shape, TransferError};
use transload_testkit::sim::{Completion, Rule};

use crate::common::{Bench, SECOND, SLOT, marked, modes, two_devices};

const WIDTH: u64 = 700;
const ROWS: u64 = 290;
const SRC_PITCH: u64 = 768;
const DST_PITCH: u64 = 1000;

struct Rows {
    bench: Bench,
    src: Buffer,
    dst: Buffer,
}

impl Rows {
    fn new(mode: Completion) -> Rows {
        let bench = Bench::new(&two_devices(), mode, 3);
        let src = bench.filled("sim:0", marked(SRC_PITCH * ROWS));
        let dst = bench.filled("sim:1", &vec![0xA7; (DST_PITCH * ROWS) as usize]);
        Rows { bench, src, dst }
    }

    fn request(&self) -> Request {
        let rows = |pitch| Shape::pitched(WIDTH, ROWS, pitch).unwrap();
        let src = Region::new(&self.src, 11, rows(SRC_PITCH)).unwrap();
        Request::new(src, Region::new(&self.dst, 13, rows(DST_PITCH)).unwrap())
    }

    fn copy(&self) -> Result<Report, TransferError> {
        self.bench.manager.submit(&self.request()).wait()
    }

    /// Returns the number of rows that arrived, after a check of all bytes between them.
    fn arrived(&self, context: &dyn std::fmt::Debug) -> u64 {
        let bytes = self.bench.read(&self.dst);
        let model = marked(SRC_PITCH * ROWS);
        let mut arrived = 0;
        let mut gap = 0;
        for row in 0..ROWS {
            let (from, to) = (
                (11 + row * SRC_PITCH) as usize,
                (13 + row * DST_PITCH) as usize,
            );
            let width = WIDTH as usize;
            assert!(
                bytes[gap..to].iter().all(|b| *b == 0xA7),
                "{context:?}: row {row}"
            );
            arrived += u64::from(bytes[to..to + width] == model[from..from + width]);
            gap = to + width;
        }
        assert!(
            bytes[gap..].iter().all(|b| *b == 0xA7),
            "{context:?}: behind the last row"
        );
        arrived
    }
}

#[test]
fn rows_survive_every_fault_and_gaps_stay_as_they_are() {
    let mut combinations = 0;
    for mode in modes() {
        for rule in [
            Rule::fail_after(0),
            Rule::fail_after(40_000),
            Rule::delay_ns(999_999),
        ] {
            for nth in 1..100 {
                let context = (mode, nth);
                let rows = Rows::new(mode);
                rows.bench.sim.add_rule(rule.clone().nth(nth));
                let result = rows.copy();
                let struck = rows.bench.sim.script().rules()[0].fired() > 0;
                let arrived = rows.arrived(&context);
                match result {
                    Ok(report) => {
                        assert_eq!(arrived, ROWS, "{context:?}");
                        assert_eq!(report.method(), Method::HostStaged);
                    }
                    Err(TransferError::Failed(failure)) => {
                        assert!(struck, "{context:?}: {failure}");
                        assert!(failure.span.len <= SLOT, "{context:?}: {failure}");
                        rows.bench.pass(30 * SECOND);
                        rows.copy().unwrap();
                        assert_eq!(rows.arrived(&context), ROWS);
                    }
                    Err(error) => panic!("{context:?}: {error}"),
                }
                assert_eq!(rows.bench.sim.violations(), [], "{context:?}");
                if !struck {
                    break;
                }
                combinations += 1;
            }
        }
    }
    println!("{combinations} combinations of fault, operation and mode");
    assert!(combinations > 100);
}

#[test]
fn rows_can_be_verified() {
    let rows = Rows::new(Completion::Timed);
    let report = rows
        .bench
        .manager
        .submit(&rows.request().verify())
        .wait()
        .unwrap();
    assert!(report.checksum().is_some());
    assert_eq!(rows.arrived(&()), ROWS);
    // A checksum changes neither end: the same bytes give the same sum.
    let flat = rows.bench.empty("sim:0", WIDTH * ROWS);
    let request = Request::new(rows.request().src().clone(), &flat).verify();
    let again = rows.bench.manager.submit(&request).wait().unwrap();
    assert_eq!(again.checksum(), report.checksum());
    rows.bench.sim.add_rule(Rule::corrupt(100).nth(2));
    let error = rows
        .bench
        .manager
        .submit(&rows.request().verify())
        .wait()
        .unwrap_err();
    assert!(matches!(error, TransferError::Differs { .. }), "{error}");
}
