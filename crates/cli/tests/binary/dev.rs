//! `bellerophon dev` with a compiler and an operator that are shell scripts: when it builds, what it
//! runs, what it applies, and what is left.

use std::{
    fs,
    io::Write as _,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::{running::Lines, waiting::await_condition, webhook_server};

/// A compiler that fails or does not end depending on the source, whose program names the source,
/// and that lists its builds.
const CARGO: &str = r#"#!/bin/sh
read -r source < src/main.rs
mkdir -p target
echo "$source" >> target/builds
case "$source" in
broken*) echo "error: $source" >&2; exit 101 ;;
slow*) sleep 0.5 ;;
endless*) sleep 600 & echo "$$ $!" > target/processes; wait ;;
esac
sed "s/SOURCE/$source/" operator.sh > "target/operator-$source"
chmod +x "target/operator-$source"
printf '{"reason":"compiler-artifact","executable":"%s/target/operator-%s"}\n' "$PWD" "$source"
"#;

/// An operator that prints its manifests, or its process id and runs until SIGTERM.
const OPERATOR: &str = r#"#!/bin/sh
if [ "$1" = manifests ]; then cat manifests.json; exit; fi
trap 'echo "operator SOURCE stops"; exit 0' TERM
echo "operator SOURCE runs as $$ with $(basename "$KUBECONFIG")"
while :; do sleep 0.1; done
"#;

/// A Go compiler whose program names the source.
const GO: &str = r#"#!/bin/sh
read -r source < src/main.rs
rm -f "$3"
sed "s/SOURCE/$source/" operator.sh > "$3"
chmod +x "$3"
"#;

/// A Go operator that prints where it has to serve its webhooks, and runs until SIGTERM. Tests serve
/// them.
const GO_OPERATOR: &str = r#"#!/bin/sh
trap 'exit 0' TERM
echo "operator SOURCE serves at $WEBHOOK_HOST:$WEBHOOK_PORT with $WEBHOOK_CERT_DIR"
while :; do sleep 0.1; done
"#;

/// The configuration of the webhook that tests serve.
const GO_WEBHOOK: &str = "
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: label}
webhooks:
- name: label.example.com
  clientConfig:
    service: {name: label, namespace: label-system, path: /mutate--v1-configmap}
  rules:
  - {operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [configmaps]}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
  sideEffects: None
  admissionReviewVersions: [v1]
";

/// The Icecream operator of this binary, which serves a validating webhook.
const ICECREAM_OPERATOR: &str = r#"#!/bin/sh
if [ "$1" = manifests ]; then cat manifests.json; exit; fi
for argument; do
  case "$argument" in --webhooks=*) webhooks=$argument ;; esac
done
echo "operator SOURCE runs as $$ with $(basename "$KUBECONFIG")"
exec "$BELLEROPHON" run icecream $webhooks
"#;

/// A Deployment that no Icecream owns, and an Icecream.
const ICECREAM_SAMPLES: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: taken}
spec:
  selector: {matchLabels: {app: taken}}
  template:
    metadata: {labels: {app: taken}}
    spec: {containers: [{name: main, image: example}]}
---
apiVersion: controller.nicoleh.io/v1alpha1
kind: Icecream
metadata: {name: sample}
spec: {deploymentName: free, replicas: 1}
";

fn crd(spec: Value) -> Value {
    let spec_schema = json!({"type": "object", "properties": {"spec": spec}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "heroes.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"kind": "Hero", "plural": "heroes"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                          "schema": {"openAPIV3Schema": spec_schema}}],
        },
    })
}

fn manifests(crd: Value) -> String {
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "hero-system"}});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
                         "metadata": {"name": "hero", "namespace": "hero-system"}});
    let workload =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "hero"}});
    let items = [crd, namespace, account, workload];
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn executable(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let mut file = fs::File::create(path).expect("created");
    file.write_all(text.as_bytes()).expect("written");
    file.set_permissions(fs::Permissions::from_mode(0o755))
        .expect("allowed");
}

/// A process that does not outlive its test.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // The process may have exited already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A project and the `bellerophon dev` that runs in it.
struct Session {
    project: TempDir,
    process: KillOnDrop,
    lines: Lines,
}

