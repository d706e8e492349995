use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::{Name, Shape, StorageId};

#[test]
fn readers_run_together_and_a_writer_waits_for_all_of_them() {
    let mut hazards = Hazards::new();
    let first = hazards.enter(&[read(0, 100)]);
    let second = hazards.enter(&[read(50, 100)]);
    let writer = hazards.enter(&[write(99, 2)]);
    let reader = hazards.enter(&[read(0, 100)]);
    assert_eq!((first.waits_for, second.waits_for), (0, 0));
    assert_eq!((writer.waits_for, reader.waits_for), (2, 1));
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
    assert_eq!(hazards.enter(&[write(64, 64), other]).waits_for, 0);
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
        assert_eq!(hazards.enter(&[footprint]).waits_for, 0);
    }
}

#[test]
fn interleaved_columns_of_one_image_run_together() {
    let mut hazards = Hazards::new();
    let columns = |position, width| {
        let shape = Shape::pitched(width, 100, 256).unwrap();
        Footprint::new(StorageId::Host, position, shape, true).unwrap()
    };
    assert_eq!(hazards.enter(&[columns(0, 128)]).waits_for, 0);
    assert_eq!(hazards.enter(&[columns(128, 128)]).waits_for, 0);
    assert_eq!(hazards.enter(&[columns(127, 2)]).waits_for, 2);
}

#[test]
fn one_predecessor_counts_once_however_many_footprints_meet() {
    let mut hazards = Hazards::new();
    let first = hazards.enter(&[write(0, 10), write(20, 10), read(5, 20)]);
    assert_eq!(first.waits_for, 0);
    let second = hazards.enter(&[write(0, 30), write(5, 1)]);
    assert_eq!(second.waits_for, 1);
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
    assert_eq!(behind_both.waits_for, 2);
    assert_eq!(behind_cancelled.waits_for, 1);
    assert_eq!(
        leave(&mut hazards, cancelled),
        [behind_cancelled.ticket],
        "the other one conflicts with the first itself"
    );
    assert_eq!(hazards.waits_for(behind_both.ticket), Some(1));
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
fn a_ticket_that_left_is_never_taken_for_its_slot_s_next_user() {
    let mut hazards = Hazards::new();
    let gone = hazards.enter(&[write(0, 10)]);
    leave(&mut hazards, gone);
    let next = hazards.enter(&[write(0, 10)]);
    let behind = hazards.enter(&[write(0, 10)]);
    assert_eq!(next.ticket.index(), gone.ticket.index());
    assert!(!hazards.leave(gone.ticket, &mut |_| panic!("nothing is freed")));
    assert_eq!(hazards.waits_for(gone.ticket), None);
    assert_eq!(hazards.blockers(gone.ticket), []);
    assert_eq!(hazards.waits_for(behind.ticket), Some(1));
    assert_eq!(hazards.len(), 2);
}

#[test]
fn empty_footprints_conflict_with_nothing() {
    let mut hazards = Hazards::new();
    let around = hazards.enter(&[write(0, 100)]);
    let empty = hazards.enter(&[write(50, 0), read(0, 0)]);
    let nothing = hazards.enter(&[]);
    let last = hazards.enter(&[write(0, 100)]);
    assert_eq!((empty.waits_for, nothing.waits_for), (0, 0));
    assert_eq!(last.waits_for, 1);
    assert_eq!(leave(&mut hazards, empty), []);
    assert_eq!(leave(&mut hazards, around), [last.ticket]);
}

#[test]
fn positions_up_to_the_last_one_take_part() {
    let mut hazards = Hazards::new();
    let all = hazards.enter(&[write(0, u64::MAX)]);
    let last = hazards.enter(&[write(u64::MAX - 1, 1)]);
    assert_eq!(last.waits_for, 1);
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
        assert_eq!(reader.waits_for, 1);
        assert_eq!(leave(&mut hazards, writer), [reader.ticket]);
        leave(&mut hazards, reader);
    }
    assert!(hazards.is_empty() && hazards.enter(&[write(0, 64)]).waits_for == 0);
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
    hazards.leave(held, &mut |_| ());
    assert_eq!(hazards.held_up_by(last, &[held], nothing), None);
    hazards.leave(last, &mut |_| ());
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
                hazards.leave(gone, &mut |_| ());
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
    let mut freed = vec![];
    assert!(hazards.leave(entry.ticket, &mut |ticket| freed.push(ticket)));
    freed
}
