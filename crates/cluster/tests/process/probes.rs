//! Startup, readiness and liveness probes of local processes.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::*;

/// A container that runs the helper, with a readiness probe.
fn helper(name: &str, args: &[&str], readiness: Value) -> Value {
    json!({
        "name": name,
        "image": "helper",
        "args": args,
        "ports": [{"name": "web", "containerPort": 8080}],
        "readinessProbe": every_second(readiness),
    })
}

fn every_second(mut probe: Value) -> Value {
    probe["periodSeconds"] = json!(1);
    probe["timeoutSeconds"] = json!(10);
    probe
}

#[tokio::test]
async fn servers_become_ready_by_http_tcp_and_grpc() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let http = |path: &str| json!({"httpGet": {"port": "web", "path": path}});
        let with_host = json!({"httpGet": {
            "port": 8080, "path": "/host",
            "httpHeaders": [{"name": "Host", "value": "shop.example.com"}],
        }});
        let cases: [(&str, &[&str], Value); 6] = [
            ("http", &["http", "8080"], http("/healthz")),
            ("host", &["http", "8080"], with_host),
            ("redirect", &["http", "8080"], http("/redirect?/status/204")),
            (
                "tcp",
                &["http", "8080"],
                json!({"tcpSocket": {"port": "web"}}),
            ),
            (
                "grpc",
                &["grpc", "9000", "1"],
                json!({"grpc": {"port": 9000}}),
            ),
            (
                "service",
                &["grpc", "9000", "1"],
                json!({"grpc": {"port": 9000, "service": "shop"}}),
            ),
        ];
        for (name, args, probe) in cases {
            let app = helper("app", args, probe);
            cluster.create(name, json!({"containers": [app]})).await;
        }
        for name in ["http", "host", "redirect", "tcp", "grpc", "service"] {
            cluster.until_ready(name).await;
        }
        let pod = cluster.pods().get("host").await.unwrap();
        let lines = cluster.log(&pod, "app", 0);
        let expected = "GET /host shop.example.com";
        assert!(
            lines.iter().any(|(_, line)| line == expected),
            "{tier:?} {lines:?}"
        );
        let pod = cluster.pods().get("redirect").await.unwrap();
        let lines = cluster.log(&pod, "app", 0);
        let followed = lines
            .iter()
            .any(|(_, line)| line.starts_with("GET /status/204 "));
        assert!(followed, "{tier:?} {lines:?}");
        for name in ["http", "host", "redirect", "tcp", "grpc", "service"] {
            cluster.delete(name, 0).await;
        }
        cluster.stop().await;
    }
}

#[tokio::test]
async fn https_is_probed_without_verification() {
    let name = "nobody.example.com".to_owned();
    let certified = rcgen::generate_simple_self_signed(vec![name]).unwrap();
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let probe = json!({"httpGet": {"port": 8443, "scheme": "HTTPS", "path": "/healthz"}});
        let hook = json!({"httpGet": {"port": 8443, "scheme": "HTTPS", "path": "/started"}});
        let mut app = helper("app", &["https", "8443"], probe);
        app["env"] = json!([
            {"name": "TLS_CERT", "value": certified.cert.pem()},
            {"name": "TLS_KEY", "value": certified.signing_key.serialize_pem()},
        ]);
        app["lifecycle"] = json!({"preStop": hook});
        cluster.create("https", json!({"containers": [app]})).await;
        let pod = cluster.until_ready("https").await;
        let lines = cluster.log(&pod, "app", 0);
        let probed = lines
            .iter()
            .any(|(_, line)| line.starts_with("GET /healthz "));
        assert!(probed, "{tier:?} {lines:?}");
        // An HTTPS hook of a server that speaks HTTP is retried without TLS.
        let ready = json!({"tcpSocket": {"port": 8080}});
        let mut plain = helper("app", &["http", "8080"], ready);
        let hook = json!({"httpGet": {"port": 8080, "scheme": "HTTPS", "path": "/stop"}});
        plain["lifecycle"] = json!({"preStop": hook});
        cluster
            .create("plain", json!({"containers": [plain]}))
            .await;
        cluster.until_ready("plain").await;
        cluster.delete("plain", 1).await;
        cluster
            .until_event(
                "plain",
                "LifecycleHTTPFallback",
                "retry with HTTP succeeded",
            )
            .await;
        cluster.until_deleted("plain").await;
        cluster.delete("https", 0).await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn failed_probes_report_the_reason() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let http = |path: &str| json!({"httpGet": {"port": 8080, "path": path}});
        let exec = |script: &str| json!({"exec": {"command": ["sh", "-c", script]}});
        let slow = json!({"exec": {"command": ["sh", "-c", "sleep 1000"]}, "timeoutSeconds": 1});
        let missing = json!({"exec": {"command": ["/no/such/program"]}});
        let cases: [(&str, &[&str], Value, &str, &str); 8] = [
            (
                "status",
                &["http", "8080"],
                http("/status/503"),
                "Unhealthy",
                "Readiness probe failed: HTTP probe failed with statuscode: 503",
            ),
            (
                "grpc",
                &["grpc", "9000", "2"],
                json!({"grpc": {"port": 9000}}),
                "Unhealthy",
                "Readiness probe failed: service unhealthy (responded with \"NOT_SERVING\")",
            ),
            (
                "refused",
                &["http", "8080"],
                json!({"grpc": {"port": 9000}}),
                "Unhealthy",
                "Readiness probe failed: error: failed to connect service at ",
            ),
            (
                "port",
                &["http", "8080"],
                json!({"tcpSocket": {"port": "admin"}}),
                "Unhealthy",
                "Readiness probe errored and resulted in unknown state: \
                 couldn't find port by name admin",
            ),
            (
                "output",
                &["http", "8080"],
                exec("echo not yet; exit 1"),
                "Unhealthy",
                "Readiness probe failed: not yet",
            ),
            (
                "slow",
                &["http", "8080"],
                slow,
                "Unhealthy",
                "command timed out: \"sh -c sleep 1000\" timed out after 1s",
            ),
            (
                "missing",
                &["http", "8080"],
                missing,
                "Unhealthy",
                "Readiness probe errored and resulted in unknown state: ",
            ),
            (
                "elsewhere",
                &["http", "8080"],
                http("/redirect?http://example.com/"),
                "ProbeWarning",
                "Readiness probe warning: Probe terminated redirects, Response body: body",
            ),
        ];
        for (name, args, probe, ..) in &cases {
            let timeout = probe["timeoutSeconds"].clone();
            let mut app = helper("app", args, probe.clone());
            if !timeout.is_null() {
                app["readinessProbe"]["timeoutSeconds"] = timeout;
            }
            cluster.create(name, json!({"containers": [app]})).await;
        }
        for (name, _, _, reason, message) in &cases {
            cluster.until_event(name, reason, message).await;
        }
        for (name, ..) in &cases {
            let pod = cluster.pods().get(name).await.unwrap();
            assert_eq!(
                has_condition(&pod, "Ready"),
                *name == "elsewhere",
                "{tier:?} {name}"
            );
            cluster.delete(name, 0).await;
        }
        cluster.stop().await;
    }
}

