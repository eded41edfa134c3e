//! A real kubectl against the real binary: what people type, and what they see.
//! Without a kubectl on the PATH (or named by KUBECTL) each test says so and passes; with BELLEROPHON_REQUIRE_KUBECTL=1 it fails.

mod running; // a server that lives as long as a test

use std::{
    env, fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use running::{Lines, Running};
use serde_json::Value;

/// kubectl with a server of its own.
struct Kubectl {
    program: String,
    server: Running,
}

impl Kubectl {
    /// Starts a bare server for the kubectl at hand; `None` without one.
    fn with_server() -> Option<Self> {
        Self::with(&["--cluster", "none"])
    }

    fn with(options: &[&str]) -> Option<Self> {
        let program = env::var("KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
        let found = Command::new(&program).args(["version", "--client"]).output().is_ok_and(|output| output.status.success());
        let required = env::var("BELLEROPHON_REQUIRE_KUBECTL").is_ok_and(|value| value == "1");
        assert!(found || !required, "{program} does not run, and BELLEROPHON_REQUIRE_KUBECTL=1 asks for it");
        if !found {
            eprintln!("skipped: there is no kubectl; install it or name it in KUBECTL");
            return None;
        }
        Some(Self { program, server: Running::start(options) })
    }

    /// `kubectl LINE`, where words are parted by spaces; files are those of the samples.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples"))
            .env("HOME", self.server.directory.path())
            .args(["--kubeconfig", self.server.kubeconfig()])
            .args(line.split(' '));
        command
    }

    fn output(&self, line: &str) -> Output {
        self.command(line).output().expect("kubectl starts")
    }

    /// What it prints when it succeeds.
    fn run(&self, line: &str) -> String {
        let output = self.output(line);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "kubectl {line}\n{out}{err}");
        out.trim_end().to_owned()
    }

    /// What it complains when it fails.
    fn refused(&self, line: &str) -> String {
        let output = self.output(line);
        assert!(!output.status.success(), "kubectl {line} succeeds: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8_lossy(&output.stderr).trim_end().to_owned()
    }

    /// Runs it and holds what it prints against what it must print.
    fn check(&self, cases: &[(&str, &str)]) {
        for (line, wanted) in cases {
            assert_eq!(self.run(line), *wanted, "kubectl {line}");
        }
    }

    /// The table it prints, words parted by single spaces.
    fn table(&self, line: &str) -> Vec<String> {
        self.run(line).lines().map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    fn create_config_map(&self, name: &str) {
        let file = self.server.directory.path().join(name);
        fs::write(&file, format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}}}}"#)).expect("written");
        let line = format!("create --validate=false -f {}", file.display());
        assert_eq!(self.run(&line), format!("configmap/{name} created"));
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.run(line)).expect("JSON")
    }
}

/// Every part stands in the text, one after the other.
fn assert_in_order(text: &str, parts: &[&str]) {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest = words.as_str();
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { panic!("{part:?} is not in its place in\n{text}") };
        rest = after;
    }
}

