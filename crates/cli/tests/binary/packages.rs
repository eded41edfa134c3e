//! The forms of manifests, and the files of a release.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::{Value, json};

/// The text of a file.
fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The YAML documents of a text.
fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

/// Runs `bellerophon manifests LINE`, and an output directory.
fn run(line: &str, out: Option<&Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bellerophon"));
    command.arg("manifests").args(line.split(' '));
    if let Some(out) = out {
        command.arg("--out").arg(out);
    }
    command.output().expect("the binary starts")
}

fn manifests(operators: &str) -> Vec<Value> {
    let output = run(operators, None);
    documents(&String::from_utf8(output.stdout).expect("UTF-8"))
}

/// The permissions that manifests grant, by service account: those in all namespaces, or in its own.
fn granted(objects: &[Value], role_kind: &str) -> BTreeMap<String, Vec<Value>> {
    let mut granted: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let of_kind = |kind: String| objects.iter().filter(move |object| object["kind"] == kind);
    for binding in of_kind(format!("{role_kind}Binding")) {
        let account = binding["subjects"][0]["name"].as_str().expect("a name");
        for role in of_kind(role_kind.to_owned()) {
            if role["metadata"]["name"] == binding["roleRef"]["name"] {
                let rules = role["rules"].as_array().expect("rules").clone();
                granted.entry(account.to_owned()).or_default().extend(rules);
            }
        }
    }
    granted
}

/// A bundle agrees with the manifests of the same operators.
fn check_bundle(bundle: &Path, package: &str, objects: &[Value]) {
    let csv = read(bundle.join(format!("manifests/{package}.clusterserviceversion.yaml")));
    let csv = &documents(&csv)[0];
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(csv["metadata"]["name"], format!("{package}.v{version}"));
    let install = &csv["spec"]["install"]["spec"];
    for (member, role_kind) in [
        ("clusterPermissions", "ClusterRole"),
        ("permissions", "Role"),
    ] {
        let listed: BTreeMap<String, Vec<Value>> = install[member]
            .as_array()
            .expect("permissions")
            .iter()
            .map(|permission| {
                let account = permission["serviceAccountName"].as_str().expect("a name");
                let rules = permission["rules"].as_array().expect("rules");
                (account.to_owned(), rules.clone())
            })
            .collect();
        assert_eq!(listed, granted(objects, role_kind), "{member}");
    }
    let deployments: Vec<&Value> = objects
        .iter()
        .filter(|object| object["kind"] == "Deployment")
        .map(|object| &object["spec"])
        .collect();
    let listed: Vec<&Value> = install["deployments"]
        .as_array()
        .expect("deployments")
        .iter()
        .map(|deployment| &deployment["spec"])
        .collect();
    assert_eq!(listed, deployments);

    let owned = csv["spec"]["customresourcedefinitions"]["owned"]
        .as_array()
        .expect("owned");
    for crd in owned {
        let name = crd["name"].as_str().expect("a name");
        let file = read(bundle.join(format!("manifests/{name}.crd.yaml")));
        let definition = &documents(&file)[0];
        assert!(objects.contains(definition), "{name}");
        assert_eq!(definition["spec"]["names"]["kind"], crd["kind"], "{name}");
    }
    let crds = objects
        .iter()
        .filter(|object| object["kind"] == "CustomResourceDefinition");
    assert_eq!(owned.len(), crds.count());
    let examples = csv["metadata"]["annotations"]["alm-examples"]
        .as_str()
        .expect("examples");
    let examples: Vec<Value> = serde_json::from_str(examples).expect("JSON");
    assert!(!examples.is_empty());
    for example in examples {
        assert!(
            owned.iter().any(|crd| crd["kind"] == example["kind"]),
            "{example}"
        );
    }

    let annotations = &documents(&read(bundle.join("metadata/annotations.yaml")))[0]["annotations"];
    let prefix = "operators.operatorframework.io.bundle";
    assert_eq!(annotations[format!("{prefix}.package.v1")], package);
    assert_eq!(annotations[format!("{prefix}.mediatype.v1")], "registry+v1");
    let image = read(bundle.join("bundle.Dockerfile"));
    let labels: BTreeMap<&str, Value> = image
        .lines()
        .filter_map(|line| line.strip_prefix("LABEL ")?.split_once('='))
        .map(|(name, value)| (name, json!(value)))
        .collect();
    assert_eq!(json!(labels), *annotations, "the labels of the image");
    for file in fs::read_dir(bundle.join("manifests")).expect("a directory") {
        let file = file.expect("an entry").path();
        for object in documents(&read(&file)) {
            assert!(
                object["metadata"]["namespace"].is_null(),
                "{}",
                file.display()
            );
        }
    }
}

#[test]
fn bundle_grants_the_permissions_of_the_manifests() {
    let directory = tempfile::tempdir().expect("a directory");
    for (operators, package) in [("all", "bellerophon"), ("icecream", "bellerophon-icecream")] {
        let bundle = directory.path().join(package);
        let output = run(&format!("{operators} --format olm"), Some(&bundle));
        assert!(output.status.success(), "{output:?}");
        check_bundle(&bundle, package, &manifests(operators));
    }
}

