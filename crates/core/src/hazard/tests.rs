use alloc::vec;
use alloc::vec::Vec;

use super::index::ROOMY;
use super::*;
use crate::{Name, Shape, StorageId};

#[test]
fn readers_run_together_and_a_writer_waits_for_all_of_them() {
    let mut hazards = Hazards::new();
    let first = hazards.enter(&[read(0, 100)]);
    let second = hazards.enter(&[read(50, 100)]);
    let writer = hazards.enter(&[write(99, 2)]);
    let reader = hazards.enter(&[read(0, 100)]);
    assert!(!first.waits && !second.waits && writer.waits && reader.waits);
    assert_eq!(
        hazards.blockers(writer.ticket),
        [first.ticket, second.ticket]
    );
    assert_eq!(leave(&mut hazards, second), []);
    assert_eq!(leave(&mut hazards, first), [writer.ticket]);
    assert_eq!(leave(&mut hazards, writer), [reader.ticket]);
    assert_eq!(leave(&mut hazards, reader), []);
    assert!(hazards.is_empty());
}

#[test]
fn touching_ranges_and_other_storages_run_together() {
    let mut hazards = Hazards::new();
    hazards.enter(&[write(0, 64)]);
    let file = StorageId::File {
        device: 1,
        inode: 1,
    };
    let other = Footprint::new(file, 0, Shape::contiguous(64), true).unwrap();
    assert!(!hazards.conflicts(&[write(64, 64), other]));
    assert!(hazards.conflicts(&[write(64, 64), other, read(63, 1)]));
    assert!(!hazards.enter(&[write(64, 64), other]).waits);
}

#[test]
fn storages_that_the_index_cannot_tell_apart_run_together() {
    let mut hazards = Hazards::new();
    let storages = [
        StorageId::Host,
        StorageId::Native {
            backend: Name::constant("one"),
            handle: 1 << 63,
        },
        StorageId::Native {
            backend: Name::constant("two"),
            handle: 1 << 63,
        },
    ];
    for storage in storages {
        let footprint = Footprint::new(storage, 0, Shape::contiguous(64), true).unwrap();
        assert_eq!(
            footprint.first_point(),
            write(0, 1).first_point(),
            "the case under test"
        );
        assert!(!hazards.enter(&[footprint]).waits);
    }
}

#[test]
fn interleaved_columns_of_one_image_run_together() {
    let mut hazards = Hazards::new();
    let columns = |position, width| {
        let shape = Shape::pitched(width, 100, 256).unwrap();
        Footprint::new(StorageId::Host, position, shape, true).unwrap()
    };
    assert!(!hazards.enter(&[columns(0, 128)]).waits);
    assert!(!hazards.enter(&[columns(128, 128)]).waits);
    let both = hazards.enter(&[columns(127, 2)]);
    assert_eq!(hazards.blockers(both.ticket).len(), 2);
}

#[test]
fn one_predecessor_frees_once_however_many_footprints_meet() {
    let mut hazards = Hazards::new();
    let first = hazards.enter(&[write(0, 10), write(20, 10), read(5, 20)]);
    assert!(!first.waits);
    let second = hazards.enter(&[write(0, 30), write(5, 1)]);
    assert!(second.waits);
    assert_eq!(hazards.blockers(second.ticket), [first.ticket]);
    assert_eq!(leave(&mut hazards, first), [second.ticket]);
}

#[test]
fn a_cancelled_ticket_leaves_the_order_around_it_as_it_was() {
    let mut hazards = Hazards::new();
    let first = hazards.enter(&[write(0, 10)]);
    let cancelled = hazards.enter(&[write(0, 20)]);
    let behind_both = hazards.enter(&[write(5, 10)]);
    let behind_cancelled = hazards.enter(&[write(15, 5)]);
    assert_eq!(
        hazards.blockers(behind_both.ticket),
        [first.ticket, cancelled.ticket]
    );
    assert_eq!(
        hazards.blockers(behind_cancelled.ticket),
        [cancelled.ticket]
    );
    assert_eq!(
        leave(&mut hazards, cancelled),
        [behind_cancelled.ticket],
        "the other one conflicts with the first itself"
    );
    assert_eq!(hazards.waits(behind_both.ticket), Some(true));
    assert_eq!(hazards.blockers(behind_both.ticket), [first.ticket]);
    assert_eq!(leave(&mut hazards, first), [behind_both.ticket]);
}

