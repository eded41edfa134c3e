//! Every target with a fixed seed: the same inputs in every run.
//!
//! These runs test the targets and find regressions. `cargo xtask fuzz` finds what is new.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use bellerophon_fuzz::{Limits, Mutator, TARGETS, Target, execute, record_panics, seeds};

/// The seed of all runs.
const SEED: u64 = 7;

/// The longest input: long runs are for optimized builds.
const INPUT_MAX_BYTES: usize = 16 << 10;

/// A development build is slower than an optimized one, and tests run beside others. Memory is
/// measured for a process only, so not here.
const LIMITS: Limits = Limits {
    time_base: Duration::from_secs(60),
    ..Limits::OPTIMIZED
};

/// Runs the seeds of a target and mutations of them.
fn check(name: &str, inputs: usize) {
    record_panics();
    let target = Target::find(name).expect("a target");
    let seeds = seeds(name).expect("seeds");
    let max = target.input_max_bytes.min(INPUT_MAX_BYTES);
    let mut mutator = Mutator::new(seeds.clone(), max, SEED);
    let mut outcomes = BTreeSet::new();
    let mutated = (0..inputs).map(|_| None);
    for seed in seeds.into_iter().map(Some).chain(mutated) {
        let input = seed.unwrap_or_else(|| mutator.next_input());
        match execute(target, &input, &LIMITS, None).result {
            Ok(outcome) => {
                if outcomes.insert(outcome) {
                    mutator.keep(input);
                }
            }
            Err(failure) => {
                let text = String::from_utf8_lossy(&input);
                panic!("{name} {failure}\n{text}");
            }
        }
    }
}

#[test]
fn paths_are_parsed_within_limits() {
    check("path", 5_000);
}

#[test]
fn json_bodies_are_parsed_within_limits() {
    check("json_body", 2_500);
}

#[test]
fn yaml_bodies_are_parsed_within_limits() {
    check("yaml_body", 2_500);
}

#[test]
fn protobuf_bodies_are_parsed_within_limits() {
    check("protobuf_body", 250);
}

#[test]
fn json_patches_are_applied_within_limits() {
    check("json_patch", 2_500);
}

#[test]
fn merge_patches_are_applied_within_limits() {
    check("merge_patch", 2_500);
}

#[test]
fn strategic_merge_patches_are_applied_within_limits() {
    check("strategic_merge_patch", 250);
}

#[test]
fn configurations_are_applied_within_limits() {
    check("apply", 250);
}

#[test]
fn field_sets_are_parsed_within_limits() {
    check("fields_v1", 250);
}

#[test]
fn label_selectors_are_parsed_within_limits() {
    check("label_selector", 5_000);
}

#[test]
fn field_selectors_are_parsed_within_limits() {
    check("field_selector", 5_000);
}

#[test]
fn continue_tokens_are_parsed_within_limits() {
    check("continue_token", 5_000);
}

#[test]
fn schemas_are_validated_within_limits() {
    check("schema", 1_250);
}

#[test]
fn rules_are_compiled_and_evaluated_within_limits() {
    check("rule", 250);
}

#[test]
fn expressions_are_compiled_and_evaluated_within_limits() {
    check("cel", 1_250);
}

#[test]
fn signing_requests_are_parsed_within_limits() {
    check("signing_request", 250);
}

#[test]
fn tokens_authenticate_their_account_or_no_user() {
    check("token", 250);
}

#[test]
fn headers_of_unprivileged_users_never_impersonate() {
    check("headers", 250);
}

#[test]
fn node_annotations_never_keep_a_slot_from_its_release() {
    check("node_annotations", 250);
}

#[test]
fn every_target_has_seeds_a_test_and_a_libfuzzer_program() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = |directory: &Path| -> BTreeSet<String> {
        let entries = fs::read_dir(directory).expect("a directory");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let stem = |path: std::path::PathBuf| path.file_stem().map(|s| s.display().to_string());
        paths.filter_map(stem).collect()
    };
    let targets: BTreeSet<String> = TARGETS.iter().map(|t| t.name.to_owned()).collect();
    assert_eq!(names(&directory.join("seeds")), targets);
    assert_eq!(names(&directory.join("fuzz_targets")), targets);
    let this = fs::read_to_string(directory.join("tests/bounded.rs")).expect("this file");
    for name in &targets {
        let call = format!("check(\"{name}\", ");
        assert!(this.contains(&call), "no test of {name}");
        let program = directory.join("fuzz_targets").join(format!("{name}.rs"));
        let text = fs::read_to_string(program).expect("a program");
        let call = format!("run(\"{name}\", data)");
        assert!(text.contains(&call), "{name} runs another target");
    }
}
