//! Foreign clients against the binary: kubectl, client-go, the Python client, Helm and chromium.
//!
//! A test whose client is missing is ignored, with the reason. BELLEROPHON_REQUIRE_KUBECTL=1,
//! BELLEROPHON_REQUIRE_GO=1, BELLEROPHON_REQUIRE_PYTHON=1, BELLEROPHON_REQUIRE_HELM=1 and
//! BELLEROPHON_REQUIRE_CHROMIUM=1 make it fail instead.
//!
//! KUBECTL is a colon-separated list of programs; default: `kubectl`. Every test of kubectl runs
//! with each of them and its own server.

mod access; // RBAC, impersonation, tokens and kubeconfigs
mod applying; // apply, diff and validation
mod client; // a client program, and its absence
mod custom; // custom resources
mod deleting; // delete and cascades
mod explaining; // api-resources and explain
mod go; // client-go and controller-runtime
mod helm; // rendered charts
mod kubectl; // a kubectl with a server
mod nodes; // nodes, drain and pods on nodes
mod objects; // create, get, patch, replace, edit, watch
mod operators; // manifests, samples and reboots
mod page; // the live page in a browser
mod page_access; // the live page by keyboard, with assistive technology, without a network
mod page_pictures; // pictures of the live page
mod plugin; // the plugin of kubectl, and kustomize
mod python; // the Python client
#[path = "../binary/running.rs"]
mod running; // a `bellerophon up` process for one test
mod streams; // logs, exec, attach, cp and port-forward
mod webdriver; // a browser
mod workloads; // scale, rollout and wait

use std::process::ExitCode;

use libtest_mimic::Arguments;

use crate::kubectl::KubectlTest;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut tests = kubectl::with_each_program(kubectl_tests);
    tests.extend(go::tests());
    tests.push(python::test());
    tests.push(helm::test());
    tests.extend(page::tests());
    tests.extend(page_access::tests());
    tests.extend(page_pictures::tests());
    let conclusion = libtest_mimic::run(&arguments, tests);
    let run = conclusion.num_passed + conclusion.num_failed;
    let ignored = conclusion.num_ignored;
    eprintln!("foreign clients: {run} tests run, {ignored} ignored\n");
    conclusion.exit_code()
}

fn kubectl_tests() -> Vec<KubectlTest> {
    [
        access::tests(),
        applying::tests(),
        custom::tests(),
        deleting::tests(),
        explaining::tests(),
        nodes::tests(),
        objects::tests(),
        operators::tests(),
        plugin::tests(),
        streams::tests(),
        workloads::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
