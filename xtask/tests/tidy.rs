//! `cargo xtask tidy` as a test.

#[test]
fn repository_is_tidy() {
    let report = xtask::tidy::tidy(&xtask::root()).expect("the repository is readable");
    if let Err(problems) = report.into_result() {
        panic!("{problems}");
    }
}
