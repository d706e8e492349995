//! The events that `tracing` and `metrics` receive for transfers.
#![cfg(all(feature = "tracing", feature = "metrics"))]

use std::error::Error;
use std::sync::{Arc, Mutex};

use transload::{Buffer, Request, TransferManager};

type Outcome = Result<(), Box<dyn Error>>;

fn ends(manager: &TransferManager, len: usize) -> (Buffer, Buffer) {
    let (src, dst) = (manager.adopt(vec![7u8; len]), manager.adopt(vec![0u8; len]));
    (src.unwrap(), dst.unwrap())
}

mod traced {
    use std::fmt::{Debug, Write};
    use std::thread::{self, ThreadId};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;

    /// Keeps every event of one thread as a line. There is one subscriber for the process, and the
    /// other tests of this program move bytes too.
    struct Lines(ThreadId, Arc<Mutex<Vec<String>>>);

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            let _ = write!(self.0, " {}={value:?}", field.name());
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "transload"
        }

        fn event(&self, event: &Event<'_>) {
            if thread::current().id() != self.0 {
                return;
            }
            let metadata = event.metadata();
            let mut line = Line(metadata.level().to_string());
            event.record(&mut line);
            self.1.lock().unwrap().push(line.0);
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn each_transfer_is_one_event_with_its_figures() -> Outcome {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let subscriber = Lines(thread::current().id(), Arc::clone(&lines));
        tracing::subscriber::set_global_default(subscriber).unwrap();
        let manager = TransferManager::builder().host().build()?;
        let (src, dst) = ends(&manager, 1000);
        manager.copy(&src, &dst).wait()?;
        manager.submit(&Request::new(&src, &dst).verify()).wait()?;
        // Refused requests do not count as transfers.
        assert!(manager.copy(&src, src.slice(..1)?).wait().is_err());
        let lines = lines.lock().unwrap();
        assert_eq!(lines.len(), 2, "{lines:?}");
        for line in lines.iter() {
            for part in [
                Level::DEBUG.as_str(),
                "src=cpu:0/pageable",
                "dst=cpu:0/pageable",
                "method=\"DirectCopy\"",
                "bytes=1000",
                "fallbacks=0",
                "transfer done",
            ] {
                assert!(line.contains(part), "{part} is not in {line}");
            }
        }
        Ok(())
    }
}

mod counted {
    use std::collections::BTreeMap;

    use metrics::{
        Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
        SharedString, Unit,
    };

    use super::*;

    type Sums = Arc<Mutex<BTreeMap<String, f64>>>;

    /// Sums the values under each name.
    struct Adds(Sums);

    struct One(String, Sums);

    impl One {
        fn add(&self, value: f64) {
            *self.1.lock().unwrap().entry(self.0.clone()).or_default() += value;
        }
    }

    impl CounterFn for One {
        fn increment(&self, value: u64) {
            self.add(value as f64);
        }

        fn absolute(&self, value: u64) {
            self.add(value as f64);
        }
    }

    impl HistogramFn for One {
        fn record(&self, _: f64) {
            self.add(1.0);
        }
    }

    impl Recorder for Adds {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(Arc::new(One(key.name().into(), Arc::clone(&self.0))))
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(Arc::new(One(key.name().into(), Arc::clone(&self.0))))
        }
    }

    fn counted(manager: &TransferManager) -> BTreeMap<String, f64> {
        let sums = Sums::default();
        metrics::with_local_recorder(&Adds(Arc::clone(&sums)), || {
            let (src, dst) = ends(manager, 1000);
            for _ in 0..3 {
                manager.copy(&src, &dst).wait().unwrap();
            }
        });
        let sums = sums.lock().unwrap();
        sums.clone()
    }

    #[test]
    fn transfers_are_counted_where_it_was_asked_for() -> Outcome {
        let watched = TransferManager::builder().host().metrics(true);
        let sums = counted(&watched.build()?);
        assert_eq!(sums["transload_transfers_total"], 3.0);
        assert_eq!(sums["transload_bytes_total"], 3000.0);
        assert_eq!(sums["transload_fallbacks_total"], 0.0);
        assert_eq!(sums["transload_seconds"], 3.0);
        assert!(!sums.contains_key("transload_failures_total"));
        let unwatched = TransferManager::builder().host().build()?;
        assert_eq!(counted(&unwatched), BTreeMap::new());
        Ok(())
    }
}
