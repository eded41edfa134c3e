//! The targets: one function for each parser of untrusted input.
//!
//! Input: bytes. Output: an [`Outcome`]; a panic is a finding, whether the code under test panics
//! or a property that the target checks does not hold.
//!
//! A target of the API server is a function of `bellerophon_apiserver::fuzzing` where a property of
//! a private function is checked, and otherwise a request to an embedded server.

mod cel; // expressions
mod credentials; // tokens and headers
mod node_annotations; // the reboot operator
mod server; // the embedded server of a thread
mod writes; // request bodies, through the whole server

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bellerophon_apiserver::fuzzing;

use crate::limits::BODY_MAX_BYTES;

pub use server::reset;

/// The longest path, query or header: the longest URI of the `http` crate, in bytes.
const HEAD_MAX_BYTES: usize = (64 << 10) - 2;

/// What a target returned, as a number: inputs with a new one are mutated further.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Outcome(u64);

impl Outcome {
    /// Nothing is known of it.
    const NONE: Self = Self(0);

    /// The outcome that these parts describe. Digits and quoted texts, which come from the input,
    /// are not part of it.
    fn of(parts: &[&str]) -> Self {
        let mut hasher = DefaultHasher::new();
        for part in parts {
            for unquoted in part.split('"').step_by(2) {
                let is_stable = |c: &char| c.is_ascii_alphabetic() || *c == '.';
                let words: String = unquoted.chars().filter(is_stable).take(80).collect();
                words.hash(&mut hasher);
            }
        }
        Self(hasher.finish())
    }
}

/// A fuzz target.
pub struct Target {
    /// The name, as in `fuzz_targets/` and `seeds/`.
    pub name: &'static str,
    /// Runs it with one input.
    pub run: fn(&[u8]) -> Outcome,
    /// The length of the longest input that can reach the code.
    pub input_max_bytes: usize,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    head("path", |data| without_outcome(fuzzing::path, data)),
    body("json_body", |data| {
        without_outcome(fuzzing::json_body, data)
    }),
    body("yaml_body", |data| {
        without_outcome(fuzzing::yaml_body, data)
    }),
    body("protobuf_body", writes::protobuf_body),
    body("json_patch", |data| {
        without_outcome(fuzzing::json_patch, data)
    }),
    body("merge_patch", |data| {
        without_outcome(fuzzing::merge_patch, data)
    }),
    body("strategic_merge_patch", writes::strategic_merge_patch),
    body("apply", writes::apply),
    body("fields_v1", writes::fields_v1),
    head("label_selector", |data| {
        without_outcome(fuzzing::label_selector, data)
    }),
    head("field_selector", |data| {
        without_outcome(fuzzing::field_selector, data)
    }),
    head("continue_token", |data| {
        without_outcome(fuzzing::continue_token, data)
    }),
    body("schema", |data| without_outcome(fuzzing::schema, data)),
    body("rule", |data| without_outcome(fuzzing::rule, data)),
    body("cel", cel::cel),
    body("signing_request", writes::signing_request),
    head("token", credentials::token),
    head("headers", credentials::headers),
    body("node_annotations", node_annotations::node_annotations),
];

impl Target {
    /// The target with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }
}

/// A target whose input is a request body.
const fn body(name: &'static str, run: fn(&[u8]) -> Outcome) -> Target {
    Target {
        name,
        run,
        input_max_bytes: BODY_MAX_BYTES,
    }
}

/// A target whose input is in the head of a request.
const fn head(name: &'static str, run: fn(&[u8]) -> Outcome) -> Target {
    Target {
        name,
        run,
        input_max_bytes: HEAD_MAX_BYTES,
    }
}

fn without_outcome(run: fn(&[u8]), data: &[u8]) -> Outcome {
    run(data);
    Outcome::NONE
}

/// The first line of an input, and what is behind it.
fn first_line(data: &[u8]) -> (&[u8], &[u8]) {
    match data.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &[]),
    }
}
