//! Pictures of the live page, with real data, in both themes.
//!
//! BELLEROPHON_WRITE_SCREENSHOTS=1 writes them to docs/images. Otherwise the tests check that every
//! view fits into the window and shows its data.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use serde_json::json;

use crate::{
    client::{Client, ClientTest},
    page::{SCALE, check_available, dashboard, open, run},
    running::RunningServer,
    webdriver::{Browser, DESKTOP, Screen},
};

/// The tests of this file.
pub(crate) fn tests() -> Vec<ClientTest> {
    let tests: [(&str, fn()); 2] = [
        (
            "views_are_pictured_in_both_themes",
            views_are_pictured_in_both_themes,
        ),
        (
            "members_of_a_store_are_pictured",
            members_of_a_store_are_pictured,
        ),
    ];
    let test = |(name, run): (&str, fn())| {
        let require = Some("BELLEROPHON_REQUIRE_CHROMIUM");
        let client = Client::new("chromium".to_owned(), require, check_available());
        client.test(&format!("page::{name}"), run)
    };
    tests.into_iter().map(test).collect()
}

/// A telephone.
const NARROW: Screen = Screen {
    width: 390,
    height: 844,
};

/// The largest picture in the repository.
const PICTURE_MAX_BYTES: usize = 200_000;

const THEMES: [&str; 2] = ["light", "dark"];

/// Objects for every view.
fn apply_samples(server: &RunningServer) {
    for sample in [
        "service",
        "deployment",
        "icecream",
        "secsynch",
        "shero",
        "reboot",
    ] {
        run(server, &format!("apply -f {sample}.yaml"));
    }
    for namespace in ["team-b", "team-c"] {
        run(server, &format!("create namespace {namespace}"));
    }
    run(
        server,
        "annotate namespace team-b secsynch.tutorial.study.dev/accept-from=default",
    );
    run(server, "rollout status deployment stable --timeout=60s");
    run(server, "scale deployment stable --replicas=4");
    run(server, "rollout status deployment stable --timeout=60s");
}

/// Two clients that write the same field in turn.
pub(crate) fn provoke_a_conflict(server: &RunningServer) {
    run(
        server,
        "create deployment web --image=registry.example/web:1",
    );
    for i in 0..10 {
        let manager = ["gitops", "autoscaler"][i % 2];
        let replicas = 2 + i % 2;
        let patch = format!("{{\"spec\":{{\"replicas\":{replicas}}}}}");
        run(
            server,
            &format!("patch deployment web --field-manager={manager} --type=merge -p {patch}"),
        );
    }
}

/// Opens the page with a theme, and selects the write of `kubectl scale`.
fn open_with_theme(server: &RunningServer, theme: &str) -> Browser {
    let browser = Browser::start(DESKTOP);
    open(&browser, &dashboard(server));
    browser.eval(&format!(
        "document.documentElement.dataset.theme = '{theme}'"
    ));
    browser
}

/// Shows a view, waits for its content, and checks that it fits.
fn picture(browser: &Browser, view: &str, content: &str, name: &str) {
    browser.eval(&format!("bellerophon.app.show('{view}')"));
    browser.wait_for(&format!(
        "document.getElementById('app').dataset.view === '{view}'"
    ));
    browser.wait_for(&format!("bellerophon.app.timer === 0 && {content}"));
    let overflow = browser.eval("document.documentElement.scrollWidth > innerWidth");
    assert_eq!(overflow, json!(false), "{view} is wider than the window");
    save(name, &browser.screenshot());
}

fn views_are_pictured_in_both_themes() {
    let server = RunningServer::start(&["--page-may-act", "--nodes", "12"]);
    apply_samples(&server);
    provoke_a_conflict(&server);
    let browsers = THEMES.map(|theme| (theme, open_with_theme(&server, theme)));
    for (theme, browser) in &browsers {
        browser.wait_for(&format!("{SCALE} !== undefined"));
        browser.eval(&format!("bellerophon.app.showInTimeline({SCALE})"));
        for (view, content) in [
            (
                "timeline",
                "document.querySelector('.chip.is-sel') !== null",
            ),
            ("why", "document.querySelector('.rec') !== null"),
            (
                "queues",
                "document.querySelector('.grid.q tbody tr') !== null",
            ),
            (
                "objects",
                "document.querySelector('[data-object]') !== null",
            ),
            (
                "findings",
                "document.getElementById('main').textContent.includes('spec.replicas')",
            ),
        ] {
            if view == "queues" {
                browser.eval("bellerophon.app.selectQueue('deployment-controller')");
            }
            if view == "objects" {
                browser.eval("bellerophon.app.selectObject('Deployment.apps|default|stable')");
            }
            picture(browser, view, content, &format!("page-{view}-{theme}"));
        }
        browser.eval("bellerophon.app.toggleAct()");
        let menu = "document.querySelectorAll('[role=menuitem]').length > 5";
        picture(browser, "timeline", menu, &format!("page-act-{theme}"));
        browser.eval("bellerophon.app.closeOverlay()");
        browser.resize(NARROW);
        browser.wait_for("document.querySelector('.spine') !== null");
        browser.wait_for("document.documentElement.scrollWidth <= innerWidth");
        save(&format!("page-narrow-{theme}"), &browser.screenshot());
        browser.resize(DESKTOP);
    }
    // Reboots disturb the other views, so they are last.
    let policy =
        r#"{"spec":{"windows":[],"maxUnavailable":3,"minimumGapSeconds":0,"jitterSeconds":0}}"#;
    run(
        &server,
        &format!("patch rebootpolicy workers --type=merge -p {policy}"),
    );
    run(
        &server,
        "annotate node --all reboot.bellerophon.io/reboot-needed=kernel",
    );
    for (theme, browser) in &browsers {
        let content = "document.querySelectorAll('.node.done').length > 0 \
            && document.querySelector('.matrix .good') !== null";
        picture(
            browser,
            "operators",
            content,
            &format!("page-operators-{theme}"),
        );
        assert_eq!(browser.errors(), [""; 0], "{theme}");
    }
}

fn members_of_a_store_are_pictured() {
    let server = RunningServer::start(&["--runtime", "process"]);
    run(&server, "apply -f bellerophon.yaml");
    run(
        &server,
        "wait --for=jsonpath={.status.replicas}=3 heroes.stable.bellerophon.io/icarus --timeout=120s",
    );
    for theme in THEMES {
        let browser = open_with_theme(&server, theme);
        let content = "[...document.querySelectorAll('.members tbody tr')] \
            .filter((row) => /Leader|Follower/.test(row.textContent)).length === 3 \
            && document.querySelector('.members').textContent.includes('Leader')";
        picture(
            &browser,
            "operators",
            content,
            &format!("page-store-{theme}"),
        );
        assert_eq!(browser.errors(), [""; 0], "{theme}");
    }
}

/// Writes a picture of the documentation, if that is requested.
fn save(name: &str, picture: &[u8]) {
    if env::var("BELLEROPHON_WRITE_SCREENSHOTS").is_ok_and(|value| value == "1") {
        let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
        fs::create_dir_all(&folder).expect("a folder");
        assert!(
            picture.len() < PICTURE_MAX_BYTES,
            "{name} has {} bytes",
            picture.len()
        );
        fs::write(folder.join(format!("{name}.webp")), picture).expect("a picture");
    }
}