impl Session {
    fn start(source: &str) -> Self {
        Self::start_in(Self::project(source))
    }

    /// A project with an operator of heroes.
    fn project(source: &str) -> TempDir {
        let project = tempfile::tempdir().expect("a directory");
        let path = |name: &str| project.path().join(name);
        fs::create_dir(path("bin")).expect("created");
        fs::create_dir(path("src")).expect("created");
        executable(&path("bin/cargo"), CARGO);
        fs::write(path("operator.sh"), OPERATOR).expect("written");
        fs::write(path("Cargo.toml"), "").expect("written");
        fs::write(path("src/main.rs"), format!("{source}\n")).expect("written");
        let strength = json!({"type": "object", "properties": {"strength": {"type": "integer"}}});
        fs::write(path("manifests.json"), manifests(crd(strength))).expect("written");
        let sample = "apiVersion: example.com/v1\nkind: Hero\nmetadata: {name: sample}\nspec: {strength: 1}\n";
        fs::write(path("sample.yaml"), sample).expect("written");
        project
    }

    /// A project with an operator in Go and a ConfigMap `good`.
    fn go_project() -> TempDir {
        let project = tempfile::tempdir().expect("a directory");
        let path = |name: &str| project.path().join(name);
        fs::create_dir(path("bin")).expect("created");
        fs::create_dir(path("src")).expect("created");
        executable(&path("bin/go"), GO);
        fs::write(path("operator.sh"), GO_OPERATOR).expect("written");
        fs::write(path("go.mod"), "").expect("written");
        fs::write(path("go.sum"), "").expect("written");
        fs::write(path("src/main.rs"), "one\n").expect("written");
        fs::write(path("sample.yaml"), config_map("good")).expect("written");
        project
    }

    fn start_in(project: TempDir) -> Self {
        let search = format!(
            "{}:{}",
            project.path().join("bin").display(),
            std::env::var("PATH").expect("a PATH")
        );
        let mut process = Command::new(env!("CARGO_BIN_EXE_bellerophon"))
            .args(["dev", "--nodes", "1"])
            .current_dir(&project)
            .env_remove("RUST_LOG")
            .env("PATH", search)
            .env("BELLEROPHON", env!("CARGO_BIN_EXE_bellerophon"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let lines = Lines::new(process.stdout.take().expect("stdout is piped"));
        Self {
            project,
            process: KillOnDrop(process),
            lines,
        }
    }

    fn edit(&self, source: &str) {
        // As editors do: another file takes its place.
        let path = self.project.path().join("src/main.rs");
        let draft = path.with_extension("draft");
        fs::write(&draft, format!("{source}\n")).expect("written");
        fs::rename(draft, path).expect("renamed");
    }

    fn wait_for(&self, text: &str) -> String {
        self.lines.next_matching(|line| line.contains(text))
    }

    /// Waits until the operator of a source runs, and returns its process id.
    fn operator(&self, source: &str) -> String {
        let line = self.wait_for(&format!("operator {source} runs as "));
        assert!(line.ends_with("with operator.kubeconfig"), "{line}");
        let id = line.split(" as ").nth(1).expect("an id");
        id.split(' ').next().expect("an id").to_owned()
    }

    /// Waits until the Go operator of a source runs, and returns where it serves webhooks and the
    /// directory of its certificate.
    fn go_operator(&self, source: &str) -> (SocketAddr, PathBuf) {
        let line = self.wait_for(&format!("operator {source} serves at "));
        let (_, place) = line.split_once(" at ").expect("an address");
        let (address, directory) = place.split_once(" with ").expect("a directory");
        (address.parse().expect("an address"), directory.into())
    }

    fn save(&self, name: &str, text: &str) {
        fs::write(self.project.path().join(name), text).expect("written");
    }

    fn kubeconfig(&self) -> PathBuf {
        self.project.path().join(".bellerophon/kubeconfig")
    }

    fn interrupt(mut self) -> (TempDir, Lines) {
        let id = self.process.0.id().to_string();
        let kill = Command::new("kill").args(["-s", "INT", &id]).status();
        assert!(kill.expect("kill starts").success());
        let status = self.process.0.wait().expect("it exits");
        assert_eq!(status.code(), Some(0));
        (self.project, self.lines)
    }
}

/// Whether a process exists and has not ended. One whose parent has not waited for it has ended.
fn is_running(id: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(id).join("stat"));
    let state = stat
        .ok()
        .and_then(|stat| Some(stat.rsplit_once(") ")?.1.to_owned()));
    state.is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// A ConfigMap in YAML.
fn config_map(name: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n")
}

/// For tests with webhooks: `dev` finds a free port, and the operator listens on it later.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    // A test that failed holds no port any more.
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves the webhooks of a Go operator until the runtime is dropped.
fn serve_webhooks(address: SocketAddr, directory: &Path) -> Runtime {
    let read = |name: &str| fs::read_to_string(directory.join(name)).expect("readable");
    let runtime = Runtime::new().expect("a runtime");
    let certificate = read("tls.crt");
    let key = read("tls.key");
    runtime.block_on(webhook_server::start(address, &certificate, &key));
    runtime
}

/// The hero `sample`, read by the administrator.
fn sample(kubeconfig: &Path) -> Value {
    let path = "/apis/example.com/v1/namespaces/default/heroes/sample";
    get(kubeconfig, path).expect("the sample exists")
}

/// An object, read by the administrator; `None` if it does not exist.
fn get(kubeconfig: &Path, path: &str) -> Option<Value> {
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let config = kube::config::Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(config, &options).await;
        let client = kube::Client::try_from(config.expect("valid")).expect("a client");
        let request = http::Request::get(path)
            .body(Vec::new())
            .expect("a request");
        match client.request(request).await {
            Ok(object) => Some(object),
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => panic!("{path}: {error}"),
        }
    })
}