#[tokio::test]
async fn failed_liveness_restarts_with_the_grace_period_of_the_probe() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        // Healthy for the first probe of each run, and ignores SIGTERM.
        let script = "trap '' TERM; rm -f $DIR/probed; while :; do sleep 0.05; done";
        let probe = "test ! -e $DIR/probed || exit 1; touch $DIR/probed";
        let liveness = json!({
            "exec": {"command": ["sh", "-c", probe]},
            "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 10,
            "terminationGracePeriodSeconds": 1,
        });
        let spec = json!({
            "terminationGracePeriodSeconds": 600,
            "containers": [sh("app", script, json!({"livenessProbe": liveness}))],
        });
        cluster.create("sick", spec).await;
        let started = Instant::now();
        let is_restarted = |pod: &_| restarts(pod, "app") >= 1;
        let pod = cluster
            .until("sick", "it was restarted", is_restarted)
            .await;
        assert!(started.elapsed() < Duration::from_secs(120), "{tier:?}");
        let last = container(&pod, "app").and_then(|status| status.last_state.clone());
        let last = last.and_then(|state| state.terminated).unwrap();
        assert_eq!(last.exit_code, 137, "{tier:?}");
        let message = "Container app failed liveness probe, will be restarted";
        cluster.until_event("sick", "Killing", message).await;
        cluster.delete("sick", 0).await;
        cluster.until_no_process(&pod).await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn readiness_is_probed_after_startup() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let file =
            |name: &str| json!({"exec": {"command": ["test", "-e", format!("$(DIR)/{name}")]}});
        let mut startup = every_second(file("started"));
        startup["failureThreshold"] = json!(1000);
        let probes = json!({
            "startupProbe": startup,
            "readinessProbe": every_second(file("ready")),
        });
        std::fs::write(cluster.dir.path().join("ready"), "").unwrap();
        cluster
            .create(
                "slow",
                json!({"containers": [sh("app", "sleep 1000; true", probes)]}),
            )
            .await;
        cluster
            .until_event("slow", "Unhealthy", "Startup probe failed")
            .await;
        let pod = cluster.pods().get("slow").await.unwrap();
        let status = container(&pod, "app").unwrap();
        assert_eq!(status.started, Some(false), "{tier:?}");
        assert!(!status.ready, "{tier:?}");
        std::fs::write(cluster.dir.path().join("started"), "").unwrap();
        let pod = cluster.until_ready("slow").await;
        assert_eq!(
            container(&pod, "app").unwrap().started,
            Some(true),
            "{tier:?}"
        );
        std::fs::remove_file(cluster.dir.path().join("ready")).unwrap();
        let is_unready = |pod: &_| condition(pod, "Ready") == Some("False");
        let pod = cluster.until("slow", "it is not ready", is_unready).await;
        assert_eq!(restarts(&pod, "app"), 0, "{tier:?}");
        cluster.delete("slow", 0).await;
        cluster.stop().await;
    }
}
