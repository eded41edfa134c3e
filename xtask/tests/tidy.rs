//! The repository keeps its own rules.

#[test]
fn repository_is_tidy() {
    let report = xtask::tidy::tidy(&xtask::root()).expect("the repository can be read");
    if let Err(problems) = report.into_result() {
        panic!("{problems}");
    }
}