#[test]
fn freed_tickets_come_in_the_order_in_which_they_entered() {
    let mut hazards = Hazards::new();
    let writer = hazards.enter(&[write(0, 100)]);
    let entries: Vec<Entered> = [90, 10, 50, 30, 70]
        .into_iter()
        .map(|position| hazards.enter(&[write(position, 5)]))
        .collect();
    let wanted: Vec<Ticket> = entries.iter().map(|entry| entry.ticket).collect();
    assert_eq!(leave(&mut hazards, writer), wanted);
}

#[test]
fn as_many_followers_are_looked_at_as_the_caller_asks_for() {
    let mut hazards = Hazards::new();
    let older = hazards.enter(&[write(0, 8)]);
    let writer = hazards.enter(&[write(0, 100)]);
    let readers: Vec<Ticket> = (0..5)
        .map(|at| hazards.enter(&[read(at * 8, 8)]).ticket)
        .collect();
    assert_eq!(hazards.poll_freed(&mut 9), None);
    assert!(hazards.leave(writer.ticket) && hazards.has_left());
    assert_eq!(hazards.poll_freed(&mut 0), None);
    // Not looked at, it waits, as a ticket that enters meanwhile waits for it.
    assert_eq!(hazards.waits(readers[4]), Some(true));
    let behind = hazards.enter(&[write(32, 8)]);
    assert!(behind.waits);
    let mut looks = 3;
    // The first one follows the older one.
    assert_eq!(hazards.poll_freed(&mut looks), Some(readers[1]));
    assert_eq!(hazards.poll_freed(&mut looks), Some(readers[2]));
    assert_eq!((hazards.poll_freed(&mut looks), looks), (None, 0));
    // One that was given up meanwhile is not freed.
    hazards.leave(readers[3]);
    assert_eq!(hazards.poll_freed(&mut 1), Some(readers[4]));
    assert_eq!(leave(&mut hazards, older), [readers[0]]);
    // Both are given up, and no ticket is left behind them.
    hazards.leave(readers[4]);
    hazards.leave(behind.ticket);
    assert_eq!(hazards.poll_freed(&mut 9), None);
    assert_eq!(hazards.left, [NIL; 2], "no slot is kept");
}

/// How a chain of transfers ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// Each when it may start.
    InOrder,
    /// Those that wait are given up, the last one first.
    FromTheBack,
    /// They are given up in no order.
    Anyhow,
}

#[test]
fn the_work_for_each_transfer_of_a_chain_grows_as_the_depth_of_a_tree() {
    // The source lies before the destination, and after it; or the two change places each time.
    let copies: [fn(u64) -> [Footprint; 2]; 4] = [
        |_| [read(0, 64), write(128, 64)],
        |_| [read(128, 64), write(0, 64)],
        |at| [read(at % 2 * 128, 64), write((at + 1) % 2 * 128, 64)],
        // Pieces of it, and the whole.
        |at| match at % 3 {
            0 => [read(1000, 64), write(0, 64)],
            part => [read(1000, 32), write(part * 32 - 32, 32)],
        },
    ];
    for (copy, end) in (copies.iter().enumerate())
        .flat_map(|copy| [End::InOrder, End::FromTheBack, End::Anyhow].map(|end| (copy, end)))
    {
        for count in [10u64, 100, 1000, 10_000] {
            let case = alloc::format!("copies {}, {end:?}, {count}", copy.0);
            let mut hazards = Hazards::new();
            let mut most = 0;
            let visits = |hazards: &Hazards| hazards.index.visits.replace(0);
            let tickets: Vec<Ticket> = (0..count)
                .map(|at| {
                    let ticket = hazards.enter(&copy.1(at)).ticket;
                    most = most.max(visits(&hazards));
                    ticket
                })
                .collect();
            let order: Vec<usize> = match end {
                End::InOrder => (0..tickets.len()).collect(),
                End::FromTheBack => (0..tickets.len()).rev().collect(),
                // 7,919 is a prime that divides no count.
                End::Anyhow => (0..tickets.len())
                    .map(|at| at * 7919 % tickets.len())
                    .collect(),
            };
            let mut looked_at = 0;
            for at in order {
                if let End::InOrder = end {
                    assert_eq!(hazards.waits(tickets[at]), Some(false), "{case}");
                }
                hazards.leave(tickets[at]);
                let mut looks = usize::MAX;
                while hazards.poll_freed(&mut looks).is_some() {}
                looked_at += usize::MAX - looks;
                most = most.max(visits(&hazards));
            }
            assert!(hazards.is_empty());
            // Two or three searches, down two trees whose depth is 4.31 ln n at most, expected (Devroye 1986).
            // A call that gives memory back visits the footprints that are left, too.
            let moved = 2 * count as usize / ROOMY;
            let limit = 60.0 + 40.0 * (count as f64).ln() + moved as f64;
            assert!((most as f64) < limit, "{case}: {most} nodes for one call");
            assert!(looked_at <= 3 * tickets.len(), "{case}: {looked_at} looks");
        }
    }
}

