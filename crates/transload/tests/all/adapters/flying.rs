//! Many transfers at once, in any order; some are dropped or cancelled.

use transload::{AllocSpec, Buffer, Cancelled, MemoryKind, Request};

use crate::adapters::machine::{Adapters, MIB, POISON, Random, pattern};

#[test]
fn thirty_two_futures_on_one_device_all_arrive() {
    let Some(adapters) = Adapters::open(1) else {
        return;
    };
    for adapter in &adapters.all {
        let sent: Vec<Vec<u8>> = (0..32).map(|seed| pattern(MIB / 4 + seed, seed)).collect();
        let pairs: Vec<(Buffer, Buffer)> = sent
            .iter()
            .map(|bytes| {
                let src = adapters.manager.adopt(bytes.clone()).unwrap();
                (src, adapters.buffer(adapter, bytes.len() as u64))
            })
            .collect();
        let executor = smol::Executor::new();
        let tasks: Vec<_> = pairs
            .iter()
            .map(|(src, dst)| executor.spawn(adapters.manager.copy(src, dst)))
            .collect();
        smol::block_on(executor.run(async {
            // The last future is polled first: a future that is not polled must not hold up the others.
            for task in tasks.into_iter().rev() {
                task.await.unwrap();
            }
        }));
        for ((_, dst), sent) in pairs.iter().zip(&sent) {
            assert!(adapter.bytes_of(dst) == *sent, "{adapter:?}");
        }
    }
}

/// The links of a chain lie in one buffer, so the engine executes them in the order of submission. Chains are
/// independent of each other.
#[test]
fn chains_submitted_in_random_order_end_as_each_was_submitted() {
    let Some(adapters) = Adapters::open(1) else {
        return;
    };
    const CHAINS: usize = 6;
    const LINKS: u64 = 8;
    const LEN: u64 = 5003;
    for seed in 1..=3 {
        let mut random = Random::new(seed);
        // A chain writes to the host, to each adapter in turn, and then over its own source.
        let mut places = Vec::new();
        for chain in 0..CHAINS {
            let on = adapters.all.iter().map(|adapter| {
                let bytes = pattern(LEN, seed << 16 | chain as u64);
                adapters.filled(adapter, &bytes)
            });
            let mut ring: Vec<Buffer> = on.collect();
            let heap = pattern(LEN, seed << 24 | chain as u64);
            ring.push(adapters.manager.adopt(heap).unwrap());
            places.push(ring);
        }
        let mut wanted: Vec<Vec<Vec<u8>>> = places
            .iter()
            .map(|ring| ring.iter().map(|buffer| adapters.look(buffer)).collect())
            .collect();
        let mut links: Vec<usize> = (0..CHAINS).flat_map(|c| [c; LINKS as usize]).collect();
        random.shuffle(&mut links);
        let mut transfers = Vec::new();
        for (step, chain) in links.into_iter().enumerate() {
            let ring = &places[chain];
            let (from, to) = (step % ring.len(), (step + 1) % ring.len());
            let (at, into) = (random.below(900), random.below(900));
            let len = 1 + random.below(LEN - 900);
            let range = |at: u64| at as usize..(at + len) as usize;
            let bytes = wanted[chain][from][range(at)].to_vec();
            wanted[chain][to][range(into)].copy_from_slice(&bytes);
            transfers.push(adapters.manager.copy(
                ring[from].slice(at..at + len).unwrap(),
                ring[to].slice(into..into + len).unwrap(),
            ));
        }
        random.shuffle(&mut transfers);
        for transfer in transfers {
            transfer.wait().unwrap();
        }
        for (chain, (ring, wanted)) in places.iter().zip(&wanted).enumerate() {
            for (buffer, wanted) in ring.iter().zip(wanted) {
                let what = format!("seed {seed}, chain {chain}, {}", buffer.memory());
                assert!(adapters.look(buffer) == *wanted, "{what}");
            }
        }
    }
}

#[test]
fn dropped_transfers_arrive_all_the_same() {
    let Some(adapters) = Adapters::open(1) else {
        return;
    };
    for adapter in &adapters.all {
        let sent = pattern(6 * MIB + 1, 7);
        let src = adapters.manager.adopt(sent.clone()).unwrap();
        let dsts: Vec<Buffer> = (0..4)
            .map(|_| adapters.buffer(adapter, sent.len() as u64))
            .collect();
        for dst in &dsts {
            drop(adapters.manager.copy(&src, dst));
        }
        // A transfer keeps the buffers that it needs alive.
        drop(src);
        adapters.manager.wait_idle();
        for dst in &dsts {
            assert!(adapter.bytes_of(dst) == sent, "{adapter:?}");
        }
        // This future is polled once and then dropped.
        let far = &dsts[0];
        let back = adapters.manager.adopt(vec![POISON; sent.len()]).unwrap();
        let transfer = adapters.manager.copy(far, &back);
        let _ = smol::block_on(smol::future::poll_once(transfer));
        adapters.manager.wait_idle();
        assert!(*back.read().unwrap() == *sent, "{adapter:?}");
    }
}

