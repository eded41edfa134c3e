//! The cost of the most expensive bodies: `cargo bench -p bellerophon-apiserver --bench hostile`.
//!
//! Sends bodies that are as expensive as possible to an embedded server in-process, one at a time,
//! each as large as the limits allow. The table shows for each the response, the CPU time, and the
//! growth of the memory of the process. With `-- --write FILE` it also writes the table there.

use std::{fmt::Write as _, fs, io::Write as _, time::Duration};

use bellerophon_apiserver::{ApiServer, ApiService};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The largest body that the server reads.
const BODY_MAX: usize = 3 << 20;

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const APPLY: &str = "application/apply-patch+yaml";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const PODS: &str = "/api/v1/namespaces/default/pods";
const LISTS: &str = "/apis/bench.example/v1/lists";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// As many items as a rule may compare with each other: with more its definition is refused.
const SQUARE_ITEMS: usize = 800;

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let page = runtime.block_on(measure())?;
    std::io::stdout().write_all(page.as_bytes())?;
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(file) = arguments
        .iter()
        .position(|a| a == "--write")
        .and_then(|i| arguments.get(i + 1))
    {
        fs::write(file, page)?;
    }
    Ok(())
}

async fn measure() -> Result<String, Failure> {
    let server = ApiServer::builder().start().await?;
    let client = Client(server.service());
    let squares = definition(
        "squares",
        SQUARE_ITEMS,
        "self.items.all(a, self.items.all(b, a != b || a == b))",
    );
    for (path, object) in [
        (
            CONFIG_MAPS,
            json!({"metadata": {"name": "a"}, "data": {"k": "v"}}),
        ),
        (ACCOUNTS, json!({"metadata": {"name": "default"}})),
        (PODS, pod(1)),
        (DEFINITIONS, squares),
        (DEFINITIONS, keyed_lists()),
        (LISTS, keyed_list()),
    ] {
        let status = client.send(&prepared("POST", path, JSON, object)).await?;
        if status != 201 {
            return Err(format!(
                "what the bodies are about cannot be made: {path} answers {status}"
            )
            .into());
        }
    }
    let mut page =
        String::from("| body | size | answer | time | memory |\n|---|---|---|---|---|\n");
    for (name, request) in requests() {
        let size = request.body.len();
        let before = resident("VmRSS:")?;
        fs::write("/proc/self/clear_refs", "5")?;
        let started = processor_time();
        let status = client.send(&request).await?;
        let spent = processor_time() - started;
        let risen = resident("VmHWM:")?.saturating_sub(before);
        writeln!(
            page,
            "| {name} | {} | {status} | {} ms | {} |",
            kilobytes(size),
            spent.as_millis(),
            kilobytes(risen)
        )?;
    }
    server.shutdown().await;
    Ok(page)
}

/// A request to send.
struct Hostile {
    method: &'static str,
    path: String,
    content_type: &'static str,
    body: Bytes,
}

fn prepared(method: &'static str, path: &str, content_type: &'static str, body: Value) -> Hostile {
    raw(method, path, content_type, body.to_string())
}

