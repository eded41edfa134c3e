//! Create, get, label, patch, replace, edit, list and watch.

use std::process::Stdio;

use crate::{
    kubectl::{Kubectl, KubectlTest, Setup, assert_in_order},
    running::Lines,
};

/// The tests of this file.
pub(crate) fn tests() -> Vec<KubectlTest> {
    vec![
        KubectlTest::new(Setup::Server, object_is_created_labelled_and_deleted),
        KubectlTest::new(Setup::Server, all_patch_types_are_supported),
        KubectlTest::new(Setup::Server, replace_updates_and_force_recreates),
        KubectlTest::new(Setup::Server, edit_updates_an_object),
        KubectlTest::new(Setup::Server, lists_are_tables_filtered_by_selectors),
        KubectlTest::new(Setup::Server, watch_prints_every_change),
        KubectlTest::new(Setup::Server, create_commands_support_all_generators),
    ]
}

fn create_config_map(kubectl: &Kubectl, name: &str) {
    let text =
        format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}}}}"#);
    let file = kubectl.write(name, &text);
    assert_eq!(
        kubectl.run(&format!("create -f {file}")),
        format!("configmap/{name} created")
    );
}

fn object_is_created_labelled_and_deleted(kubectl: &Kubectl) {
    kubectl.check(&[
        ("create -f settings.yaml", "configmap/settings created"),
        ("get configmap settings -o name", "configmap/settings"),
        ("get configmap settings -o jsonpath={.data.a}", "b"),
        (
            "label configmap settings app=x",
            "configmap/settings labeled",
        ),
        (
            "annotate configmap settings note=y",
            "configmap/settings annotated",
        ),
    ]);
    kubectl.check(&[(
        "get configmap settings -o jsonpath={.metadata.labels.app}{.metadata.annotations.note}",
        "xy",
    )]);
    assert!(
        kubectl
            .run_failing("label configmap settings app=z")
            .contains("already has a value (x)")
    );
    kubectl.check_prefixes(&[
        (
            "label configmap settings app=z --overwrite",
            "configmap/settings labeled",
        ),
        // From 1.24 on, kubectl prints "unlabeled".
        ("label configmap settings app-", "configmap/settings "),
        (
            "annotate configmap settings note-",
            "configmap/settings annotated",
        ),
    ]);
    let object = kubectl.json("get configmap settings -o json");
    assert_eq!(object["metadata"]["name"], "settings");
    assert_eq!(object["metadata"].get("labels"), None);
    assert_in_order(
        &kubectl.run("get configmap settings -o yaml"),
        &["apiVersion: v1", "a: b", "kind: ConfigMap", "uid:"],
    );
    assert!(
        kubectl
            .run_failing("create -f settings.yaml")
            .contains(r#"configmaps "settings" already exists"#)
    );
    assert!(
        kubectl
            .run("delete configmap settings")
            .starts_with(r#"configmap "settings" deleted"#)
    );
    assert_eq!(
        kubectl.run_failing("get configmap settings"),
        r#"Error from server (NotFound): configmaps "settings" not found"#
    );
}

fn all_patch_types_are_supported(kubectl: &Kubectl) {
    kubectl.check(&[("create -f settings.yaml", "configmap/settings created")]);
    let patch = |options: &str| kubectl.run(&format!("patch configmap settings {options}"));
    for options in [
        r#"--type=merge -p {"data":{"a":"c","x":null}}"#,
        r#"--type=json -p [{"op":"add","path":"/data/d","value":"e"}]"#,
        r#"-p {"data":{"f":"g"}}"#,
        r#"--type=strategic -p {"data":{"$patch":"replace","h":"i"}}"#,
    ] {
        assert_eq!(patch(options), "configmap/settings patched", "{options}");
    }
    let unchanged = patch(r#"-p {"data":{"h":"i"}}"#);
    assert_eq!(unchanged, "configmap/settings patched (no change)");
    kubectl.check(&[("get configmap settings -o jsonpath={.data}", r#"{"h":"i"}"#)]);
    let failed_test = r#"[{"op":"test","path":"/data/h","value":"j"}]"#;
    let error = kubectl.run_failing(&format!(
        "patch configmap settings --type=json -p {failed_test}"
    ));
    assert!(error.starts_with("The request is invalid"), "{error}");
    let containers = r#"[{"name":"horse","image":"i:9"}]"#;
    let image = format!(r#"{{"spec":{{"template":{{"spec":{{"containers":{containers}}}}}}}}}"#);
    kubectl.check(&[
        ("apply -f deployment.yaml", "deployment.apps/stable created"),
        (
            &format!("patch deployment stable -p {image}"),
            "deployment.apps/stable patched",
        ),
        (
            "get deployment stable -o jsonpath={.spec.template.spec.containers[*].image}",
            "i:9",
        ),
    ]);
}

fn replace_updates_and_force_recreates(kubectl: &Kubectl) {
    kubectl.check(&[("create -f settings.yaml", "configmap/settings created")]);
    let file = kubectl.write(
        "other.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {z: z}\n",
    );
    kubectl.check(&[
        (&format!("replace -f {file}"), "configmap/settings replaced"),
        ("get configmap settings -o jsonpath={.data}", r#"{"z":"z"}"#),
    ]);
    let uid = "get configmap settings -o jsonpath={.metadata.uid}";
    let before = kubectl.run(uid);
    assert!(
        kubectl
            .run(&format!("replace --force -f {file}"))
            .ends_with("configmap/settings replaced")
    );
    assert_ne!(before, kubectl.run(uid), "the object is recreated");
    let missing = kubectl.write(
        "missing.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: missing}\n",
    );
    let error = kubectl.run_failing(&format!("replace -f {missing}"));
    assert!(
        error.contains(r#"configmaps "missing" not found"#),
        "{error}"
    );
}

fn edit_updates_an_object(kubectl: &Kubectl) {
    kubectl.check(&[("create -f settings.yaml", "configmap/settings created")]);
    assert_eq!(
        kubectl.edit("edit configmap settings", "a: b", "a: edited"),
        "configmap/settings edited"
    );
    kubectl.check(&[("get configmap settings -o jsonpath={.data.a}", "edited")]);
    kubectl.edit("edit configmap settings", "nothing", "nothing");
    kubectl.check(&[
        ("get configmap settings -o jsonpath={.data.a}", "edited"),
        ("apply -f deployment.yaml", "deployment.apps/stable created"),
    ]);
    assert_eq!(
        kubectl.edit("edit deployment stable", "replicas: 1", "replicas: 4"),
        "deployment.apps/stable edited"
    );
    kubectl.check(&[("get deployment stable -o jsonpath={.spec.replicas}", "4")]);
}

fn lists_are_tables_filtered_by_selectors(kubectl: &Kubectl) {
    for name in ["red", "green", "blue"] {
        create_config_map(kubectl, name);
    }
    kubectl.run("label configmap red warm=yes");
    let cases = [
        (
            "get configmaps --no-headers -o name",
            "configmap/blue configmap/green configmap/red",
        ),
        ("get configmaps -l warm=yes -o name", "configmap/red"),
        (
            "get configmaps -l warm!=yes -o name",
            "configmap/blue configmap/green",
        ),
        (
            "get configmaps --field-selector metadata.name=blue -o name",
            "configmap/blue",
        ),
        (
            "get configmaps --all-namespaces -o name \
                 --field-selector metadata.namespace=default,metadata.name!=red",
            "configmap/blue configmap/green",
        ),
    ];
    for (line, expected) in cases {
        let names = kubectl.run(line).lines().collect::<Vec<_>>().join(" ");
        assert_eq!(names, expected, "kubectl {line}");
    }
    assert_eq!(kubectl.table("get cm -l warm -o wide")[0], "NAME DATA AGE");
    let namespaces = kubectl.table("get namespaces");
    assert_eq!(namespaces[0], "NAME STATUS AGE");
    assert!(
        namespaces[1].starts_with("default Active "),
        "{namespaces:?}"
    );
    let error = kubectl.run_failing("get configmaps --field-selector data.a=b");
    assert!(
        error.contains("\"data.a\" is not a known field selector"),
        "{error}"
    );
}

fn watch_prints_every_change(kubectl: &Kubectl) {
    create_config_map(kubectl, "watched");
    let mut watch = kubectl
        .command("get configmaps -w --no-headers")
        .stdout(Stdio::piped())
        .spawn()
        .expect("kubectl starts");
    let lines = Lines::new(watch.stdout.take().expect("stdout is piped"));
    lines.next_matching(|line| line.starts_with("watched") && line.contains(" 0 "));
    kubectl.run("patch configmap watched --type=merge -p {\"data\":{\"a\":\"b\"}}");
    lines.next_matching(|line| line.starts_with("watched") && line.contains(" 1 "));
    create_config_map(kubectl, "new");
    lines.next_matching(|line| line.starts_with("new"));
    watch.kill().expect("kubectl runs");
    watch.wait().expect("kubectl exits");
}

fn create_commands_support_all_generators(kubectl: &Kubectl) {
    // From 1.32 on, kubectl sends these bodies as protobuf.
    kubectl.check(&[
        (
            "create configmap settings --from-literal=a=b",
            "configmap/settings created",
        ),
        ("get configmap settings -o jsonpath={.data}", r#"{"a":"b"}"#),
        (
            "create secret generic key --from-literal=a=b",
            "secret/key created",
        ),
        ("get secret key -o jsonpath={.data.a}{.type}", "Yg==Opaque"),
        (
            "create deployment web --image=registry.example/pegasus:1",
            "deployment.apps/web created",
        ),
        (
            "get deployment web -o jsonpath={.spec.template.spec.containers[0].image}",
            "registry.example/pegasus:1",
        ),
        (
            "create service clusterip web --tcp=80:8080",
            "service/web created",
        ),
        (
            "get service web -o jsonpath={.spec.ports[0].targetPort}",
            "8080",
        ),
        ("create namespace team", "namespace/team created"),
        (
            "create job work --image=registry.example/pegasus:1",
            "job.batch/work created",
        ),
        (
            "create ingress way --rule=horse.example/hay=web:80",
            "ingress.networking.k8s.io/way created",
        ),
        (
            "create priorityclass urgent --value=10",
            "priorityclass.scheduling.k8s.io/urgent created",
        ),
        (
            "create quota few --hard=pods=2",
            "resourcequota/few created",
        ),
    ]);
    let again = kubectl.run_failing("create configmap settings");
    assert!(
        again.ends_with(r#"configmaps "settings" already exists"#),
        "{again}"
    );
    assert_in_order(
        &kubectl.run("describe ingress way"),
        &["Name: way", "horse.example", "/hay", "web:80"],
    );
    assert_in_order(
        &kubectl.run("describe service web"),
        &["Name: web", "Type: ClusterIP", "TargetPort: 8080/TCP"],
    );
    assert_in_order(
        &kubectl.run("describe secret key"),
        &["Name: key", "Type: Opaque", "a: 1 bytes"],
    );
}