#[test]
fn object_lives_from_create_to_delete() {
    let Some(kubectl) = Kubectl::with_server() else { return };
    kubectl.check(&[
        ("create --validate=false -f settings.yaml", "configmap/settings created"),
        ("get configmap settings -o name", "configmap/settings"),
        ("get configmap settings -o jsonpath={.data.a}", "b"),
        ("label configmap settings app=x", "configmap/settings labeled"),
        ("annotate configmap settings note=y", "configmap/settings annotated"),
        ("patch configmap settings --type=merge -p {\"data\":{\"a\":\"c\"}}", "configmap/settings patched"),
        ("patch configmap settings --type=json -p [{\"op\":\"add\",\"path\":\"/data/d\",\"value\":\"e\"}]", "configmap/settings patched"),
        ("patch configmap settings -p {\"data\":{\"f\":\"g\"}}", "configmap/settings patched"),
        ("get configmap settings -o jsonpath={.data}", r#"{"a":"c","d":"e","f":"g"}"#),
        ("get configmap settings -o jsonpath={.metadata.labels.app}{.metadata.annotations.note}", "xy"),
    ]);
    assert_in_order(&kubectl.run("get configmap settings -o yaml"), &["apiVersion: v1", "a: c", "kind: ConfigMap", "uid:"]);
    let object = kubectl.json("get configmap settings -o json");
    assert_eq!(object["metadata"]["name"], "settings");
    assert!(kubectl.refused("create --validate=false -f settings.yaml").contains(r#"configmaps "settings" already exists"#));
    assert!(kubectl.run("delete configmap settings").starts_with(r#"configmap "settings" deleted"#));
    assert_eq!(kubectl.refused("get configmap settings"), r#"Error from server (NotFound): configmaps "settings" not found"#);
}

#[test]
fn lists_are_tables_narrowed_by_selectors() {
    let Some(kubectl) = Kubectl::with_server() else { return };
    for name in ["red", "green", "blue"] {
        kubectl.create_config_map(name);
    }
    kubectl.run("label configmap red warm=yes");
    let cases = [
        ("get configmaps --no-headers -o name", "configmap/blue configmap/green configmap/red"),
        ("get configmaps -l warm=yes -o name", "configmap/red"),
        ("get configmaps -l warm!=yes -o name", "configmap/blue configmap/green"),
        ("get configmaps --field-selector metadata.name=blue -o name", "configmap/blue"),
        (
            "get configmaps --all-namespaces --field-selector metadata.namespace=default,metadata.name!=red -o name",
            "configmap/blue configmap/green",
        ),
    ];
    for (line, wanted) in cases {
        assert_eq!(kubectl.run(line).lines().collect::<Vec<_>>().join(" "), wanted, "kubectl {line}");
    }
    assert_eq!(kubectl.table("get cm -l warm -o wide")[0], "NAME DATA AGE");
    let namespaces = kubectl.table("get namespaces");
    assert_eq!(namespaces[0], "NAME STATUS AGE");
    assert!(namespaces[1].starts_with("default Active "), "{namespaces:?}");
}

#[test]
fn watch_prints_changes_as_they_happen() {
    let Some(kubectl) = Kubectl::with_server() else { return };
    kubectl.create_config_map("seen");
    let mut watch = kubectl.command("get configmaps -w --no-headers").stdout(Stdio::piped()).spawn().expect("kubectl starts");
    let lines = Lines::of(watch.stdout.take().expect("stdout is piped"));
    lines.next_where(|line| line.starts_with("seen") && line.contains(" 0 "));
    kubectl.run("patch configmap seen --type=merge -p {\"data\":{\"a\":\"b\"}}");
    lines.next_where(|line| line.starts_with("seen") && line.contains(" 1 "));
    kubectl.create_config_map("new");
    lines.next_where(|line| line.starts_with("new"));
    watch.kill().expect("it runs");
    watch.wait().expect("it ends");
}

#[test]
fn workload_is_described_and_scaled() {
    let Some(kubectl) = Kubectl::with_server() else { return };
    kubectl.check(&[
        ("apply --validate=false -f deployment.yaml", "deployment.apps/stable created"),
        ("apply --validate=false -f deployment.yaml", "deployment.apps/stable unchanged"),
        ("scale deployment stable --replicas=3", "deployment.apps/stable scaled"),
        ("get deployment stable -o jsonpath={.spec.replicas}/{.metadata.generation}", "3/2"),
        ("set image deployment/stable horse=registry.example/pegasus:2", "deployment.apps/stable image updated"),
    ]);
    let table = kubectl.table("get deployments -o wide");
    assert_eq!(table[0], "NAME READY UP-TO-DATE AVAILABLE AGE CONTAINERS IMAGES SELECTOR");
    assert!(table[1].starts_with("stable 0/3 0 0 ") && table[1].ends_with("horse registry.example/pegasus:2 app=stable"), "{table:?}");
    let described = kubectl.run("describe deployment stable");
    assert_in_order(
        &described,
        &[
            "Name: stable",
            "Namespace: default",
            "Labels: app=stable",
            "Replicas: 3 desired",
            "StrategyType: RollingUpdate",
            "Containers: horse:",
        ],
    );
    assert!(kubectl.run("delete -f deployment.yaml").starts_with(r#"deployment.apps "stable" deleted"#));
}

#[test]
fn objects_are_made_from_the_command_line() {
    // From 1.32 on kubectl sends these bodies as protobuf.
    let Some(kubectl) = Kubectl::with_server() else { return };
    kubectl.check(&[
        ("create configmap settings --from-literal=a=b", "configmap/settings created"),
        ("get configmap settings -o jsonpath={.data}", r#"{"a":"b"}"#),
        ("create secret generic key --from-literal=a=b", "secret/key created"),
        ("get secret key -o jsonpath={.data.a}{.type}", "Yg==Opaque"),
        ("create deployment web --image=registry.example/pegasus:1", "deployment.apps/web created"),
        ("get deployment web -o jsonpath={.spec.template.spec.containers[0].image}", "registry.example/pegasus:1"),
        ("create service clusterip web --tcp=80:8080", "service/web created"),
        ("get service web -o jsonpath={.spec.ports[0].targetPort}", "8080"),
        ("create serviceaccount robot", "serviceaccount/robot created"),
        ("auth can-i create pods", "yes"),
    ]);
    let again = kubectl.refused("create configmap settings");
    assert!(again.ends_with(r#"configmaps "settings" already exists"#), "{again}");
}

#[test]
fn server_says_what_it_serves_and_who_asks() {
    let Some(kubectl) = Kubectl::with_server() else { return };
    let resources = kubectl.table("api-resources");
    let wanted = [
        "configmaps cm v1 true ConfigMap",
        "nodes no v1 false Node",
        "deployments deploy apps/v1 true Deployment",
        "customresourcedefinitions crd,crds apiextensions.k8s.io/v1 false CustomResourceDefinition",
    ];
    for row in wanted {
        assert!(resources.iter().any(|found| found == row), "{row} is not in {resources:#?}");
    }
    let versions = kubectl.run("api-versions");
    assert!(["v1", "apps/v1", "batch/v1"].iter().all(|wanted| versions.lines().any(|line| line == *wanted)), "{versions}");
    assert_eq!(kubectl.json("version -o json")["serverVersion"]["minor"], "36");
    kubectl.check(&[("get --raw /readyz", "ok")]);
    let refused = kubectl.refused("get pods --as=nobody");
    assert!(
        refused.contains(r#"pods is forbidden: User "nobody" cannot list resource "pods" in API group "" in the namespace "default""#),
        "{refused}"
    );
}

#[test]
fn custom_resource_behaves_like_any_other() {
    let Some(kubectl) = Kubectl::with_server() else { return };
    let definition = "customresourcedefinition.apiextensions.k8s.io/sheroes.stable.simple-bellerophon.io";
    assert_eq!(kubectl.run("apply --validate=false -f sheroes-definition.yaml"), format!("{definition} created"));
    kubectl.run(&format!("wait --for=condition=Established {definition} --timeout=60s"));
    let name = "bellerophonsimple.stable.simple-bellerophon.io/philonoe";
    assert_eq!(kubectl.run("apply --validate=false -f shero.yaml"), format!("{name} created"));
    assert_eq!(kubectl.run("apply --validate=false -f shero.yaml"), format!("{name} unchanged"));

    let wide = kubectl.table("get sheroes -o wide");
    assert_eq!(wide[0], "NAME HORSE REPLICAS IMAGE AGE");
    assert!(wide[1].starts_with("philonoe pegasus 2 registry.example/pegasus:1 "), "{wide:?}");
    assert_eq!(kubectl.table("get bsh -l app=stable")[0], "NAME HORSE REPLICAS AGE");

    assert_eq!(kubectl.run("scale bsh philonoe --replicas=5"), format!("{name} scaled"));
    assert_eq!(kubectl.run("patch shero philonoe --type=merge -p {\"spec\":{\"winged_horse_name\":\"arion\"}}"), format!("{name} patched"));
    assert_in_order(
        &kubectl.run("describe sheroes philonoe"),
        &[
            "Name: philonoe",
            "Namespace: default",
            "Labels: app=stable",
            "API Version: stable.simple-bellerophon.io/v444beta989",
            "Kind: BellerophonSimple",
            "Metadata:",
            "Creation Timestamp:",
            "Generation: 3",
            "Resource Version:",
            "UID:",
            "Spec:",
            "Image: registry.example/pegasus:1",
            "Replicas: 5",
            "winged_horse_name: arion",
        ],
    );
    let refused = kubectl.refused("patch shero philonoe --type=merge -p {\"spec\":{\"replicas\":-1}}");
    assert!(refused.contains("spec.replicas: Invalid value: -1: spec.replicas in body should be greater than or equal to 0"), "{refused}");
    let object = kubectl.json("get --raw /apis/stable.simple-bellerophon.io/v444beta989/namespaces/default/sheroes/philonoe");
    let owners = object["metadata"]["managedFields"].as_array().expect("fields have owners");
    assert!(owners.iter().any(|owner| owner["manager"] == "kubectl-client-side-apply"), "{owners:?}");

    assert!(kubectl.run("delete -f sheroes-definition.yaml").ends_with("deleted"));
    let refused = kubectl.refused("get sheroes");
    assert!(refused.contains("the server could not find the requested resource"), "{refused}");
    assert!(!kubectl.run("api-resources -o name").contains("sheroes"), "the kind is gone with its definition");
}