#[test]
fn operator_is_replaced_when_a_build_succeeds_and_objects_stay() {
    let session = Session::start("one");
    let first = session.operator("one");
    let before = sample(&session.kubeconfig());
    assert_eq!(before["spec"]["strength"], 1);
    session.edit("broken");
    session.wait_for("build failed");
    assert!(is_running(&first), "the operator of the last build runs on");
    session.edit("two");
    session.wait_for("operator one stops");
    let second = session.operator("two");
    assert!(!is_running(&first));
    let after = sample(&session.kubeconfig());
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    let (_project, lines) = session.interrupt();
    lines.next_matching(|line| line.contains("operator two stops"));
    assert!(!is_running(&second), "no process is left");
}

#[test]
fn change_during_a_build_is_built() {
    let session = Session::start("slow-one");
    session.wait_for("building");
    session.edit("two");
    session.operator("two");
    session.interrupt();
}

#[test]
fn editor_and_checkout_cause_one_build_each() {
    let session = Session::start("one");
    session.operator("one");
    let path = |name: &str| session.project.path().join(name);
    // As vim does: the file becomes a backup, another one takes its name, the backup is removed.
    fs::rename(path("src/main.rs"), path("src/main.rs~")).expect("renamed");
    fs::write(path("src/main.rs"), "two\n").expect("written");
    fs::remove_file(path("src/main.rs~")).expect("removed");
    session.operator("two");
    // As `git checkout` does: many files, one after the other.
    for index in 0..30 {
        fs::write(path(&format!("src/module{index}.rs")), "module\n").expect("written");
    }
    fs::write(path("src/main.rs"), "three\n").expect("written");
    fs::write(path("Cargo.toml"), "[package]\n").expect("written");
    session.operator("three");
    // A file that is written again with the same contents is no change.
    fs::write(path("src/module0.rs"), "module\n").expect("written");
    session.edit("four");
    session.operator("four");
    let (project, _) = session.interrupt();
    let builds = fs::read_to_string(project.path().join("target/builds")).expect("builds");
    assert_eq!(builds, "one\ntwo\nthree\nfour\n");
}

#[test]
fn interrupted_build_leaves_no_process() {
    let session = Session::start("one");
    let operator = session.operator("one");
    session.edit("endless");
    let file = session.project.path().join("target/processes");
    await_condition("the build runs", || {
        fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n'))
    });
    let processes = fs::read_to_string(&file).expect("processes");
    let (_project, _) = session.interrupt();
    for id in processes.split_whitespace().chain([operator.as_str()]) {
        await_condition("the process ends", || !is_running(id));
    }
}

