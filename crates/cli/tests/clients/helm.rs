//! The charts, rendered by Helm and applied with kubectl.
//!
//! HELM is the program that renders; default: `helm`.

use std::{env, fs, path::Path, process::Command};

use crate::{
    client::{Client, ClientTest},
    running::RunningServer,
};

fn helm() -> String {
    env::var("HELM").unwrap_or_else(|_| "helm".to_owned())
}

/// The first kubectl.
fn kubectl() -> String {
    let named = env::var("KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
    named.split(':').next().unwrap_or_default().to_owned()
}

fn check_available() -> Result<(), String> {
    for (program, arguments) in [
        (helm(), &["version"][..]),
        (kubectl(), &["version", "--client"]),
    ] {
        let is_available = Command::new(&program)
            .args(arguments)
            .output()
            .is_ok_and(|output| output.status.success());
        if !is_available {
            return Err(format!("{program} cannot be run"));
        }
    }
    Ok(())
}

pub(crate) fn test() -> ClientTest {
    let require = Some("BELLEROPHON_REQUIRE_HELM");
    Client::new("Helm".to_owned(), require, check_available()).test(
        "helm::rendered_charts_are_accepted_by_the_server",
        rendered_charts_are_accepted_by_the_server,
    )
}

fn rendered_charts_are_accepted_by_the_server() {
    let charts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts");
    let render = |chart: &str, options: &[&str]| {
        let output = Command::new(helm())
            .args(["template", "demo"])
            .arg(charts.join(chart))
            .args(options)
            .output()
            .expect("helm starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let sets = [
        vec![],
        vec![
            "--set",
            "leaderElection.enabled=false,replicas=1,\
             metrics.service.enabled=false,aggregateRoles=false",
        ],
        vec![
            "--set",
            "operators.icecream.namespace=default,operators.simple.enabled=false,\
             operators.secsynch.allow={secsynch-without-consent}",
        ],
        vec![
            "--set",
            "operators.reboot.enabled=true,operators.reboot-agent.enabled=true,\
             operators.reboot-agent.environment.REBOOT_COMMAND=/bin/true",
        ],
        vec![
            "--set",
            "nodeSelector.disk=ssd,podAnnotations.a=b,podLabels.c=d,\
             priorityClassName=system-cluster-critical,image.pullSecrets[0].name=x",
        ],
    ];
    let server = RunningServer::start(&["--cluster", "none"]);
    let apply = |text: &str| {
        let file = server.directory.path().join("rendered.yaml");
        fs::write(&file, text).expect("a file");
        let output = Command::new(kubectl())
            .args(["--kubeconfig", server.kubeconfig(), "apply", "-f"])
            .arg(&file)
            .output()
            .expect("kubectl starts");
        assert!(
            output.status.success(),
            "{}\n{text}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    apply(&render("bellerophon-crds", &[]));
    for set in sets {
        apply(&render("bellerophon", &set));
    }
    let store = "clusterId=c-1,tlsSecret=store-tls,tokenSecret=store-tokens";
    apply(&render("store", &["--set", store]));
    let with_monitor = ["--set", "metrics.serviceMonitor.enabled=true"];
    let rendered = render("bellerophon", &with_monitor);
    assert!(rendered.contains("kind: ServiceMonitor"), "{rendered}");
}
