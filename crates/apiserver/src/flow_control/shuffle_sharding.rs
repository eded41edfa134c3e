//! Shuffle sharding: which queues of a priority level a flow may use.
//! In: a FlowSchema's name and a flow distinguisher. Out: a hash, and a hand of distinct queues.
//! Guarantees: the hash and the hand are those of kube-apiserver 1.36.

use bellerophon_resources::kinds::flow_control::{HASH_BITS_MAX, required_bits};
use sha2::{Digest as _, Sha256};

/// The largest hand: 16 queues of 16 would need 64 bits of hash.
const HAND_MAX: usize = 15;

/// The most queues of a level that a hand is dealt from.
const DECK_MAX: u32 = 1 << 26;

/// The hash of a flow: the first 8 bytes of SHA-256 over the name of the FlowSchema, a zero byte
/// and the flow distinguisher, in little-endian order. Mirrors `hashFlowID`.
pub(super) fn flow_hash(flow_schema: &str, distinguisher: &str) -> u64 {
    let mut hash = Sha256::new();
    hash.update(flow_schema);
    hash.update([0]);
    hash.update(distinguisher);
    let digest = hash.finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first)
}

/// Deals hands of distinct queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dealer {
    queues: u32,
    hand_size: u32,
}

/// The queues that were dealt to a flow, in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hand {
    queues: [u32; HAND_MAX],
    size: usize,
}

impl Hand {
    /// The queues.
    pub(super) fn queues(&self) -> &[u32] {
        &self.queues[..self.size]
    }
}

impl Dealer {
    /// A dealer for this configuration; `None` if a hash cannot supply a hand of this size.
    pub(super) fn new(queues: u32, hand_size: u32) -> Option<Self> {
        let fits = (1..=DECK_MAX).contains(&queues)
            && (1..=queues).contains(&hand_size)
            && hand_size as usize <= HAND_MAX
            && required_bits(queues, hand_size) <= HASH_BITS_MAX;
        fits.then_some(Self { queues, hand_size })
    }

    /// How many queues there are.
    pub(super) fn queues(self) -> u32 {
        self.queues
    }

    /// The hand of a hash. Mirrors `Dealer.Deal`: the hash is a number of mixed radix, whose digits
    /// pick one of the queues that are left.
    pub(super) fn deal(self, hash: u64) -> Hand {
        let size = self.hand_size as usize;
        let mut digits = [0; HAND_MAX];
        let mut rest = hash;
        let mut left = u64::from(self.queues);
        for digit in &mut digits[..size] {
            *digit = u32::try_from(rest % left).expect("a queue index fits 32 bits");
            rest /= left;
            left -= 1;
        }
        let mut queues = [0; HAND_MAX];
        for card in 0..size {
            queues[card] = digits[..card]
                .iter()
                .rev()
                .fold(digits[card], |queue, earlier| {
                    if queue >= *earlier { queue + 1 } else { queue }
                });
        }
        Hand { queues, size }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn hand_of_a_flow_is_that_of_kube_apiserver() {
        let dealer = Dealer::new(128, 6).expect("a configuration of the defaults");
        let hand = dealer.deal(flow_hash("global-default", "alice"));
        assert_eq!(hand.queues(), [55, 62, 126, 125, 105, 1]);
    }

    #[test]
    fn hand_has_distinct_queues() {
        for (queues, size) in [
            (1, 1),
            (2, 2),
            (8, 8),
            (64, 6),
            (128, 6),
            (16, 15),
            (10_000_000, 2),
        ] {
            let dealer = Dealer::new(queues, size).expect("it fits");
            for user in 0..200 {
                let hand = dealer.deal(flow_hash("schema", &format!("user-{user}")));
                let distinct: BTreeSet<u32> = hand.queues().iter().copied().collect();
                assert_eq!(distinct.len(), size as usize, "{queues}x{size}: {hand:?}");
                assert!(distinct.iter().all(|queue| *queue < queues), "{hand:?}");
            }
        }
    }

    #[test]
    fn configuration_that_a_hash_cannot_supply_is_refused() {
        for (queues, size) in [(0, 0), (4, 5), (16, 16), (1 << 27, 1), (1024, 7)] {
            assert_eq!(Dealer::new(queues, size), None, "{queues}x{size}");
        }
        assert_eq!(required_bits(128, 6), 42);
    }
}
