//! Nodes and their pods in a full cluster: get, describe, cordon, drain, top.

use crate::kubectl::{Kubectl, KubectlTest, Setup, assert_in_order};

/// The tests of this file.
pub(crate) fn tests() -> Vec<KubectlTest> {
    vec![
        KubectlTest::new(Setup::Cluster, pods_and_nodes_are_listed_with_addresses),
        KubectlTest::new(Setup::Cluster, describe_pod_lists_its_events_in_order),
        KubectlTest::new(Setup::Cluster, describe_replica_set_lists_an_event_per_pod),
        KubectlTest::new(
            Setup::Cluster,
            drained_node_runs_no_pods_until_it_is_uncordoned,
        ),
        KubectlTest::new(Setup::Cluster, drain_respects_disruption_budgets),
        KubectlTest::new(
            Setup::Cluster,
            commands_in_simulated_pods_are_refused_with_a_reason,
        ),
        KubectlTest::new(Setup::Cluster, top_shows_the_usage_of_nodes_and_pods),
        KubectlTest::new(Setup::Cluster, logs_are_those_of_the_annotation),
        KubectlTest::new(Setup::Cluster, power_annotation_reboots_a_node),
    ]
}

/// Applies the sample Deployment, and waits for its rollout.
fn deploy(kubectl: &Kubectl, replicas: usize) {
    kubectl.run("apply -f deployment.yaml");
    kubectl.run(&format!("scale deployment stable --replicas={replicas}"));
    kubectl.run("rollout status deployment stable --timeout=60s");
}

/// The names of the sample's pods on a node.
fn pods_on(kubectl: &Kubectl, node: &str) -> Vec<String> {
    let line = format!("get pods -l app=stable --field-selector=spec.nodeName={node} -o name");
    kubectl.run(&line).lines().map(str::to_owned).collect()
}

fn pods_and_nodes_are_listed_with_addresses(kubectl: &Kubectl) {
    deploy(kubectl, 3);
    let table = kubectl.table("get pods -o wide --sort-by=.spec.nodeName");
    assert_eq!(
        table[0],
        "NAME READY STATUS RESTARTS AGE IP NODE NOMINATED NODE READINESS GATES"
    );
    let mut nodes: Vec<_> = table[1..]
        .iter()
        .filter_map(|row| row.split(' ').nth(6))
        .collect();
    nodes.dedup();
    assert_eq!(nodes, ["node-1", "node-2", "node-3"], "{table:#?}");
    for (row, range) in table[1..]
        .iter()
        .zip(["10.128.1.", "10.128.2.", "10.128.3."])
    {
        assert!(row.contains(" 1/1 Running 0 "), "{row}");
        assert!(row.contains(&format!(" {range}")), "{row}");
        assert!(row.ends_with(" <none> <none>"), "{row}");
    }
    let nodes = kubectl.table("get nodes -o wide");
    assert!(nodes[1].starts_with("node-1 Ready <none> "), "{nodes:#?}");
    assert!(
        nodes[1].contains(" v1.36.4 172.16.0.1 <none> "),
        "{nodes:#?}"
    );
}

fn describe_pod_lists_its_events_in_order(kubectl: &Kubectl) {
    deploy(kubectl, 1);
    let name = kubectl.run("get pods -l app=stable -o name");
    let node = kubectl.run(&format!("get {name} -o jsonpath={{.spec.nodeName}}"));
    let described = kubectl.run(&format!("describe {name}"));
    assert_in_order(
        &described,
        &[
            &format!("Node: {node}/172.16.0."),
            "Status: Running",
            "Controlled By: ReplicaSet/stable-",
            "State: Running Started:",
            "Ready: True Restart Count: 0",
            "Initialized True Ready True ContainersReady True PodScheduled True",
            "Events:",
            "Normal Scheduled",
            &format!(
                "default-scheduler Successfully assigned default/{} to {node}",
                name.trim_start_matches("pod/")
            ),
            "Normal Pulled",
            "kubelet Container image \"registry.example/pegasus:1\" already present on machine",
            "Normal Created",
            "Normal Started",
        ],
    );
    assert!(!described.contains("Warning"), "{described}");
    let sources = kubectl.table("get events -o wide --field-selector=reason=Started");
    assert!(
        sources[1].contains(&format!(" kubelet, {node} ")),
        "{sources:#?}"
    );
}

