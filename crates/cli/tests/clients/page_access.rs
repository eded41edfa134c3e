//! Who can use the live page: by keyboard, with assistive technology, without a network; and the
//! types of its code.
//!
//! AXE is the file `axe.min.js` of axe-core, TSC the compiler of TypeScript. Both are installed by
//! `.ci/run` and are no part of the repository.

use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::{Value, json};

use crate::{
    client::{Client, ClientTest},
    page::{self, check_available, dashboard, deploy, open},
    page_pictures::provoke_a_conflict,
    running::RunningServer,
    webdriver::{Browser, DESKTOP},
};

/// The test that is repeated without a network.
const REPEATED: &str = "page::scale_leads_to_ready_pods_in_one_chain";

/// The tests of this file.
pub(crate) fn tests() -> Vec<ClientTest> {
    let test = |name: &str, require, is_available, run: fn()| {
        let client = Client::new("chromium".to_owned(), Some(require), is_available);
        client.test(&format!("page::{name}"), run)
    };
    vec![
        test(
            "keyboard_reaches_the_why_of_a_pod",
            "BELLEROPHON_REQUIRE_CHROMIUM",
            check_available(),
            keyboard_reaches_the_why_of_a_pod,
        ),
        test(
            "page_needs_no_network",
            "BELLEROPHON_REQUIRE_TIER_A",
            check_available().and_then(|()| check_namespaces()),
            page_needs_no_network,
        ),
        test(
            "axe_finds_nothing_serious_in_both_themes",
            "BELLEROPHON_REQUIRE_AXE",
            check_available().and_then(|()| axe().map(drop)),
            axe_finds_nothing_serious_in_both_themes,
        ),
        test(
            "types_of_the_page_are_consistent",
            "BELLEROPHON_REQUIRE_TSC",
            check_types(),
            types_of_the_page_are_consistent,
        ),
    ]
}

/// The views by the key that opens them.
const VIEWS: [&str; 6] = ["1", "2", "3", "4", "5", "6"];

fn show(browser: &Browser, view: &str) {
    browser.press(&[view]);
    browser.wait_for(&format!(
        "document.querySelector('.rail a:nth-of-type({view})').hasAttribute('aria-current')"
    ));
}

fn keyboard_reaches_the_why_of_a_pod() {
    let server = RunningServer::start(&["--operators", "none"]);
    deploy(&server);
    let browser = Browser::start(DESKTOP);
    open(&browser, &dashboard(&server));
    browser.press(&["\u{e009}", "k"]);
    browser.wait_for("document.activeElement?.id === 'palette-input'");
    browser.type_text("pod default/stable");
    browser.wait_for("document.querySelectorAll('[role=option]').length > 1");
    browser.press(&["\u{e007}"]);
    browser.wait_for("document.getElementById('app').dataset.view === 'why'");
    browser.wait_for("document.querySelectorAll('.rec').length > 1");
    let crumb = browser.eval("document.querySelector('.crumb').textContent");
    assert_eq!(crumb, "defaultPod");
    // Every control has a name, and no id is there twice.
    for view in VIEWS {
        show(&browser, view);
        let problems = browser.eval(
            "(() => { const problems = []; const ids = new Set(); \
             for (const e of document.querySelectorAll('[id]')) { if (ids.has(e.id)) \
             problems.push('twice: ' + e.id); ids.add(e.id); } \
             for (const e of document.querySelectorAll('button, a, input, select, [role=slider]')) { \
             const name = e.getAttribute('aria-label') || e.textContent.trim() || \
             e.closest('label')?.textContent.trim() || e.title; if (!name) problems.push(e.outerHTML); } \
             if (document.querySelectorAll('h1').length !== 1) problems.push('h1'); return problems; })()",
        );
        assert_eq!(problems, json!([]), "view {view}");
    }
}

