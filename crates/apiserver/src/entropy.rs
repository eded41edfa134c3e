//! The one source of randomness of a server.
//! In: a seed, or nothing for one from the operating system. Out: uids, name suffixes, key
//! material, choices.
//! Guarantees: the same seed gives the same sequence, so a run can be replayed; the generator is
//! fit for secrets when the seed is.

use std::{fmt, sync::Mutex};

use rand::{Rng as _, RngExt as _, SeedableRng as _, rngs::StdRng};
use ring::rand::{SecureRandom as _, SystemRandom};

/// The alphabet of `generateName`: no vowels and no look-alikes, so that no word appears by chance.
const SUFFIX_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Randomness for everything the server makes up: uids, suffixes, tokens, keys.
///
/// Calls from several threads are serialised; which thread gets which value is theirs to order.
pub(crate) struct Entropy {
    generator: Mutex<StdRng>,
}

impl Entropy {
    /// Seeded from the operating system; the seed is not kept.
    pub(crate) fn from_os() -> Self {
        let mut seed = [0; 32];
        SystemRandom::new()
            .fill(&mut seed)
            .expect("the operating system has randomness to give");
        Self {
            generator: Mutex::new(StdRng::from_seed(seed)),
        }
    }

    /// The sequence of `seed`. For replay only, never for credentials: with the seed, every value
    /// can be computed.
    pub(crate) fn seeded(seed: u64) -> Self {
        Self {
            generator: Mutex::new(StdRng::seed_from_u64(seed)),
        }
    }

    /// A random (version 4) UUID in lower case.
    pub(crate) fn uid(&self) -> String {
        let mut b: [u8; 16] = self.draw(|g| g.random());
        b[6] = (b[6] & 0x0f) | 0x40;
        b[8] = (b[8] & 0x3f) | 0x80;
        let mut text = String::with_capacity(36);
        for (index, byte) in b.into_iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text.push(char::from(HEX_DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(HEX_DIGITS[usize::from(byte & 0xf)]));
        }
        text
    }

    /// `length` characters for the end of a generated name.
    pub(crate) fn suffix(&self, length: usize) -> String {
        self.draw(|g| {
            (0..length)
                .map(|_| char::from(SUFFIX_ALPHABET[g.random_range(0..SUFFIX_ALPHABET.len())]))
                .collect()
        })
    }

    /// `length` bytes, fit for keys and tokens.
    pub(crate) fn bytes(&self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.draw(|g| g.fill_bytes(&mut bytes));
        bytes
    }

    /// A number below `bound`, each equally likely; 0 when the bound is 0.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        if bound == 0 {
            0
        } else {
            self.draw(|g| g.random_range(0..bound))
        }
    }

    fn draw<T>(&self, take: impl FnOnce(&mut StdRng) -> T) -> T {
        // A panic while drawing leaves a generator that is still a generator.
        take(
            &mut self
                .generator
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        )
    }
}

impl Default for Entropy {
    fn default() -> Self {
        Self::from_os()
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entropy")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_same_sequence() {
        let a = Entropy::seeded(7);
        let b = Entropy::seeded(7);
        let other = Entropy::seeded(8);
        let take = |e: &Entropy| (e.uid(), e.suffix(5), e.bytes(9), e.below(1000));
        assert_eq!(take(&a), take(&b));
        assert_ne!(take(&Entropy::seeded(7)), take(&other));
        assert_ne!(Entropy::from_os().uid(), Entropy::from_os().uid());
    }

    #[test]
    fn uids_are_random_uuids() {
        let entropy = Entropy::seeded(1);
        for _ in 0..100 {
            let uid = entropy.uid();
            let parts: Vec<usize> = uid.split('-').map(str::len).collect();
            assert_eq!(parts, [8, 4, 4, 4, 12], "{uid}");
            assert_eq!(&uid[14..15], "4", "{uid}");
            assert!("89ab".contains(&uid[19..20]), "{uid}");
            assert_eq!(uid, uid.to_lowercase());
        }
    }

    #[test]
    fn suffix_and_numbers_stay_in_their_range() {
        let entropy = Entropy::seeded(2);
        assert!(
            entropy
                .suffix(500)
                .bytes()
                .all(|c| SUFFIX_ALPHABET.contains(&c))
        );
        assert!((0..500).all(|_| entropy.below(3) < 3));
        assert_eq!(entropy.below(0), 0);
        assert_eq!(entropy.below(1), 0);
        assert_eq!(entropy.bytes(32).len(), 32);
        assert_eq!(entropy.suffix(0).len(), 0);
    }
}