fn describe_replica_set_lists_an_event_per_pod(kubectl: &Kubectl) {
    deploy(kubectl, 4);
    let described = kubectl.run("describe replicasets -l app=stable");
    assert_in_order(
        &described,
        &[
            "Replicas: 4 current / 4 desired",
            "Pods Status: 4 Running / 0 Waiting / 0 Succeeded / 0 Failed",
        ],
    );
    assert_eq!(
        described.matches("Created pod: stable-").count(),
        4,
        "{described}"
    );
    let described = kubectl.run("describe deployment stable");
    assert_in_order(
        &described,
        &[
            "4 desired | 4 updated | 4 total | 4 available | 0 unavailable",
            "Scaled up replica set",
            "from 0 to 1",
        ],
    );
    assert_in_order(
        &described,
        &[
            "Available True MinimumReplicasAvailable",
            "NewReplicaSet: stable-",
            "(4/4 replicas created)",
        ],
    );
    assert!(described.contains("from 1 to 4"), "{described}");
}

fn drained_node_runs_no_pods_until_it_is_uncordoned(kubectl: &Kubectl) {
    deploy(kubectl, 6);
    assert!(!pods_on(kubectl, "node-1").is_empty(), "pods are spread");
    kubectl.check(&[
        ("cordon node-1", "node/node-1 cordoned"),
        ("cordon node-1", "node/node-1 already cordoned"),
    ]);
    assert!(kubectl.table("get node node-1")[1].starts_with("node-1 Ready,SchedulingDisabled "));
    let drained = kubectl.run("drain node-1 --ignore-daemonsets --timeout=60s");
    assert!(
        drained
            .lines()
            .last()
            .is_some_and(|line| line == "node/node-1 drained" || line == "node/node-1 evicted"),
        "{drained}"
    );
    assert_eq!(pods_on(kubectl, "node-1"), [""; 0]);
    kubectl.run("rollout status deployment stable --timeout=60s");
    let described = kubectl.run("describe node node-1");
    assert_in_order(
        &described,
        &[
            "Taints: node.kubernetes.io/unschedulable:NoSchedule",
            "Unschedulable: true",
            "HolderIdentity: node-1",
            "Ready True",
            "KubeletReady kubelet is posting ready status",
            "Non-terminated Pods: (0 in total)",
            "Events:",
            "kubelet Starting kubelet.",
            "kubelet Node node-1 status is now: NodeReady",
            "kubelet Node node-1 status is now: NodeNotSchedulable",
        ],
    );
    kubectl.check(&[("uncordon node-1", "node/node-1 uncordoned")]);
    kubectl.run("scale deployment stable --replicas=9");
    kubectl.run("rollout status deployment stable --timeout=60s");
    assert!(
        !pods_on(kubectl, "node-1").is_empty(),
        "pods are scheduled on it again"
    );
}

fn drain_respects_disruption_budgets(kubectl: &Kubectl) {
    deploy(kubectl, 3);
    kubectl.run("create poddisruptionbudget stable --selector=app=stable --min-available=3");
    kubectl.wait_until(
        "get poddisruptionbudget stable -o jsonpath={.status.currentHealthy}",
        "3",
    );
    let error = kubectl.run_failing("drain node-1 --timeout=2s");
    assert!(
        error.contains("Cannot evict pod as it would violate the pod's disruption budget."),
        "{error}"
    );
    assert_eq!(pods_on(kubectl, "node-1").len(), 1);
}

fn commands_in_simulated_pods_are_refused_with_a_reason(kubectl: &Kubectl) {
    deploy(kubectl, 1);
    let name = kubectl.run("get pods -l app=stable -o name");
    for line in [
        format!("logs {name}"),
        format!("exec {name} -- ls"),
        format!("attach {name}"),
        format!("port-forward {name} :80"),
    ] {
        let error = kubectl.run_failing(&line);
        assert!(
            error.contains("pods on simulated nodes run no processes"),
            "kubectl {line}\n{error}"
        );
        assert!(
            error.contains("`bellerophon up --runtime process`"),
            "kubectl {line}\n{error}"
        );
    }
}

