//! The rate and the latency of UCX between two processes of this machine, over TCP on the loopback interface.
//!
//! `ucx_rate rate SIZE COUNT OUTSTANDING` prints MB/s, and `ucx_rate latency SIZE COUNT` half of a round trip in
//! microseconds, as `ucx_perftest -e -t tag_bw` and `tag_lat` do. Further arguments `NAME=VALUE` are options of UCX, and
//! `spins=N` is the worker's. `touched=false` leaves the source as the kernel gave it, all one page of zeros in the
//! processor's cache; so does `ucx_perftest`. All messages of a run use the same bytes, as in `ucx_perftest`.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn main() {}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn main() {
    linux::main();
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod linux {
    use std::env;
    use std::io::{self, BufReader, Write as _};
    use std::process::{Command, Stdio};
    use std::sync::OnceLock;
    use std::sync::mpsc::{self, Receiver, Sender};
    use std::time::Instant;

    use transload_hal::HostSpan;
    use transload_remote::ucx::{EndpointId, Event, Options, Ucx, Worker};

    /// What the sink needs. It runs on the worker's thread, and so its calls cost no wake-up.
    struct Run {
        worker: Worker,
        endpoint: EndpointId,
        span: HostSpan,
        count: u64,
    }

    static RUN: OnceLock<Run> = OnceLock::new();

    const MESSAGE: u64 = 1;
    /// The receiver's word that all has come.
    const END: u64 = 2;
    const END_ID: u64 = u64::MAX;

    fn send(id: u64, tag: u64) {
        let run = RUN.get().expect("set before the first call");
        let span = if tag == END {
            run.span.slice(0, 1).expect("not empty")
        } else {
            run.span
        };
        // SAFETY: the bytes are leaked. Their values do not matter here.
        unsafe { run.worker.send(id, run.endpoint, tag, span) };
    }

    fn receive(id: u64, tag: u64) {
        let run = RUN.get().expect("set before the first call");
        // SAFETY: as above.
        unsafe { run.worker.receive(id, tag, u64::MAX, run.span) };
    }

    pub(super) fn main() {
        let arguments: Vec<String> = env::args().skip(1).collect();
        let is_peer = env::var_os("UCX_RATE_PEER").is_some();
        let number = |at: usize| {
            arguments
                .get(at)
                .map(|text| text.parse::<u64>().expect("a number"))
        };
        let (kind, size) = (arguments[0].as_str(), number(1).expect("a size") as usize);
        let count = number(2).expect("a count");
        let outstanding = if kind == "rate" {
            number(3).expect("outstanding")
        } else {
            1
        };
        let (mut options, mut is_touched) = (Options::default(), true);
        options.net_devices = Some("lo".into());
        options.transports = Some("tcp".into());
        for (name, value) in arguments
            .iter()
            .filter_map(|argument| argument.split_once('='))
        {
            match name {
                "touched" => is_touched = value.parse().expect("true or false"),
                "spins" => options.spins = value.parse().expect("a number"),
                _ => options.settings.push((name.into(), value.into())),
            }
        }
        let ucx = Ucx::load(None).expect("UCX");
        let (tell, told) = mpsc::channel();
        let step = match (kind, is_peer) {
            ("rate", false) => keep_sending,
            ("rate", true) => keep_receiving,
            (_, false) => ping,
            (_, true) => pong,
        };
        let mut seen = 0;
        let sink = move |event| match event {
            Event::Done { id, .. } => step(id, &mut seen, outstanding, &tell),
            Event::Failed { .. } => eprintln!("{event:?}"),
            // The peer ends first or last.
            _ => {}
        };
        let worker = Worker::start(ucx, options, Box::new(sink)).expect("a worker");
        let own = worker
            .address()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>();
        let mut child = None;
        let address = if is_peer {
            println!("{own}");
            line(&mut io::stdin().lock())
        } else {
            let mut command = Command::new(env::current_exe().expect("a path"));
            command.args(&arguments).env("UCX_RATE_PEER", "1");
            let mut peer = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a process");
            writeln!(peer.stdin.as_mut().expect("piped"), "{own}").expect("a line");
            let address = line(&mut BufReader::new(peer.stdout.take().expect("piped")));
            child = Some(peer);
            address
        };
        let digits: Vec<u8> = address
            .bytes()
            .map(|digit| (digit as char).to_digit(16).expect("hex") as u8)
            .collect();
        let address: Vec<u8> = digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect();
        // SAFETY: the peer is this program.
        let endpoint = unsafe { worker.connect(&address) };
        let span = memory(size, is_touched);
        let _ = RUN.set(Run {
            worker,
            endpoint,
            span,
            count,
        });
        measure(kind, is_peer, outstanding, &told);
        if let Some(mut child) = child {
            child.wait().expect("the peer ends");
        }
    }

    /// Memory in huge pages, which `ucx_perftest` has, too.
    fn memory(size: usize, is_touched: bool) -> HostSpan {
        const HUGE: usize = 2 << 20;
        let bytes = vec![0u8; size + 2 * HUGE].leak();
        let start = bytes.as_ptr().align_offset(HUGE);
        let bytes = &mut bytes[start..][..size.next_multiple_of(HUGE)];
        if is_touched {
            // SAFETY: the range is of this program, which has not touched it; the advice changes no bytes.
            unsafe { libc::madvise(bytes.as_mut_ptr().cast(), bytes.len(), libc::MADV_HUGEPAGE) };
            bytes.fill(1);
        }
        HostSpan::of_mut(&mut bytes[..size])
    }

    fn line(from: &mut impl io::BufRead) -> String {
        let mut line = String::new();
        from.read_line(&mut line).expect("a line");
        line.trim().to_string()
    }

    /// Runs once to warm up, and once for the figure. The steps tell the end of each.
    fn measure(kind: &str, is_peer: bool, outstanding: u64, told: &Receiver<()>) {
        let run = RUN.get().expect("set before");
        for is_warm in [false, true] {
            let start = Instant::now();
            match (kind, is_peer) {
                ("rate", false) => {
                    receive(END_ID, END);
                    (0..outstanding.min(run.count)).for_each(|id| send(id, MESSAGE));
                }
                ("rate", true) => {
                    (0..outstanding.min(run.count)).for_each(|id| receive(id, MESSAGE))
                }
                (_, false) => {
                    receive(0, MESSAGE);
                    send(END_ID, MESSAGE);
                }
                (_, true) => receive(0, MESSAGE),
            }
            told.recv().expect("the worker runs");
            let seconds = start.elapsed().as_secs_f64();
            if is_peer || !is_warm {
                continue;
            }
            match kind {
                "rate" => println!(
                    "{:.1}",
                    run.count as f64 * run.span.len() as f64 / seconds / 1e6
                ),
                _ => println!("{:.2}", seconds * 1e6 / run.count as f64 / 2.0),
            }
        }
    }

    fn keep_sending(id: u64, seen: &mut u64, outstanding: u64, tell: &Sender<()>) {
        let count = RUN.get().expect("set before").count;
        if id == END_ID {
            *seen = 0;
            let _ = tell.send(());
            return;
        }
        *seen += 1;
        if *seen + outstanding <= count {
            send(id, MESSAGE);
        }
    }

    fn keep_receiving(id: u64, seen: &mut u64, outstanding: u64, tell: &Sender<()>) {
        if id == END_ID {
            let _ = tell.send(());
            return;
        }
        let count = RUN.get().expect("set before").count;
        *seen += 1;
        if *seen + outstanding <= count {
            receive(id, MESSAGE);
        } else if *seen == count {
            *seen = 0;
            send(END_ID, END);
        }
    }

    fn ping(id: u64, seen: &mut u64, _outstanding: u64, tell: &Sender<()>) {
        if id == END_ID {
            return;
        }
        *seen += 1;
        if *seen == RUN.get().expect("set before").count {
            *seen = 0;
            let _ = tell.send(());
            return;
        }
        receive(0, MESSAGE);
        send(END_ID, MESSAGE);
    }

    fn pong(id: u64, seen: &mut u64, _outstanding: u64, tell: &Sender<()>) {
        let count = RUN.get().expect("set before").count;
        if id == END_ID {
            // The last answer is under way or done: the process may end.
            if *seen == count {
                *seen = 0;
                let _ = tell.send(());
            }
            return;
        }
        *seen += 1;
        if *seen < count {
            receive(0, MESSAGE);
        }
        send(END_ID, MESSAGE);
    }
}