#[test]
fn a_peak_costs_nothing_once_it_is_over_although_a_ticket_of_before_is_held() {
    let mut hazards = Hazards::new();
    let held = hazards.enter(&[read(0, 64)]).ticket;
    // They conflict with nothing.
    let burst = |hazards: &mut Hazards, count: u64| {
        let tickets: Vec<Ticket> = (1..=count)
            .map(|at| hazards.enter(&[write(at * 64, 64)]).ticket)
            .collect();
        assert!(tickets.into_iter().all(|ticket| hazards.leave(ticket)));
    };
    burst(&mut hazards, 100_000);
    let visits = |hazards: &Hazards| hazards.index.visits.replace(0) as f64;
    visits(&hazards);
    // As many as make the index give memory back each time.
    let count = KEPT as u64 + 1;
    for _ in 0..10 {
        burst(&mut hazards, count);
        let each = visits(&hazards) / count as f64;
        assert!(each <= 4.0, "{each} nodes for each ticket");
        let behind = hazards.enter(&[write(0, 64)]).ticket;
        visits(&hazards);
        assert_eq!(hazards.held_up_by(behind, &[held], |_| false), Some(held));
        assert!(visits(&hazards) <= 4.0);
        hazards.leave(behind);
    }
}

#[test]
fn a_ticket_that_left_is_never_taken_for_its_slot_s_next_user() {
    let mut hazards = Hazards::new();
    let gone = hazards.enter(&[write(0, 10)]);
    leave(&mut hazards, gone);
    let next = hazards.enter(&[write(0, 10)]);
    let behind = hazards.enter(&[write(0, 10)]);
    assert_eq!(next.ticket.index(), gone.ticket.index());
    assert!(!hazards.leave(gone.ticket) && !hazards.has_left());
    assert_eq!(hazards.waits(gone.ticket), None);
    assert_eq!(hazards.blockers(gone.ticket), []);
    assert_eq!(hazards.waits(behind.ticket), Some(true));
    assert_eq!(hazards.len(), 2);
}

#[test]
fn empty_footprints_conflict_with_nothing() {
    let mut hazards = Hazards::new();
    let around = hazards.enter(&[write(0, 100)]);
    let empty = hazards.enter(&[write(50, 0), read(0, 0)]);
    let nothing = hazards.enter(&[]);
    let last = hazards.enter(&[write(0, 100)]);
    assert!(!empty.waits && !nothing.waits);
    assert_eq!(hazards.blockers(last.ticket), [around.ticket]);
    assert_eq!(leave(&mut hazards, empty), []);
    assert_eq!(leave(&mut hazards, around), [last.ticket]);
}

#[test]
fn positions_up_to_the_last_one_take_part() {
    let mut hazards = Hazards::new();
    let all = hazards.enter(&[write(0, u64::MAX)]);
    let last = hazards.enter(&[write(u64::MAX - 1, 1)]);
    assert!(last.waits);
    assert_eq!(leave(&mut hazards, all), [last.ticket]);
}