fn top_shows_the_usage_of_nodes_and_pods(kubectl: &Kubectl) {
    let file = kubectl.write(
        "pod.json",
        r#"{
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web", "labels": {"app": "web"},
                "annotations": {"sim.bellerophon.io/memory-usage.proxy": "8Mi"}
            },
            "spec": {"nodeName": "node-2", "containers": [
                {"name": "app", "image": "i",
                 "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}}},
                {"name": "proxy", "image": "i"}
            ]}
        }"#,
    );
    kubectl.run(&format!("apply -f {file}"));
    kubectl.run("wait --for=condition=Ready pod/web --timeout=60s");
    let pods = kubectl.table("top pods");
    assert_eq!(pods, ["NAME CPU(cores) MEMORY(bytes)", "web 250m 72Mi"]);
    let containers = kubectl.table("top pod web --containers");
    assert_eq!(containers[1..], ["web app 250m 64Mi", "web proxy 0m 8Mi"]);
    assert_eq!(kubectl.run("top pods -l app=other"), "");
    let nodes = kubectl.table("top nodes --sort-by=cpu");
    assert_eq!(nodes.len(), 4, "{nodes:#?}");
    assert!(nodes[1].starts_with("node-2 250m 0% 72Mi 0%"), "{nodes:#?}");
    let table = kubectl.table("get pods.metrics.k8s.io");
    assert_eq!(table, ["NAME CPU MEMORY WINDOW", "web 250m 72Mi 15s"]);
    let service = kubectl.table("get apiservice v1beta1.metrics.k8s.io");
    assert!(
        service[1].starts_with("v1beta1.metrics.k8s.io kube-system/metrics-server True "),
        "{service:#?}"
    );
}

fn logs_are_those_of_the_annotation(kubectl: &Kubectl) {
    let file = kubectl.write(
        "pod.json",
        r#"{
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web",
                "annotations": {
                    "sim.bellerophon.io/log": "one\ntwo\nthree",
                    "sim.bellerophon.io/log.proxy": "listening"
                }
            },
            "spec": {"containers": [
                {"name": "app", "image": "i"}, {"name": "proxy", "image": "i"}
            ]}
        }"#,
    );
    kubectl.run(&format!("apply -f {file}"));
    kubectl.run("wait --for=condition=Ready pod/web --timeout=60s");
    kubectl.check(&[
        ("logs web -c app", "one\ntwo\nthree"),
        ("logs web -c proxy", "listening"),
        ("logs web -c app --tail=1", "three"),
        ("logs web -c app --limit-bytes=5", "one\nt"),
    ]);
    let error = kubectl.run_failing("logs web -c app --previous");
    assert!(
        error.contains("previous terminated container \"app\" in pod \"web\" not found"),
        "{error}"
    );
    let error = kubectl.run_failing("logs web -c other");
    assert!(
        error.contains("container other is not valid for pod web"),
        "{error}"
    );
}

fn power_annotation_reboots_a_node(kubectl: &Kubectl) {
    deploy(kubectl, 3);
    let boot_id = || kubectl.run("get node node-2 -o jsonpath={.status.nodeInfo.bootID}");
    let before = boot_id();
    kubectl.run("annotate node node-2 sim.bellerophon.io/power=off");
    kubectl.run("annotate node node-2 sim.bellerophon.io/power-");
    let name = pods_on(kubectl, "node-2").remove(0);
    let state = "{.status.containerStatuses[0].restartCount}/{.status.containerStatuses[0].ready}";
    kubectl.wait_until(&format!("get {name} -o jsonpath={state}"), "1/true");
    assert_ne!(boot_id(), before);
    let table = kubectl.table(&format!("get {name}"));
    assert!(table[1].contains(" 1/1 Running 1 "), "{table:#?}");
    let events =
        kubectl.run("get events --field-selector=involvedObject.kind=Node,reason=Rebooted");
    assert!(
        events.contains("Node node-2 has been rebooted, boot id: "),
        "{events}"
    );
}