#[test]
fn a_cancelled_transfer_says_how_many_bytes_arrived() {
    let Some(adapters) = Adapters::open(1) else {
        return;
    };
    const LEN: u64 = 6 * MIB + 5;
    const BAND: u64 = 64;
    for adapter in &adapters.all {
        let sent = pattern(LEN, 11);
        let src = adapters.manager.adopt(sent.clone()).unwrap();
        let dst = adapters.buffer(adapter, LEN + 2 * BAND);
        let blank = vec![POISON; (LEN + 2 * BAND) as usize];
        let mut told = [0; 3];
        for turn in 0..12u32 {
            adapter.fill(&dst, &blank);
            let request = Request::new(&src, dst.slice(BAND..BAND + LEN).unwrap());
            // Some transfers wait for an event that is never set, so they are cancelled before they start.
            let gate = adapters.manager.event();
            let request = match turn % 3 {
                0 => request.after(&gate),
                _ => request,
            };
            let transfer = adapters.manager.submit(&request);
            // Each turn cancels later, so that the cancellation meets the transfer at several stages.
            for _ in 0..20 * turn {
                adapters.manager.turn();
            }
            let (kind, arrived) = match transfer.cancel() {
                Cancelled::NotStarted => (0, 0),
                Cancelled::Stopped { leading_bytes } => (1, leading_bytes),
                Cancelled::Finished(result) => (2, result.unwrap().bytes()),
            };
            told[kind] += 1;
            assert!(kind == 0 || turn % 3 != 0, "{adapter:?}, turn {turn}");
            let found = adapter.bytes_of(&dst);
            let (band, arrived) = (BAND as usize, arrived as usize);
            assert!(found[band..band + arrived] == sent[..arrived]);
            assert!(found[..band].iter().all(|byte| *byte == POISON));
            assert!(found[band + LEN as usize..].iter().all(|b| *b == POISON));
            if kind == 0 {
                assert!(found == blank, "{adapter:?}: nothing was started");
            }
        }
        println!("{adapter:?}: {told:?} not started, stopped, finished");
    }
}

/// The pieces of one thread come from the adapter's own memory, and those of the other from the heap. Each piece ends
/// inside a word, and the next piece begins in the same word.
#[test]
fn pieces_that_share_words_are_written_by_two_threads_and_nothing_is_lost() {
    let Some(adapters) = Adapters::open(1) else {
        return;
    };
    const PIECE: u64 = 101;
    const PIECES: u64 = 40;
    const LEN: u64 = PIECE * PIECES;
    for adapter in &adapters.all {
        // Memory that the engines of both threads reach, if the adapter has such memory.
        let shared = adapter.id.memory(MemoryKind::Mapped).into();
        let mapped = |len| {
            let allocated = adapters.manager.allocate(shared, AllocSpec::bytes(len));
            allocated.unwrap_or_else(|_| adapters.buffer(adapter, len))
        };
        for seed in 0..30 {
            let (even, odd) = (pattern(LEN, seed), pattern(LEN, seed + 100));
            let near = mapped(LEN);
            adapter.fill(&near, &even);
            let far = adapters.manager.adopt(odd.clone()).unwrap();
            let dst = mapped(LEN);
            let send = |src: &Buffer, first: u64| {
                for piece in (first..PIECES).step_by(2) {
                    let range = piece * PIECE..(piece + 1) * PIECE;
                    let src = src.slice(range.clone()).unwrap();
                    let dst = dst.slice(range).unwrap();
                    adapters.manager.copy(src, dst).wait().unwrap();
                }
            };
            std::thread::scope(|threads| {
                threads.spawn(|| send(&near, 0));
                send(&far, 1);
            });
            let found = adapter.bytes_of(&dst);
            for (at, found) in found.chunks(PIECE as usize).enumerate() {
                let sent = [&even, &odd][at % 2];
                let wanted = &sent[at * PIECE as usize..][..PIECE as usize];
                assert!(found == wanted, "{adapter:?}: piece {at} with seed {seed}");
            }
        }
    }
}