#[test]
fn memory_goes_back_when_most_tickets_have_left_and_the_order_stays() {
    let mut hazards = Hazards::new();
    let ranges = (0..5000).map(|at| at * 64);
    let writers: Vec<_> = { ranges }
        .map(|at| (at, hazards.enter(&[write(at, 64), read(at + 0x10_0000, 8)])))
        .collect();
    let (kept, left): (Vec<_>, Vec<_>) = writers.into_iter().partition(|(at, _)| at % 6400 == 0);
    let readers: Vec<_> = { kept.iter() }
        .map(|(at, _)| hazards.enter(&[read(*at, 1)]))
        .collect();
    for (_, writer) in left {
        assert!(leave(&mut hazards, writer).is_empty());
    }
    assert!(!hazards.index.is_roomy(), "{} are live", hazards.len());
    for ((_, writer), reader) in kept.into_iter().zip(readers) {
        assert!(reader.waits);
        assert_eq!(leave(&mut hazards, writer), [reader.ticket]);
        leave(&mut hazards, reader);
    }
    assert!(hazards.is_empty() && !hazards.enter(&[write(0, 64)]).waits);
}

#[test]
fn a_ticket_is_held_up_by_what_it_waits_for_and_by_what_that_waits_for() {
    let mut hazards = Hazards::new();
    let apart = hazards.enter(&[write(0, 100)]).ticket;
    let held = hazards.enter(&[read(100, 10)]).ticket;
    let reader = hazards.enter(&[read(100, 10)]).ticket;
    let writer = hazards.enter(&[write(109, 20)]).ticket;
    let last = hazards.enter(&[read(128, 1), read(99, 1)]).ticket;
    let nothing = |_| false;
    assert_eq!(hazards.held_up_by(writer, &[held], nothing), Some(held));
    assert_eq!(hazards.held_up_by(last, &[held], nothing), Some(held));
    assert_eq!(hazards.held_up_by(reader, &[held], nothing), None);
    assert_eq!(hazards.held_up_by(held, &[held], nothing), None);
    assert_eq!(hazards.held_up_by(last, &[], nothing), None);
    assert_eq!(hazards.held_up_by(writer, &[apart], nothing), None);
    // The writer leaves by itself, and the last one waits for no other that is behind `held`.
    let leaves = |ticket| ticket == writer;
    assert_eq!(hazards.held_up_by(last, &[held], leaves), None);
    assert_eq!(
        hazards.held_up_by(last, &[apart, held], leaves),
        Some(apart)
    );
    hazards.leave(held);
    assert_eq!(hazards.held_up_by(last, &[held], nothing), None);
    hazards.leave(last);
    assert_eq!(hazards.held_up_by(last, &[apart], nothing), None);
}

#[test]
fn what_holds_a_ticket_up_is_what_a_walk_over_its_blockers_finds() {
    let mut state = 1u64;
    let mut below = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        (state.wrapping_add(1_442_695_040_888_963_407) >> 33) % limit
    };
    for _ in 0..500 {
        let mut hazards = Hazards::new();
        let mut tickets = vec![];
        for _ in 0..12 {
            let mut some = || match below(2) {
                0 => read(below(40), 1 + below(4)),
                _ => write(below(40), 1 + below(4)),
            };
            tickets.push(hazards.enter(&[some(), some()]).ticket);
            if below(4) == 0 {
                let gone = tickets.remove(below(tickets.len() as u64) as usize);
                hazards.leave(gone);
            }
        }
        let held: Vec<Ticket> = tickets.iter().copied().filter(|_| below(5) == 0).collect();
        let leaves: Vec<Ticket> = tickets.iter().copied().filter(|_| below(5) == 0).collect();
        for ticket in tickets {
            let mut found = vec![];
            let mut to_look_at = hazards.blockers(ticket).to_vec();
            while let Some(next) = to_look_at.pop() {
                match held.contains(&next) {
                    true => found.push(next),
                    false if leaves.contains(&next) => {}
                    false => to_look_at.extend(hazards.blockers(next)),
                }
            }
            match hazards.held_up_by(ticket, &held, |of| leaves.contains(&of)) {
                Some(by) => assert!(found.contains(&by)),
                None => assert_eq!(found, []),
            }
        }
    }
}

fn read(position: u64, len: u64) -> Footprint {
    Footprint::new(StorageId::Host, position, Shape::contiguous(len), false).unwrap()
}

fn write(position: u64, len: u64) -> Footprint {
    Footprint::new(StorageId::Host, position, Shape::contiguous(len), true).unwrap()
}

fn leave(hazards: &mut Hazards, entry: Entered) -> Vec<Ticket> {
    assert!(hazards.leave(entry.ticket));
    let mut looks = usize::MAX;
    core::iter::from_fn(|| hazards.poll_freed(&mut looks)).collect()
}