fn raw(
    method: &'static str,
    path: &str,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Hostile {
    Hostile {
        method,
        path: path.to_owned(),
        content_type,
        body: body.into(),
    }
}

/// As many pieces as fit between a head and a tail.
fn filled(head: &str, piece: &str, tail: &str) -> String {
    let count = (BODY_MAX - head.len() - tail.len()) / piece.len();
    format!("{head}{}{tail}", piece.repeat(count).trim_end_matches(','))
}

fn requests() -> Vec<(&'static str, Hostile)> {
    let post = |body: String| raw("POST", CONFIG_MAPS, JSON, body);
    let change = |content_type, body: String| {
        raw(
            "PATCH",
            &format!("{CONFIG_MAPS}/a?fieldManager=bench"),
            content_type,
            body,
        )
    };
    let mut all = vec![
        ("JSON, lists nested without end", post("[".repeat(BODY_MAX))),
        (
            "JSON, maps nested without end",
            post(r#"{"a":"#.repeat(BODY_MAX / 5)),
        ),
        (
            "JSON, a list of nothing",
            post(filled(r#"{"metadata":{"name":"x"},"data":["#, "0,", "]}")),
        ),
        (
            "JSON, unknown empty maps",
            post(filled(r#"{"metadata":{"name":"x"},"x":["#, "{},", "]}")),
        ),
        (
            "JSON, one key again and again",
            post(filled(
                r#"{"metadata":{"name":"x"},"data":{"k":"v""#,
                r#","k":"v""#,
                "}}",
            )),
        ),
        ("JSON, small keys", post(many_keys())),
        (
            "YAML, aliases of aliases",
            raw("POST", CONFIG_MAPS, YAML, aliases()),
        ),
        (
            "YAML, lists nested without end",
            raw("POST", CONFIG_MAPS, YAML, "- ".repeat(BODY_MAX / 2)),
        ),
        (
            "YAML, flow lists nested without end",
            raw("POST", CONFIG_MAPS, YAML, "[".repeat(BODY_MAX)),
        ),
        (
            "YAML, small keys",
            raw("POST", CONFIG_MAPS, YAML, many_keys()),
        ),
        (
            "protobuf, an entry of a map again and again",
            raw("POST", CONFIG_MAPS, PROTOBUF, entries()),
        ),
        (
            "JSON patch, a value copied into itself",
            change(JSON_PATCH, copies()),
        ),
        (
            "JSON patch, as many operations as are taken",
            change(JSON_PATCH, operations()),
        ),
        ("merge patch, small keys", change(MERGE, many_keys())),
        (
            "strategic merge patch, small keys",
            change(STRATEGIC, many_keys()),
        ),
        ("apply, small keys", change(APPLY, many_keys())),
        (
            "JSON patch, fields that no operation has",
            change(JSON_PATCH, unknown_fields()),
        ),
        ("object, owner references", post(owner_references())),
        (
            "pod, claims that it does not have",
            prepared("POST", PODS, JSON, claims()),
        ),
        (
            "custom resource, a field beside a long keyed list",
            raw("PATCH", &format!("{LISTS}/l"), MERGE, r#"{"note":"x"}"#),
        ),
        (
            "update of a pod with 3,000 containers, refused with a diff",
            raw("PUT", &format!("{PODS}/p"), JSON, pod(3000).to_string()),
        ),
        (
            "definition, schemas nested in schemas",
            prepared("POST", DEFINITIONS, JSON, nested_schema()),
        ),
        (
            "object, every item against every item by a rule",
            raw("POST", "/apis/bench.example/v1/squares", JSON, squares()),
        ),
    ];
    let rules = [
        ("rule, brackets without end", "(".repeat(100_000)),
        (
            "rule, operands without end",
            format!("{}true", "true && ".repeat(100_000)),
        ),
        (
            "rule, a text that doubles",
            format!(
                "{}size() > 0",
                "'x'".to_owned() + &".replace('x', 'xxxxxxxxxxxxxxxx')".repeat(40) + "."
            ),
        ),
        (
            "rule, loops in loops",
            format!(
                "{}true{}",
                "[1,2,3,4,5,6,7,8,9].all(x, ".repeat(12),
                ")".repeat(12)
            ),
        ),
        (
            "rule, a pattern that backtracks",
            format!(
                "'{}!'.matches('{}$')",
                "a".repeat(10_000),
                "(a|a)*".repeat(20)
            ),
        ),
        (
            "rule, a pattern that grows",
            "'a'.matches('((((a{100}){100}){100}){100})')".to_owned(),
        ),
    ];
    all.extend(rules.map(|(name, rule)| {
        (
            name,
            prepared(
                "POST",
                DEFINITIONS,
                JSON,
                definition("rules", 100_000, &rule),
            ),
        )
    }));
    all
}

fn many_keys() -> String {
    let mut body =
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"v""#
            .to_owned();
    for i in 0.. {
        if body.len() > BODY_MAX - 40 {
            break;
        }
        write!(body, r#","{i}":"""#).expect("a string takes all text");
    }
    body + "}}"
}

/// Nine lists, each of nine times the one before.
fn aliases() -> String {
    let mut body = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..10 {
        writeln!(
            body,
            "a{i}: &a{i} [{}]",
            vec![format!("*a{}", i - 1); 9].join(", ")
        )
        .expect("a string takes all text");
    }
    body
}

/// A ConfigMap of nothing but entries of `data` that all have the same key.
fn entries() -> Vec<u8> {
    let mut body = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12".to_vec();
    let message = b"\x12\x05\x0a\x01k\x12\x00".repeat((BODY_MAX - 100) / 7);
    let mut length = message.len();
    while length >= 0x80 {
        body.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    body.push(length as u8);
    [body, message].concat()
}

fn copies() -> String {
    let copy = json!({"op": "copy", "from": "/data", "path": "/data/k"});
    json!(vec![copy; 40]).to_string()
}

fn operations() -> String {
    let add =
        |i: usize| json!({"op": "add", "path": format!("/data/key-{i}"), "value": "x".repeat(200)});
    json!((0..10_000).map(add).collect::<Vec<_>>()).to_string()
}

fn unknown_fields() -> String {
    let mut body = r#"[{"op":"add","path":"/data","value":{}"#.to_owned();
    for i in 0.. {
        if body.len() > BODY_MAX - 40 {
            break;
        }
        write!(body, r#","u{i}":1"#).expect("a string takes all text");
    }
    body + "}]"
}

/// The last is repeated, so that all before it are looked at.
fn owner_references() -> String {
    let owner = |i: usize| json!({"apiVersion": "v1", "kind": "Pod", "name": format!("p{i}"), "uid": i.to_string()});
    let owners: Vec<Value> = (0..40_000).chain([39_999]).map(owner).collect();
    json!({"metadata": {"name": "owned", "ownerReferences": owners}}).to_string()
}

fn claims() -> Value {
    let names = |prefix: &str| -> Vec<Value> {
        (0..20_000)
            .map(|i| json!({"name": format!("{prefix}{i}"), "resourceClaimName": "x"}))
            .collect()
    };
    let unknown: Vec<Value> = (0..20_000)
        .map(|i| json!({"name": format!("u{i}")}))
        .collect();
    json!({"metadata": {"name": "claims"}, "spec": {"resourceClaims": names("r"),
        "containers": [{"name": "c", "image": "app", "resources": {"claims": unknown}}]}})
}

fn keyed_lists() -> Value {
    let item = json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}});
    let list = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": item});
    schema_definition(
        "lists",
        &json!({"type": "object", "properties": {"note": {"type": "string"}, "items": list}}),
    )
}

fn keyed_list() -> Value {
    let items: Vec<Value> = (0..40_000)
        .map(|i| json!({"k": format!("k{i}"), "v": 1}))
        .collect();
    json!({"apiVersion": "bench.example/v1", "kind": "lists", "metadata": {"name": "l"}, "items": items})
}

fn pod(containers: usize) -> Value {
    let container = |i: usize| json!({"name": format!("c{i}"), "image": "app"});
    json!({"metadata": {"name": "p"}, "spec": {"containers": (0..containers).map(container).collect::<Vec<_>>()}})
}

fn definition(plural: &str, items_max: usize, rule: &str) -> Value {
    let items = json!({"type": "array", "maxItems": items_max, "items": {"type": "integer"}, "x-kubernetes-validations": []});
    schema_definition(
        plural,
        &json!({"type": "object", "properties": {"items": items}, "x-kubernetes-validations": [{"rule": rule}]}),
    )
}

fn schema_definition(plural: &str, schema: &Value) -> Value {
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    json!({"metadata": {"name": format!("{plural}.bench.example")}, "spec": {"group": "bench.example", "scope": "Cluster",
        "names": {"plural": plural, "kind": plural}, "versions": [version]}})
}

fn nested_schema() -> Value {
    let mut schema = json!({"type": "string"});
    for _ in 0..500 {
        schema = json!({"type": "object", "properties": {"a": schema}});
    }
    schema_definition("nested", &schema)
}

fn squares() -> String {
    json!({"apiVersion": "bench.example/v1", "kind": "squares", "metadata": {"name": "s"}, "items": (0..SQUARE_ITEMS).collect::<Vec<_>>()})
        .to_string()
}

struct Client(ApiService);

impl Client {
    /// The status of the answer, which is read to its end.
    async fn send(&self, hostile: &Hostile) -> Result<u16, Failure> {
        let request = Request::builder()
            .method(hostile.method)
            .uri(&hostile.path)
            .header("content-type", hostile.content_type);
        let response = self
            .0
            .clone()
            .oneshot(request.body(Full::new(hostile.body.clone()))?)
            .await?;
        let status = response.status().as_u16();
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            drop(frame?);
        }
        Ok(status)
    }
}

fn kilobytes(bytes: usize) -> String {
    if bytes < 10 << 20 {
        format!("{} kB", bytes >> 10)
    } else {
        format!("{} MB", bytes >> 20)
    }
}

/// What the kernel counts the time of a process in: a hundredth of a second.
const TICK: Duration = Duration::from_millis(10);

/// The time that processors spent on this process, for itself and in the kernel: fields 14 and 15
/// of its status.
fn processor_time() -> Duration {
    let status = fs::read_to_string("/proc/self/stat").expect("the kernel reports every process");
    let (_, behind_name) = status.rsplit_once(')').expect("the name is in brackets");
    let ticks: u32 = behind_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u32>().expect("a number"))
        .sum();
    TICK * ticks
}

/// The resident memory of the process, or its peak since it was last reset.
fn resident(name: &str) -> Result<usize, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .ok_or("the kernel reports no memory")?;
    let kilobytes: usize = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024)
}
