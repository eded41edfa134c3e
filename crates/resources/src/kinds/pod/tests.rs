//! Tests of the Pod strategy, with recorded responses of kube-apiserver.

use bellerophon_apimachinery::time::Time;
use serde_json::{Value, json};

use super::{testing::*, *};
use crate::kinds::test_support::NOW;

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// Asserts that the spec has exactly these errors, in order.
fn check(spec: Value, expected: &[&str]) {
    assert_eq!(refusals(&POD, &pod(spec.clone())), expected, "{spec}");
}

/// A spec of one container `a` with these fields.
fn one(own: Value) -> Value {
    let mut container = json!({"name": "a", "image": "a"});
    container
        .as_object_mut()
        .expect("an object")
        .extend(own.as_object().cloned().expect("an object"));
    json!({ "containers": [container] })
}

/// A valid container next to these fields of the spec.
fn with(own: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "a", "image": "a"}]});
    spec.as_object_mut()
        .expect("an object")
        .extend(own.as_object().cloned().expect("an object"));
    spec
}

#[test]
fn containers_need_names_images_and_ports_in_range() {
    check(
        json!({"containers": []}),
        &["spec.containers: Required value"],
    );
    check(json!({}), &["spec.containers: Required value"]);
    check(
        json!({"containers": [{}]}),
        &[
            "spec.containers[0].name: Required value",
            "spec.containers[0].image: Required value",
        ],
    );
    check(
        json!({"containers": [{"name": "Web_1", "image": "a"}]}),
        &[&format!(
            "spec.containers[0].name: Invalid value: \"Web_1\": {LABEL}"
        )],
    );
    check(
        json!({"containers": [{"name": "a", "image": "a"}, {"name": "a", "image": "b"}]}),
        &["spec.containers[1].name: Duplicate value: \"a\""],
    );
    check(
        json!({"initContainers": [{"name": "a", "image": "a"}], "containers": [{"name": "a", "image": "b"}]}),
        &["spec.initContainers[0].name: Duplicate value: \"a\""],
    );
    check(
        one(json!({"image": " nginx"})),
        &[
            "spec.containers[0].image: Invalid value: \" nginx\": must not have leading or trailing whitespace",
        ],
    );
    check(
        one(json!({"imagePullPolicy": "Sometimes"})),
        &[
            "spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ],
    );
    check(
        one(
            json!({"ports": [{"containerPort": 0}, {"containerPort": 70000}, {"containerPort": 80, "hostPort": -1}]}),
        ),
        &[
            "spec.containers[0].ports[0].containerPort: Required value",
            "spec.containers[0].ports[1].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            "spec.containers[0].ports[2].hostPort: Invalid value: -1: must be between 1 and 65535, inclusive",
        ],
    );
    check(
        one(
            json!({"ports": [{"name": "http", "containerPort": 80}, {"name": "http", "containerPort": 81}]}),
        ),
        &["spec.containers[0].ports[1].name: Duplicate value: \"http\""],
    );
    check(
        one(
            json!({"ports": [{"name": "this-name-is-too-long", "containerPort": 80, "protocol": "ICMP"}]}),
        ),
        &[
            "spec.containers[0].ports[0].name: Invalid value: \"this-name-is-too-long\": must be no more than 15 characters",
            "spec.containers[0].ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ],
    );
    check(
        json!({"containers": [{"name": "a", "image": "a", "ports": [{"containerPort": 80, "hostPort": 8080}]},
            {"name": "b", "image": "b", "ports": [{"containerPort": 81, "hostPort": 8080}]}]}),
        &["spec.containers[1].ports[0].hostPort: Duplicate value: \"TCP//8080\""],
    );
    check(
        json!({"hostNetwork": true, "containers": [{"name": "a", "image": "a", "ports": [{"containerPort": 80, "hostPort": 8080}]}]}),
        &[
            "spec.containers[0].ports[0].hostPort: Invalid value: 8080: must match `containerPort` when `hostNetwork` is true",
        ],
    );
}

#[test]
fn volumes_and_mounts_are_refused_as_recorded() {
    check(
        one(json!({"volumeMounts": [{"name": "nope", "mountPath": "/x"}]})),
        &["spec.containers[0].volumeMounts[0].name: Not found: \"nope\""],
    );
    let mounted = |mounts: Value, volumes: Value| json!({"volumes": volumes, "containers": [{"name": "a", "image": "a", "volumeMounts": mounts}]});
    check(
        mounted(
            json!([{"name": "v", "mountPath": "/x"}, {"name": "v", "mountPath": "/x"}]),
            json!([{"name": "v"}, {"name": "v"}]),
        ),
        &[
            "spec.volumes[1].name: Duplicate value: \"v\"",
            "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/x\": must be unique",
        ],
    );
    check(
        mounted(
            json!([{"name": "v", "mountPath": ""}, {"name": "v", "mountPath": "/y", "subPath": "../z"}]),
            json!([{"name": "v"}]),
        ),
        &[
            "spec.containers[0].volumeMounts[0].mountPath: Required value",
            "spec.containers[0].volumeMounts.subPath: Invalid value: \"../z\": must not contain '..'",
        ],
    );
    check(
        with(json!({"volumes": [{"name": "Bad_Name"}]})),
        &[&format!(
            "spec.volumes[0].name: Invalid value: \"Bad_Name\": {LABEL}"
        )],
    );
    check(
        with(json!({"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]})),
        &["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
    );
    check(
        with(
            json!({"volumes": [{"name": "v", "hostPath": {"path": ""}}, {"name": "w", "secret": {}},
            {"name": "x", "persistentVolumeClaim": {"claimName": ""}}, {"name": "y", "configMap": {"name": "c", "defaultMode": 1000}},
            {"name": "z", "hostPath": {"path": "/a/../b", "type": "Folder"}}]}),
        ),
        &[
            "spec.volumes[0].hostPath.path: Required value",
            "spec.volumes[1].secret.secretName: Required value",
            "spec.volumes[2].persistentVolumeClaim.claimName: Required value",
            "spec.volumes[3].configMap.defaultMode: Invalid value: 1000: must be a number between 0 and 0777 (octal), both inclusive",
            "spec.volumes[4].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
            "spec.volumes[4].hostPath.type: Unsupported value: \"Folder\": supported values: \"\", \"BlockDevice\", \"CharDevice\", \"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\"",
        ],
    );
}

#[test]
fn probes_and_variables_are_refused_as_recorded() {
    check(
        one(json!({"livenessProbe": {"periodSeconds": 5}})),
        &["spec.containers[0].livenessProbe: Required value: must specify a handler type"],
    );
    check(
        one(json!({"livenessProbe": {"httpGet": {"port": 80}, "tcpSocket": {"port": 80}}})),
        &[
            "spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
        ],
    );
    check(
        one(
            json!({"livenessProbe": {"tcpSocket": {"port": 80}, "successThreshold": 2, "timeoutSeconds": -1, "failureThreshold": -3}}),
        ),
        &[
            "spec.containers[0].livenessProbe.timeoutSeconds: Invalid value: -1: must be greater than or equal to 0",
            "spec.containers[0].livenessProbe.failureThreshold: Invalid value: -3: must be greater than or equal to 0",
            "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
        ],
    );
    check(
        one(
            json!({"readinessProbe": {"httpGet": {"port": 99999, "scheme": "FTP"}, "terminationGracePeriodSeconds": 4},
            "startupProbe": {"exec": {"command": []}}}),
        ),
        &[
            "spec.containers[0].readinessProbe.httpGet.port: Invalid value: 99999: must be between 1 and 65535, inclusive",
            "spec.containers[0].readinessProbe.httpGet.scheme: Unsupported value: \"FTP\": supported values: \"HTTP\", \"HTTPS\"",
            "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 4: must not be set for readinessProbes",
            "spec.containers[0].startupProbe.exec.command: Required value",
        ],
    );
    check(
        one(json!({"env": [{"name": ""}, {"name": "A=B", "value": "x"}]})),
        &[
            "spec.containers[0].env[0].name: Required value",
            "spec.containers[0].env[1].name: Invalid value: \"A=B\": a valid environment variable name must consist only of printable ASCII characters other than '='",
        ],
    );
    check(
        one(
            json!({"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, {"name": "B", "valueFrom": {}}]}),
        ),
        &[
            "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
            "spec.containers[0].env[1].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ],
    );
    check(
        one(
            json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.foo"}}},
            {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.gpu"}}},
            {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": ""}}}]}),
        ),
        &[
            "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.foo\": error converting fieldPath: field label not supported: spec.foo",
            "spec.containers[0].env[1].valueFrom.resourceFieldRef.resource: Unsupported value: \"limits.gpu\": supported values: \"limits.cpu\", \"limits.ephemeral-storage\", \"limits.memory\", \"requests.cpu\", \"requests.ephemeral-storage\", \"requests.memory\"",
            "spec.containers[0].env[2].valueFrom.secretKeyRef.key: Required value",
        ],
    );
    check(
        one(json!({"envFrom": [{}, {"configMapRef": {"name": ""}}]})),
        &[
            "spec.containers[0].envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`",
            "spec.containers[0].envFrom[1].configMapRef.name: Required value",
        ],
    );
}

#[test]
fn choices_of_the_pod_are_refused_as_recorded() {
    check(
        with(json!({"restartPolicy": "Sometimes", "dnsPolicy": "Host"})),
        &[
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            "spec.dnsPolicy: Unsupported value: \"Host\": supported values: \"ClusterFirstWithHostNet\", \"ClusterFirst\", \"Default\", \"None\"",
        ],
    );
    check(
        with(
            json!({"dnsPolicy": "None", "activeDeadlineSeconds": 0, "terminationGracePeriodSeconds": -1, "hostname": "a.b", "subdomain": "A_B"}),
        ),
        &[
            "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
            "spec.hostname: Invalid value: \"a.b\": must not contain dots",
            &format!("spec.subdomain: Invalid value: \"A_B\": {LABEL}"),
        ],
    );
    check(
        with(
            json!({"hostAliases": [{"ip": "not-an-ip", "hostnames": ["UPPER"]}], "dnsConfig": {"nameservers": ["x"], "searches": ["a b"]}}),
        ),
        &[
            "spec.dnsConfig.nameservers[0]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            "spec.dnsConfig.searches[0]: Invalid value: \"a b\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')",
            "spec.hostAliases[0].ip: Invalid value: \"not-an-ip\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            &format!("spec.hostAliases[0].hostnames[0]: Invalid value: \"UPPER\": {SUBDOMAIN}"),
        ],
    );
    check(
        json!({"securityContext": {"runAsUser": -1, "seccompProfile": {"type": "Localhost"}},
            "containers": [{"name": "a", "image": "a", "securityContext": {"privileged": true, "allowPrivilegeEscalation": false}}]}),
        &[
            "spec.containers[0].securityContext: Invalid value: {\"Capabilities\":null,\"Privileged\":true,\"SELinuxOptions\":null,\"WindowsOptions\":null,\"RunAsUser\":null,\"RunAsGroup\":null,\"RunAsNonRoot\":null,\"ReadOnlyRootFilesystem\":null,\"AllowPrivilegeEscalation\":false,\"ProcMount\":null,\"SeccompProfile\":null,\"AppArmorProfile\":null}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            "spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            "spec.securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
        ],
    );
}

#[test]
fn scheduling_wishes_are_refused_as_recorded() {
    check(
        with(
            json!({"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}, {"operator": "Equal"},
            {"key": "b", "effect": "NoSchedule", "tolerationSeconds": 5}, {"key": "c", "operator": "Like", "effect": "Never"}]}),
        ),
        &[
            "spec.tolerations[0].operator: Invalid value: \"x\": value must be empty when `operator` is 'Exists'",
            "spec.tolerations[1].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            "spec.tolerations[2].effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute' when `tolerationSeconds` is set",
            "spec.tolerations[3].operator: Unsupported value: \"Like\": supported values: \"Equal\", \"Exists\"",
            "spec.tolerations[3].effect: Unsupported value: \"Never\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
        ],
    );
    let term = "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]";
    check(
        with(json!({"nodeSelector": {"disk": "bad value!"}, "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}},
            "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 101, "podAffinityTerm": {"topologyKey": "", "labelSelector": {}}}]}}})),
        &[
            &format!("spec.nodeSelector: Invalid value: \"bad value!\": {VALUE}"),
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term",
            &format!("{term}.weight: Invalid value: 101: must be in the range 1-100"),
            &format!("{term}.podAffinityTerm.topologyKey: Required value: can not be empty"),
            &format!(
                "{term}.podAffinityTerm.topologyKey: Invalid value: \"\": name part must be non-empty"
            ),
            &format!(
                "{term}.podAffinityTerm.topologyKey: Invalid value: \"\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ),
        ],
    );
    let expressions = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions";
    check(
        with(
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "a", "operator": "In"}, {"key": "b", "operator": "Exists", "values": ["x"]}, {"key": "c", "operator": "Has"}]}]}}}}),
        ),
        &[
            &format!(
                "{expressions}[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
            ),
            &format!(
                "{expressions}[1].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            ),
            &format!(
                "{expressions}[2].operator: Invalid value: \"Has\": not a valid selector operator"
            ),
        ],
    );
    check(
        with(
            json!({"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "Perhaps"},
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2}]}),
        ),
        &[
            "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
            "spec.topologySpreadConstraints[0].topologyKey: Required value: can not be empty",
            "spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: \"Perhaps\": supported values: \"DoNotSchedule\", \"ScheduleAnyway\"",
            "spec.topologySpreadConstraints[1].minDomains: Invalid value: 2: can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway",
        ],
    );
}

#[test]
fn several_errors_are_in_the_order_of_kubernetes() {
    check(
        json!({"restartPolicy": "Maybe", "volumes": [{"name": "V"}], "containers": [{"name": "", "image": "",
            "ports": [{"containerPort": 0}], "volumeMounts": [{"name": "x", "mountPath": "/x"}],
            "resources": {"requests": {"cpu": 2}, "limits": {"cpu": 1}}}]}),
        &[
            &format!("spec.volumes[0].name: Invalid value: \"V\": {LABEL}"),
            "spec.containers[0].name: Required value",
            "spec.containers[0].image: Required value",
            "spec.containers[0].ports[0].containerPort: Required value",
            "spec.containers[0].volumeMounts[0].name: Not found: \"x\"",
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            "spec.restartPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        ],
    );
}

#[test]
fn new_pod_is_pending_with_its_class_and_gates() {
    let gated = pod(with(
        json!({"schedulingGates": [{"name": "example.com/g"}]}),
    ));
    assert_eq!(
        created(&POD, &gated).body["status"],
        json!({"phase": "Pending", "qosClass": "BestEffort", "conditions": [{"type": "PodScheduled", "status": "False", "lastProbeTime": null,
            "lastTransitionTime": NOW, "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates"}]})
    );
    let mut spread = pod(with(
        json!({"topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway", "matchLabelKeys": ["rev"], "labelSelector": {"matchLabels": {"app": "web"}}}]}),
    ));
    spread.meta.labels.insert("rev".into(), "a1".into());
    assert_eq!(
        created(&POD, &spread).body["spec"]["topologySpreadConstraints"][0]["labelSelector"],
        json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "rev", "operator": "In", "values": ["a1"]}]})
    );
    check(
        with(json!({"ephemeralContainers": [{"name": "d", "image": "d"}]})),
        &["spec.ephemeralContainers: Forbidden: cannot be set on create"],
    );
}

