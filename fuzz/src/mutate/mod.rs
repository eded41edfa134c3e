//! Inputs from seeds: mutation of bytes, of JSON and of protobuf messages, and growth to large
//! sizes.
//!
//! Guarantee: the sequence of inputs is a function of the seed of the generator, the seeds of the
//! target and the inputs that were kept.

mod bytes; // any input
mod json; // the JSON values in an input
mod protobuf; // protobuf messages, with correct lengths

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

/// One of this many inputs becomes large.
const LARGE_ONE_OF: u32 = 50;

/// The size from which an input counts as large, in bytes.
const LARGE_MIN_BYTES: usize = 8 << 10;

/// The most mutations of one input.
const MUTATIONS_MAX: usize = 6;

/// Longer inputs are changed as bytes only: one structured mutation makes an input up to 12 times
/// longer.
const STRUCTURED_MAX_BYTES: usize = 128 << 10;

/// The most inputs that are kept.
const KEPT_MAX: usize = 512;

/// No longer input is kept, so that most inputs stay short.
const KEPT_MAX_BYTES: usize = 32 << 10;

/// Makes inputs from seeds.
pub struct Mutator {
    /// The seeds of the target, and inputs that were kept. Never empty.
    pool: Vec<Vec<u8>>,
    seeds: usize,
    input_max_bytes: usize,
    random: StdRng,
}

impl Mutator {
    /// A mutator that makes inputs of at most `input_max_bytes`.
    ///
    /// # Panics
    /// There are no seeds.
    pub fn new(seeds: Vec<Vec<u8>>, input_max_bytes: usize, seed: u64) -> Self {
        assert!(!seeds.is_empty(), "mutation starts from a seed");
        Self {
            seeds: seeds.len(),
            pool: seeds,
            input_max_bytes,
            random: StdRng::seed_from_u64(seed),
        }
    }

    /// The next input.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.pick().to_vec();
        for _ in 0..self.random.random_range(1..=MUTATIONS_MAX) {
            self.mutate(&mut input);
        }
        if self.random.random_ratio(1, LARGE_ONE_OF) {
            let size = self.large_size();
            self.grow(&mut input, size);
        }
        input.truncate(self.input_max_bytes);
        input
    }

    /// Keeps an input, to mutate it further.
    pub fn keep(&mut self, input: Vec<u8>) {
        if input.len() > KEPT_MAX_BYTES {
            return;
        }
        if self.pool.len() < self.seeds + KEPT_MAX {
            self.pool.push(input);
        } else {
            let index = self.random.random_range(self.seeds..self.pool.len());
            self.pool[index] = input;
        }
    }

    fn pick(&mut self) -> &[u8] {
        let index = self.random.random_range(0..self.pool.len());
        &self.pool[index]
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let is_structured = input.len() <= STRUCTURED_MAX_BYTES
            && self.random.random_ratio(1, 2)
            && (json::mutate(input, &mut self.random) || protobuf::mutate(input, &mut self.random));
        if is_structured {
            return;
        }
        let other = self.pool.choose(&mut self.random).expect("there is a seed");
        bytes::mutate(input, other, &mut self.random);
    }

    /// A size between the smallest and the largest large one, on a logarithmic scale.
    fn large_size(&mut self) -> usize {
        let max = self.input_max_bytes;
        let doublings = (max / LARGE_MIN_BYTES.min(max)).ilog2();
        let size = LARGE_MIN_BYTES << self.random.random_range(0..=doublings);
        size.min(max)
    }

    fn grow(&mut self, input: &mut Vec<u8>, size: usize) {
        let is_structured = self.random.random_ratio(3, 4)
            && (json::grow(input, size, &mut self.random)
                || protobuf::grow(input, size, &mut self.random));
        if !is_structured {
            bytes::grow(input, size, &mut self.random);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutator(seed: u64) -> Mutator {
        let object = br#"/api/v1/pods
{"metadata":{"name":"a"},"list":[{"name":"x"},{"name":"y"}]}"#;
        Mutator::new(vec![object.to_vec(), b"a=b,c!=d".to_vec()], 3 << 20, seed)
    }

    #[test]
    fn equal_seeds_make_equal_inputs() {
        let mut a = mutator(1);
        let mut b = mutator(1);
        let mut c = mutator(2);
        let mut differences = 0;
        for _ in 0..200 {
            let input = a.next_input();
            assert_eq!(input, b.next_input());
            differences += usize::from(input != c.next_input());
        }
        assert!(differences > 150, "{differences} of 200 inputs differ");
    }

    #[test]
    fn inputs_reach_the_largest_size_and_never_exceed_it() {
        let mut mutator = mutator(3);
        let mut sizes: Vec<usize> = (0..2_000).map(|_| mutator.next_input().len()).collect();
        sizes.sort_unstable();
        assert!(sizes[1_999] <= 3 << 20, "largest: {}", sizes[1_999]);
        assert!(sizes[1_999] > 1 << 20, "largest: {}", sizes[1_999]);
        assert!(sizes[1_000] < 1 << 10, "median: {}", sizes[1_000]);
    }

    #[test]
    fn kept_inputs_are_bounded_and_never_replace_seeds() {
        let mut mutator = mutator(4);
        let seeds = mutator.pool[..2].to_vec();
        for number in 0..2 * KEPT_MAX {
            mutator.keep(vec![0; number % 100]);
        }
        mutator.keep(vec![0; KEPT_MAX_BYTES + 1]);
        assert_eq!(mutator.pool.len(), 2 + KEPT_MAX);
        assert_eq!(mutator.pool[..2], seeds);
        assert!(mutator.pool.iter().all(|kept| kept.len() <= KEPT_MAX_BYTES));
    }
}
