//! The devices that hold the leased slots, and the limit of each.
//!
//! The rule: a device that holds slots leases more only where at least as much of the budget stays free as the device
//! holds already. So one device holds at most half of what other devices leave, rounded up to its last lease, however many
//! of its transfers stand still. A device that holds nothing leases the first slots of one transfer wherever they fit.
//!
//! We halve the free part because the budget cannot know which devices will stage. Equal shares for all devices of a
//! machine would leave an eighth to the only one that stages, and a fixed reserve for others would be gone when the
//! second device stops answering.

use alloc::vec::Vec;

use transload_core::DeviceId;

use super::super::types::Pair;

/// The leased slots of a budget, by pair.
pub(super) struct Shares {
    limit_bytes: u64,
    leased_bytes: u64,
    /// Pairs that hold slots. Few, since a pair leaves the list when it holds none.
    held: Vec<(Pair, u64)>,
}

impl Shares {
    pub(super) fn new(limit_bytes: u64) -> Shares {
        Shares {
            limit_bytes,
            leased_bytes: 0,
            held: Vec::new(),
        }
    }

    /// Returns whether the rule lets a pair lease `bytes` bytes more. The caller checks whether they fit into the
    /// budget.
    pub(super) fn allow(&self, pair: Pair, bytes: u64, claims: &Claims) -> bool {
        let allows = |device| self.allows(device, bytes, claims.on(device));
        bytes == 0 || pair.devices().all(allows)
    }

    /// Claims the room for a pair that waits, since it was not allowed `bytes` bytes. A device at its share is closed
    /// to all later transfers. The other device stays open, since the first one may never answer, but keeps room for
    /// `bytes`.
    pub(super) fn claim(&self, pair: Pair, bytes: u64, claims: &mut Claims) {
        for device in pair.devices() {
            let is_open = self.allows(device, bytes, claims.on(device));
            claims.add(device, if is_open { bytes } else { u64::MAX });
        }
    }

    fn allows(&self, device: DeviceId, bytes: u64, claimed: u64) -> bool {
        let held = self.of(device);
        let more = bytes.saturating_add(claimed);
        let free = self.limit_bytes.saturating_sub(self.leased_bytes);
        held == 0 || held.saturating_add(claimed) <= free.saturating_sub(more)
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn leased_bytes(&self) -> u64 {
        self.leased_bytes
    }

    fn of(&self, device: DeviceId) -> u64 {
        let of_device = |held: &&(Pair, u64)| held.0.has(device);
        { self.held.iter().filter(of_device) }
            .map(|(_, bytes)| bytes)
            .sum()
    }

    pub(super) fn add(&mut self, pair: Pair, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.leased_bytes += bytes;
        match self.held.iter_mut().find(|(known, _)| *known == pair) {
            Some((_, held)) => *held += bytes,
            None => self.held.push((pair, bytes)),
        }
    }

    pub(super) fn remove(&mut self, pair: Pair, bytes: u64) {
        let Some(at) = self.held.iter().position(|(known, _)| *known == pair) else {
            return;
        };
        self.leased_bytes -= bytes;
        self.held[at].1 -= bytes;
        if self.held[at].1 == 0 {
            self.held.swap_remove(at);
        }
    }
}

/// The room on devices that transfers which wait for their share reserve against later ones.
#[derive(Default)]
pub(crate) struct Claims(Vec<(DeviceId, u64)>);

impl Claims {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the largest claim on a device: its transfers wait for one after the other.
    fn on(&self, device: DeviceId) -> u64 {
        let claim = self.0.iter().find(|(known, _)| *known == device);
        claim.map_or(0, |(_, bytes)| *bytes)
    }