#[test]
fn first_build_that_fails_is_repeated_after_a_change() {
    let session = Session::start("broken");
    session.wait_for("build failed");
    session.edit("one");
    session.operator("one");
    session.interrupt();
}

#[test]
fn changed_sample_is_applied() {
    let session = Session::start("one");
    session.operator("one");
    let path = session.project.path().join("sample.yaml");
    let text = fs::read_to_string(&path).expect("readable");
    fs::write(&path, text.replace("strength: 1", "strength: 7")).expect("written");
    let kubeconfig = session.kubeconfig();
    await_condition("the sample is applied", || {
        sample(&kubeconfig)["spec"]["strength"] == 7
    });
    session.interrupt();
}

#[test]
fn webhook_configuration_of_a_service_is_not_applied() {
    let project = Session::project("one");
    let configuration = "apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: heroes}
webhooks:
- name: heroes.example.com
  clientConfig: {service: {name: hero, namespace: hero-system}}
";
    fs::write(project.path().join("webhook.yaml"), configuration).expect("written");
    let session = Session::start_in(project);
    session.wait_for("ValidatingWebhookConfiguration heroes is not applied");
    session.operator("one");
    session.interrupt();
}

#[test]
fn schema_that_stored_objects_do_not_fit_is_explained() {
    let session = Session::start("one");
    session.operator("one");
    let weapon = json!({"type": "object", "required": ["weapon"],
                        "properties": {"strength": {"type": "integer"}, "weapon": {"type": "string"}}});
    let path = session.project.path().join("manifests.json");
    fs::write(path, manifests(crd(weapon))).expect("written");
    session.edit("two");
    let line = session.wait_for("the new schema of Hero does not accept sample");
    assert!(line.contains("spec.weapon: Required value"), "{line}");
    assert!(line.contains("make it optional"), "{line}");
    session.operator("two");
    session.interrupt();
}

#[test]
fn refused_definition_is_explained_and_the_old_operator_kept() {
    let session = Session::start("one");
    let first = session.operator("one");
    let mut cluster_scoped = crd(json!({"type": "object"}));
    cluster_scoped["spec"]["scope"] = "Cluster".into();
    let path = session.project.path().join("manifests.json");
    fs::write(path, manifests(cluster_scoped)).expect("written");
    session.edit("two");
    let line = session.wait_for("cannot apply CustomResourceDefinition heroes.example.com");
    assert!(line.contains("spec.scope"), "{line}");
    session.wait_for("the operator of the last build runs on");
    assert!(is_running(&first));
    session.interrupt();
}