/// Whether a process can have a network namespace, with a loopback interface only.
fn check_namespaces() -> Result<(), String> {
    let output = without_network("true");
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "no network namespace: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

fn without_network(command: &str) -> Output {
    Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-c"])
        .arg(format!(
            "PATH=$PATH:/usr/sbin:/sbin; ip link set lo up && exec {command}"
        ))
        .output()
        .unwrap_or_else(|error| panic!("unshare: {error}"))
}

fn page_needs_no_network() {
    let program = env::current_exe().expect("the path of this program");
    let output = without_network(&format!("{} --exact {REPEATED}", program.display()));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The text of axe-core.
fn axe() -> Result<String, String> {
    let file = env::var("AXE").map_err(|_| "AXE is not set to axe.min.js".to_owned())?;
    fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))
}

/// Violations that are serious or critical: rule, number of elements, and the first of them.
const VIOLATIONS: &str = "axe.run(document, { resultTypes: ['violations'] }).then((result) => \
    result.violations.filter((one) => ['serious', 'critical'].includes(one.impact)) \
    .map((one) => `${one.id}, ${one.nodes.length}: ${one.nodes[0].html} ${one.nodes[0].failureSummary}`))";

fn axe_finds_nothing_serious_in_both_themes() {
    let axe = axe().expect("axe-core");
    let server = RunningServer::start(&["--page-may-act"]);
    page::run(&server, "apply -f icecream.yaml");
    deploy(&server);
    page::run(&server, "scale deployment stable --replicas=3");
    page::run(&server, "rollout status deployment stable --timeout=60s");
    provoke_a_conflict(&server);
    let mut found = Vec::new();
    for theme in ["light", "dark"] {
        let browser = Browser::start(DESKTOP);
        open(&browser, &dashboard(&server));
        browser.execute(&axe);
        browser.eval(&format!(
            "document.documentElement.dataset.theme = '{theme}'"
        ));
        browser.wait_for("bellerophon.app.model.writeList.some((write) => write.sub === 'scale')");
        browser.eval(
            "bellerophon.app.select([...bellerophon.app.model.writeList].reverse() \
             .find((write) => write.sub === 'scale').id)",
        );
        let check = |place: &str, found: &mut Vec<String>| {
            browser.wait_for("bellerophon.app.timer === 0");
            // Colors between those of two themes or states have no contrast.
            browser.wait_for("document.getAnimations().length === 0");
            let violations = browser.eval_async(VIOLATIONS);
            let violations = violations.as_array().expect("a list").iter();
            found.extend(violations.map(|one| format!("{theme}, {place}: {one}")));
        };
        for view in VIEWS {
            show(&browser, view);
            if view == "3" {
                browser.eval("bellerophon.app.selectQueue('deployment-controller')");
            }
            if view == "4" {
                browser.eval("bellerophon.app.selectObject('Deployment.apps|default|stable')");
            }
            check(&format!("view {view}"), &mut found);
        }
        show(&browser, "1");
        browser.press(&["b"]);
        browser.wait_for("document.querySelector('#main table') !== null");
        check("table", &mut found);
        for overlay in ["toggleAct()", "openPalette()"] {
            browser.eval(&format!("bellerophon.app.{overlay}"));
            check(overlay, &mut found);
            browser.eval("bellerophon.app.closeOverlay()");
        }
    }
    assert_eq!(found, [""; 0], "{}", found.join("\n"));
}

fn tsc() -> String {
    env::var("TSC").unwrap_or_else(|_| "tsc".to_owned())
}

fn check_types() -> Result<(), String> {
    let is_available = Command::new(tsc())
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    match is_available {
        true => Ok(()),
        false => Err(format!("{} cannot be run", tsc())),
    }
}

fn types_of_the_page_are_consistent() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../page/src/assets");
    let output = Command::new(tsc())
        .args(["--allowJs", "--checkJs", "--noEmit", "--strict"])
        .args(["--noImplicitAny", "false", "--target", "es2023"])
        .args(["--module", "es2022", "--lib", "es2023,dom,dom.iterable"])
        .args(["--types", ""])
        .arg(assets.join("main.js"))
        .arg(assets.join("theme.js"))
        .output()
        .expect("tsc starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert_eq!(Value::from(text.trim()), Value::from(""));
}