    fn add(&mut self, device: DeviceId, bytes: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == device) {
            Some((_, claimed)) => *claimed = bytes.max(*claimed),
            None => self.0.push((device, bytes)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use transload_core::DeviceKind;

    use super::*;

    fn device(index: u32) -> DeviceId {
        DeviceId::new(DeviceKind::SIM, index)
    }

    /// Between the host and that device.
    fn alone(index: u32) -> Pair {
        Pair::between(DeviceId::CPU0, device(index))
    }

    fn both(a: u32, b: u32) -> Pair {
        Pair::between(device(a), device(b))
    }

    /// Leases slots of `bytes` bytes as long as the rule and the budget allow it. Returns how many.
    fn fill(shares: &mut Shares, pair: Pair, bytes: u64) -> u64 {
        let mut slots = 0;
        while shares.leased_bytes + bytes <= shares.limit_bytes
            && shares.allow(pair, bytes, &Claims::default())
        {
            shares.add(pair, bytes);
            slots += 1;
        }
        slots
    }

    #[test]
    fn one_device_alone_holds_half() {
        let mut shares = Shares::new(64);
        assert_eq!(fill(&mut shares, alone(0), 1), 32);
        assert_eq!(fill(&mut Shares::new(65), alone(0), 1), 33);
        assert_eq!(fill(&mut Shares::new(64), alone(0), 16), 2);
        assert_eq!(fill(&mut Shares::new(48), alone(0), 16), 2);
        assert_eq!(fill(&mut Shares::new(32), alone(0), 16), 1);
        // A second pair of the device has no share of its own.
        assert_eq!(fill(&mut shares, both(0, 0), 1), 0);
    }

    #[test]
    fn a_second_device_has_half_of_the_rest_and_a_third_half_of_that() {
        let mut shares = Shares::new(64);
        let slots = [0, 1, 2].map(|device| fill(&mut shares, alone(device), 1));
        assert_eq!(slots, [32, 16, 8]);
        shares.remove(alone(0), 32);
        assert_eq!(fill(&mut shares, alone(1), 1), 12);
    }

    #[test]
    fn first_slots_are_leased_wherever_they_fit() {
        for first in [1, 8, 16, 32] {
            let mut shares = Shares::new(64);
            assert!(fill(&mut shares, alone(0), first) * first <= 32);
            // As much as may be: all that a transfer of a budget's half needs.
            assert_eq!(fill(&mut shares, alone(1), 32), 1);
        }
        // The whole budget for a transfer that needs it, where nothing else is held.
        let mut shares = Shares::new(64);
        assert_eq!(fill(&mut shares, alone(0), 64), 1);
        assert!(!shares.allow(alone(0), 1, &Claims::default()));
        // And no more than half beside the first ones that are larger.
        let mut shares = Shares::new(64);
        assert_eq!(fill(&mut shares, both(0, 1), 40), 1);
        assert!(!shares.allow(alone(0), 1, &Claims::default()));
        assert!(shares.allow(alone(2), 24, &Claims::default()));
    }

    #[test]
    fn slots_between_two_devices_count_with_each_of_them() {
        let mut shares = Shares::new(64);
        assert_eq!(fill(&mut shares, both(0, 1), 8), 4);
        for pair in [alone(0), alone(1), both(0, 1), both(1, 2), both(0, 2)] {
            assert!(!shares.allow(pair, 8, &Claims::default()), "{pair:?}");
        }
        assert_eq!(fill(&mut shares, both(2, 3), 8), 2);
        // However many partners the device has.
        let mut shares = Shares::new(64);
        let slots: u64 = (1..8).map(|to| fill(&mut shares, both(0, to), 2)).sum();
        assert_eq!(slots, 16);
    }

    #[test]
    fn what_waits_keeps_room_on_the_device_that_it_does_not_wait_for() {
        let mut shares = Shares::new(64);
        assert_eq!(fill(&mut shares, alone(0), 8), 4);
        let mut claims = Claims::default();
        assert!(!shares.allow(both(0, 1), 8, &claims));
        shares.claim(both(0, 1), 8, &mut claims);
        // The first device is closed, and the second one has two slots, one of which is claimed.
        assert!(!shares.allow(both(0, 2), 8, &claims));
        assert!(shares.allow(alone(1), 8, &claims));
        shares.add(alone(1), 8);
        assert!(!shares.allow(alone(1), 8, &claims));
        assert!(shares.allow(alone(1), 8, &Claims::default()));
        // A slot that comes back goes to the transfer that waits, and to no later one.
        shares.remove(alone(0), 8);
        assert!(!shares.allow(alone(0), 8, &claims));
        shares.remove(alone(0), 8);
        claims.clear();
        assert!(shares.allow(both(0, 1), 8, &claims));
    }

    #[test]
    fn pairs_that_hold_nothing_are_forgotten() {
        let mut shares = Shares::new(64);
        shares.add(alone(0), 8);
        shares.add(alone(0), 8);
        shares.add(alone(1), 0);
        shares.remove(alone(0), 16);
        shares.remove(alone(1), 0);
        assert!(shares.held.is_empty());
        assert_eq!(shares.leased_bytes, 0);
    }
}