/// The manifests of the Icecream operator, as a program prints them.
fn icecream_manifests(options: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_bellerophon"))
        .args(["manifests", "icecream"])
        .args(options)
        .output()
        .expect("the binary starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let items: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

#[test]
fn webhooks_are_called_on_a_free_port_and_survive_a_restart() {
    let _serial = one_at_a_time();
    // Taken by this test, or by another program.
    let _taken = TcpListener::bind(("127.0.0.1", 9443));
    let project = Session::project("one");
    let path = |name: &str| project.path().join(name);
    fs::write(path("operator.sh"), ICECREAM_OPERATOR).expect("written");
    fs::write(path("manifests.json"), icecream_manifests(&["--webhooks"])).expect("written");
    fs::write(path("sample.yaml"), ICECREAM_SAMPLES).expect("written");
    let session = Session::start_in(project);
    let configuration = || {
        let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/\
                    icecream-webhooks";
        get(&session.kubeconfig(), path)
    };
    let save_sample = |name: &str| {
        let path = session.project.path().join("sample.yaml");
        let text = format!("deploymentName: {name}");
        let sample = ICECREAM_SAMPLES.replace("deploymentName: free", &text);
        fs::write(path, sample).expect("written");
    };
    let is_denied = || {
        save_sample("taken");
        let line = session.wait_for("cannot apply Icecream sample");
        assert!(line.contains("denied the request"), "{line}");
        save_sample("free");
        session.wait_for("applied 2 objects");
    };
    session.operator("one");
    let line = session.wait_for("webhooks are called at https://127.0.0.1:");
    assert!(!line.ends_with(":9443"), "{line}");
    session.wait_for("applied 2 objects");
    let before = configuration().expect("it is registered");
    is_denied();

    session.edit("two");
    session.operator("two");
    session.wait_for("webhooks are called at https://127.0.0.1:");
    session.wait_for("applied 2 objects");
    let after = configuration().expect("it is registered");
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    is_denied();

    // An operator without webhooks leaves none behind.
    let manifests = session.project.path().join("manifests.json");
    fs::write(manifests, icecream_manifests(&[])).expect("written");
    session.edit("three");
    session.operator("three");
    await_condition("the configuration is deleted", || configuration().is_none());
    session.interrupt();
}

#[test]
fn webhooks_of_a_go_operator_are_called_at_the_address_it_is_given() {
    let _serial = one_at_a_time();
    // Taken by this test, or by another program.
    let _taken = TcpListener::bind(("127.0.0.1", 9443));
    let project = Session::go_project();
    fs::write(project.path().join("webhook.yaml"), GO_WEBHOOK).expect("written");
    let session = Session::start_in(project);
    let stored = |path: &str| get(&session.kubeconfig(), path);
    let configuration =
        || stored("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/label");
    let label = |name: &str| {
        let path = format!("/api/v1/namespaces/default/configmaps/{name}");
        stored(&path).expect("it is applied")["metadata"]["labels"]["seen"].clone()
    };
    let (address, directory) = session.go_operator("one");
    assert_ne!(address.port(), 9443);
    let operator = serve_webhooks(address, &directory);
    session.wait_for(&format!("webhooks are called at https://{address}"));
    session.wait_for("applied 2 objects");
    assert_eq!(label("good"), "yes");
    let webhook = &configuration().expect("it is applied")["webhooks"][0];
    let url = format!("https://{address}/mutate--v1-configmap");
    assert_eq!(webhook["clientConfig"]["url"], url);
    session.save("sample.yaml", &config_map("bad"));
    let line = session.wait_for("cannot apply ConfigMap bad");
    assert!(line.contains("denied the request"), "{line}");
    session.save("sample.yaml", &config_map("good"));
    session.wait_for("applied 2 objects");

    // The next operator has the port of the last one.
    drop(operator);
    session.edit("two");
    let (second, directory) = session.go_operator("two");
    assert_eq!(second, address);
    let _operator = serve_webhooks(second, &directory);
    session.wait_for(&format!("webhooks are called at https://{address}"));
    session.wait_for("applied 2 objects");
    session.save("sample.yaml", &config_map("other"));
    session.wait_for("applied 2 objects");
    assert_eq!(label("other"), "yes");

    fs::remove_file(session.project.path().join("webhook.yaml")).expect("removed");
    await_condition("the configuration is deleted", || configuration().is_none());
    session.interrupt();
}

#[test]
fn go_operator_that_does_not_serve_its_webhooks_is_explained() {
    let _serial = one_at_a_time();
    let project = Session::go_project();
    fs::write(project.path().join("webhook.yaml"), GO_WEBHOOK).expect("written");
    let session = Session::start_in(project);
    let (address, directory) = session.go_operator("one");
    let line = session.wait_for("MutatingWebhookConfiguration label is not applied");
    for part in [&format!("https://{address}"), "refused", "WEBHOOK_CERT_DIR"] {
        assert!(line.contains(part), "{line}");
    }
    // All other objects are applied.
    session.wait_for("applied 1 objects");
    let _operator = serve_webhooks(address, &directory);
    session.save("sample.yaml", &config_map("later"));
    session.wait_for("webhooks are called");
    session.wait_for("applied 2 objects");
    session.interrupt();
}

#[test]
fn go_operator_whose_webhooks_nobody_registers_is_explained() {
    let _serial = one_at_a_time();
    let session = Session::start_in(Session::go_project());
    let (address, directory) = session.go_operator("one");
    let _operator = serve_webhooks(address, &directory);
    let line = session.wait_for(&format!("serves webhooks at https://{address}"));
    assert!(line.contains("nothing calls them"), "{line}");
    session.interrupt();
}

#[test]
fn directory_without_a_project_is_a_usage_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = crate::running::command(&directory)
        .arg("dev")
        .output()
        .expect("the binary starts");
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("bellerophon new NAME"), "{text}");
}