#[test]
fn what_olm_cannot_install_is_a_usage_error() {
    let directory = tempfile::tempdir().expect("a directory");
    for (line, reason) in [
        ("reboot-agent --format olm", "OLM installs no"),
        ("icecream --webhooks --format olm", "WebhookConfiguration"),
        ("fruit --format olm", "no Deployment"),
    ] {
        let output = run(line, Some(directory.path()));
        assert_eq!(output.status.code(), Some(2), "{line}: {output:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(reason), "{line}: {error}");
    }
    let output = run("all --format kustomize", None);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--out"));
}

#[test]
fn kustomize_base_has_every_object_of_the_manifests() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = run(
        "all,reboot-agent --format kustomize",
        Some(directory.path()),
    );
    assert!(output.status.success(), "{output:?}");
    check_base(directory.path(), &manifests("all,reboot-agent"));
}

fn check_base(base: &Path, expected: &[Value]) {
    let kustomization = &documents(&read(base.join("kustomization.yaml")))[0];
    let mut objects = Vec::new();
    for resource in kustomization["resources"].as_array().expect("resources") {
        let file = resource.as_str().expect("a file");
        objects.extend(documents(&read(base.join(file))));
    }
    assert_eq!(objects.len(), expected.len());
    for object in expected {
        assert!(objects.contains(object), "{}", object["metadata"]);
    }
}

/// `cargo xtask dist` with a program that is a script, so that the archive is small.
#[cfg(unix)]
#[test]
fn release_is_complete_and_its_checksums_are_right() {
    use std::os::unix::fs::PermissionsExt as _;

    use sha2::{Digest as _, Sha256};

    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("bellerophon");
    let script = format!(
        "#!/bin/sh\nexec {} \"$@\"\n",
        env!("CARGO_BIN_EXE_bellerophon")
    );
    fs::write(&program, script).expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
    let out = directory.path().join("out");
    let target = "x86_64-unknown-linux-gnu";
    let dist = || {
        let output = Command::new(env!("CARGO"))
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
            .args(["run", "--quiet", "--package", "xtask", "--", "dist"])
            .args(["--url", "https://host.example", "--target", target])
            .arg("--binary")
            .arg(&program)
            .arg("--out")
            .arg(&out)
            .output()
            .expect("cargo starts");
        assert!(output.status.success(), "{output:?}");
        read(out.join("SHA256SUMS"))
    };
    let sums = dist();
    assert_eq!(dist(), sums, "the same program gives the same files");

    let version = env!("CARGO_PKG_VERSION");
    let archive = format!("bellerophon-{version}-{target}.tar.gz");
    let sha256 = |file: &str| {
        let digest = Sha256::digest(fs::read(out.join(file)).expect("a file"));
        digest
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let listed: Vec<(&str, &str)> = sums
        .lines()
        .filter_map(|line| line.split_once("  "))
        .collect();
    let names: Vec<&str> = listed.iter().map(|(_, name)| *name).collect();
    let sbom = format!("bellerophon-{version}.cdx.json");
    let install = format!("bellerophon-{version}-install.yaml");
    assert_eq!(names, [install.as_str(), archive.as_str(), sbom.as_str()]);
    for (sum, name) in &listed {
        assert_eq!(*sum, sha256(name), "{name}");
    }

    let plugin = &documents(&read(out.join("krew/plugins/bellerophon.yaml")))[0];
    let platform = &plugin["spec"]["platforms"][0];
    assert_eq!(platform["sha256"], sha256(&archive));
    assert_eq!(
        platform["uri"],
        format!("https://host.example/v{version}/{archive}")
    );
    let contents = Command::new("tar")
        .arg("-tzf")
        .arg(out.join(&archive))
        .output();
    let contents = contents.expect("tar starts").stdout;
    let contents = String::from_utf8(contents).expect("UTF-8");
    let top = archive.trim_end_matches(".tar.gz");
    let files = platform["files"].as_array().expect("files");
    let mut expected: Vec<String> = files
        .iter()
        .map(|file| file["from"].as_str().expect("a path").to_owned())
        .collect();
    for file in [
        "man/man1/bellerophon.1",
        "man/man1/bellerophon-up.1",
        "completions/bellerophon.bash",
        "completions/bellerophon.fish",
        "completions/bellerophon.zsh",
    ] {
        expected.push(format!("{top}/{file}"));
    }
    for file in expected {
        assert!(
            contents.lines().any(|line| line == file),
            "{file}:\n{contents}"
        );
    }

    let objects = documents(&read(out.join(install)));
    assert_eq!(objects, manifests("all,reboot-agent"));
    check_base(&out.join("kustomize"), &objects);
    let bundle = out.join("olm/bellerophon").join(version);
    check_bundle(&bundle, "bellerophon", &manifests("all"));
    for repository in ["krew", "olm"] {
        let metadata = read(out.join(repository).join("artifacthub-repo.yml"));
        assert!(documents(&metadata)[0]["owners"].is_array());
    }
}
