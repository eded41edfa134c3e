//! How close the embedded server is to a real one is what `docs/conformance.md` says, and both ways to it are alike.

use std::fs;

use bellerophon_conformance::{Awaited, Corpus, Options, Recorded, document, page, replay_embedded};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_server_answers_as_documented() {
    let corpus = Corpus::of_repository().expect("the recordings are sound");
    let awaited = Awaited::of_repository().expect("the list is sound");
    let both = replay_embedded(&corpus, &Options::nearby()).await.expect("the server starts");
    let titles = || corpus.scenarios.iter().map(Recorded::title);
    let verdict = awaited.judge(&both.https, titles());
    assert!(verdict.is_as_known(), "awaited.json is not the truth:\n{verdict}");
    assert_eq!(both.disagreements(), [""; 0], "in-process and HTTPS must answer alike");
    let written = fs::read_to_string(page()).expect("docs/conformance.md is there");
    assert_eq!(written, document(&both.https, &awaited), "run `cargo xtask conformance --write-docs`");
}