/// A stored pod with two containers and an init container.
fn stored() -> Object {
    created(
        &POD,
        &pod(
            json!({"activeDeadlineSeconds": 100, "tolerations": [{"key": "a", "operator": "Exists"}],
            "initContainers": [{"name": "i", "image": "app/i:1"}],
            "containers": [{"name": "a", "image": "app/a:1"}, {"name": "b", "image": "app/b:1"}]}),
        ),
    )
}

#[test]
fn only_image_deadline_and_tolerations_may_change() {
    const FIXED: &str = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
    const KEPT: &str = "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds";
    type Change = fn(&mut Value);
    // An error that ends with a diff is one text for each added or removed line of it.
    let cases: [(Change, &[&str]); 12] = [
        (|s| s["containers"][0]["image"] = json!("app/a:2"), &[]),
        (|s| s["activeDeadlineSeconds"] = json!(50), &[]),
        (
            |s| {
                s["tolerations"] = json!([{"key": "a", "operator": "Exists"}, {"key": "gpu", "operator": "Exists"}])
            },
            &[],
        ),
        (
            |s| s["activeDeadlineSeconds"] = json!(200),
            &[
                "spec.activeDeadlineSeconds: Invalid value: 200: must be less than or equal to previous value",
            ],
        ),
        (|s| s["tolerations"] = json!([]), &[KEPT]),
        (
            |s| s["containers"][0]["command"] = json!(["sh"]),
            &[
                FIXED,
                r#"-   "Command": null,"#,
                r#"+   "Command": ["#,
                r#"+    "sh""#,
                r#"+   ],"#,
            ],
        ),
        (
            |s| s["restartPolicy"] = json!("Never"),
            &[
                FIXED,
                r#"- "RestartPolicy": "Always","#,
                r#"+ "RestartPolicy": "Never","#,
            ],
        ),
        (
            |s| s["nodeName"] = json!("n1"),
            &[FIXED, r#"- "NodeName": "","#, r#"+ "NodeName": "n1","#],
        ),
        (
            |s| s["hostPID"] = json!(true),
            &[FIXED, r#"-  "HostPID": false,"#, r#"+  "HostPID": true,"#],
        ),
        (
            |s| s["containers"] = json!([s["containers"][0]]),
            &["spec.containers: Forbidden: pod updates may not add or remove containers"],
        ),
        (
            |s| s["initContainers"] = json!([]),
            &["spec.initContainers: Forbidden: pod updates may not add or remove containers"],
        ),
        (
            |s| s["containers"][0]["image"] = json!(""),
            &[
                "spec.containers[0].image: Required value",
                "spec.containers[0].image: Required value",
            ],
        ),
    ];
    for (i, (change, expected)) in cases.into_iter().enumerate() {
        let found = update_refusals(&POD, &stored(), |new| {
            change(new.body.get_mut("spec").expect("a spec"))
        });
        let heads = found.iter().filter_map(|text| text.lines().next());
        let changed = found.iter().flat_map(|text| text.lines().skip(1));
        let printed: Vec<&str> = heads
            .chain(changed.filter(|line| line.starts_with(['-', '+'])))
            .collect();
        assert_eq!(printed, expected, "case {i}");
    }
}

#[test]
fn gated_pod_may_only_become_pickier() {
    let gated = created(
        &POD,
        &pod(with(
            json!({"schedulingGates": [{"name": "g"}], "nodeSelector": {"disk": "ssd"}}),
        )),
    );
    let change = |selector: Value| {
        update_refusals(&POD, &gated, |new| {
            new.section("spec").insert("nodeSelector".into(), selector);
            new.section("spec").remove("schedulingGates");
        })
    };
    assert_eq!(change(json!({"disk": "ssd", "zone": "a"})), [""; 0]);
    assert_eq!(
        change(json!({"zone": "a"})),
        [
            "spec.nodeSelector: Invalid value: {\"zone\":\"a\"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        ]
    );
}

#[test]
fn status_write_keeps_spec_owners_and_class() {
    let old = stored();
    let mut new = old.clone();
    new.section("spec").insert("nodeName".into(), json!("n9"));
    new.meta.labels.insert("x".into(), "y".into());
    new.body.insert(
        "status".into(),
        json!({"phase": "Running", "conditions": [{"type": "bad type", "status": "True"}]}),
    );
    (POD.prepare_status)(&mut new, &old);
    assert_eq!(&new.body["spec"], &old.body["spec"]);
    assert_eq!(&new.meta.labels["x"], &"y".to_owned());
    assert_eq!(new.str_at("status.phase"), "Running");
    assert_eq!(new.str_at("status.qosClass"), "BestEffort");
    let mut out = Vec::new();
    (POD.validate_status)(&new, &old, &mut out);
    assert_eq!(out.len(), 1, "{out:?}");
    assert_eq!(out[0].field, "status.conditions[0].Type");
}

#[test]
fn terminated_container_is_not_reported_as_running() {
    let ended = |policy: &str, code: i64| {
        let mut old = created(&POD, &pod(with(json!({ "restartPolicy": policy }))));
        old.section("status").insert(
            "containerStatuses".into(),
            json!([{"name": "a", "state": {"terminated": {"exitCode": code}}}]),
        );
        let mut new = old.clone();
        new.section("status").insert(
            "containerStatuses".into(),
            json!([{"name": "a", "state": {"running": {}}}]),
        );
        let mut out = Vec::new();
        (POD.validate_status)(&new, &old, &mut out);
        out.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    const REFUSED: &str = "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state";
    assert_eq!(ended("Never", 1), [REFUSED]);
    assert_eq!(ended("OnFailure", 0), [REFUSED]);
    assert_eq!(ended("Always", 0), [""; 0]);
    assert_eq!(ended("OnFailure", 1), [""; 0]);
}

#[test]
fn debugging_containers_are_added_and_never_removed() {
    let old = created(&POD, &pod(one(json!({}))));
    let write = |old: &Object, containers: Value| {
        let mut new = old.clone();
        new.section("spec")
            .insert("ephemeralContainers".into(), containers);
        new.section("spec")
            .insert("nodeName".into(), json!("ignored"));
        (POD.default)(&mut new);
        ephemeral::prepare(&mut new, old);
        let mut out = Vec::new();
        ephemeral::validate_ephemeral_containers(&new, old, &mut out);
        (new, out.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let (debugged, errors) = write(
        &old,
        json!([{"name": "debug", "image": "busybox", "targetContainerName": "a"}]),
    );
    assert_eq!(errors, [""; 0]);
    assert_eq!(debugged.str_at("spec.nodeName"), "");
    assert_eq!(
        debugged.body["spec"]["ephemeralContainers"][0]["imagePullPolicy"].as_str(),
        Some("Always")
    );
    assert_eq!(
        write(&debugged, json!([])).1,
        [
            "spec.ephemeralContainers: Forbidden: existing ephemeral containers \"debug\" may not be removed\n"
        ]
    );
    assert_eq!(
        write(&old, json!([{"name": "bad", "image": "busybox", "targetContainerName": "none", "ports": [{"containerPort": 80}]}])).1,
        [
            "spec.ephemeralContainers[0].targetContainerName: Not found: \"none\"",
            "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
        ]
    );
}

#[test]
fn resize_changes_cpu_and_memory_within_the_class() {
    let resources = json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}});
    let old = created(&POD, &pod(one(json!({ "resources": resources }))));
    let write = |cpu: &str| {
        let mut new = old.clone();
        new.body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(cpu);
        new.body["spec"]["containers"][0]["image"] = json!("other");
        (POD.default)(&mut new);
        resize::prepare(&mut new, &old);
        assert_eq!(
            new.body["spec"]["containers"][0]["image"], "a",
            "everything else is ignored"
        );
        let mut out = Vec::new();
        resize::validate_resize(&new, &old, &mut out);
        out.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(write("150m"), [""; 0]);
    assert_eq!(
        write("1"),
        [
            "spec.containers[0].resources.requests: Invalid value: \"1\": must be less than or equal to cpu limit of 200m"
        ]
    );
    assert_eq!(
        write("200m"),
        [
            "spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing"
        ]
    );
}

#[test]
fn binding_sets_node_and_condition_once() {
    let now = Time::parse("2024-05-01T10:00:00Z").expect("a time");
    let to = |kind: &str, node: &str| {
        object(
            json!({"kind": "Binding", "metadata": {"name": "web"}, "target": {"kind": kind, "name": node}}),
        )
    };
    let mut bound = created(&POD, &pod(with(json!({}))));
    binding::bind(&mut bound, &to("Node", "n1"), now).expect("a free pod");
    assert_eq!(bound.str_at("spec.nodeName"), "n1");
    assert_eq!(
        bound.body["status"]["conditions"],
        json!([{"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": "2024-05-01T10:00:00Z"}])
    );
    let message = |error: bellerophon_apimachinery::error::ApiError| {
        error.to_status()["message"]
            .as_str()
            .expect("a message")
            .to_owned()
    };
    assert_eq!(
        message(binding::bind(&mut bound, &to("Node", "n2"), now).expect_err("bound already")),
        "Operation cannot be fulfilled on pods/binding \"web\": pod web is already assigned to node \"n1\""
    );
    let mut gated = created(
        &POD,
        &pod(with(
            json!({"schedulingGates": [{"name": "example.com/g"}]}),
        )),
    );
    assert_eq!(
        message(binding::bind(&mut gated, &to("Node", "n1"), now).expect_err("gated")),
        "Operation cannot be fulfilled on pods/binding \"web\": pod web has non-empty .spec.schedulingGates"
    );
    assert_eq!(
        message(binding::validate(&to("Pod", "")).expect_err("no node")),
        "[target.kind: Unsupported value: \"Pod\": supported values: \"Node\", \"<empty>\", target.name: Required value]"
    );
}

#[test]
fn questionable_pods_are_accepted_with_warnings() {
    let warnings = |spec: Value| (POD.warnings)(&created(&POD, &pod(spec)), None);
    assert_eq!(
        warnings(one(
            json!({"ports": [{"containerPort": 80}, {"containerPort": 80}]})
        )),
        ["spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]"]
    );
    assert_eq!(
        warnings(one(
            json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}, {"name": "A", "value": "$(A) 3"}]})
        )),
        [
            "spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply"
        ]
    );
    assert_eq!(
        warnings(with(
            json!({"nodeSelector": {"beta.kubernetes.io/os": "linux"}})
        )),
        [
            "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead"
        ]
    );
}

#[test]
fn only_running_pods_get_time_to_end() {
    let grace = |node: &str, phase: &str, requested: Option<i64>| {
        let mut pod = created(&POD, &pod(with(json!({ "nodeName": node }))));
        pod.section("status").insert("phase".into(), json!(phase));
        (POD.grace_period)(&pod, requested)
    };
    assert_eq!(grace("n1", "Running", None), Some(30));
    assert_eq!(grace("n1", "Running", Some(5)), Some(5));
    assert_eq!(grace("n1", "Running", Some(-1)), Some(1));
    assert_eq!(grace("", "Pending", None), Some(0));
    assert_eq!(grace("n1", "Succeeded", None), Some(0));
}
