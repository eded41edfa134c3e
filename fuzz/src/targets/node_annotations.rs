//! The reboot operator's annotations of a Node: one value on each line, the reason of the request
//! behind them.

use bellerophon_reboot::{
    AnnotationPrefix, CORDONED, IN_PROGRESS, LAST, LEDGER, NEEDED, NOW, PAUSED, RebootLedger,
    WAITING,
    commands::{CommandError, RebootCommands},
};
use http::{HeaderMap, HeaderValue, Method, header};
use jiff::Timestamp;
use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use super::{
    Outcome, first_line,
    server::{Server, with_server},
};

const NODES: &str = "/api/v1/nodes";
const NODE: &str = "/api/v1/nodes/a";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const APPLY: HeaderValue = HeaderValue::from_static("application/apply-patch+yaml");
const LEDGERS: &str = "/apis/reboot.bellerophon.io/v1alpha1/rebootledgers";

/// The longest annotations of an input. A Node has 256 KiB, of which a release needs a part.
const ANNOTATIONS_MAX_BYTES: usize = 255 << 10;

/// The annotations of the lines of an input.
const LINES: [&str; 6] = [NOW, IN_PROGRESS, CORDONED, LAST, WAITING, PAUSED];

/// Whatever the annotations of a Node are, its status is reported in one line, and its slot can be
/// released.
pub(super) fn node_annotations(data: &[u8]) -> Outcome {
    let mut annotations = serde_json::Map::new();
    let mut rest = data;
    for name in LINES {
        let (line, behind) = first_line(rest);
        rest = behind;
        if !line.is_empty() {
            annotations.insert(name.to_owned(), text(line));
        }
    }
    if !rest.is_empty() {
        annotations.insert(NEEDED.to_owned(), text(rest));
    }
    let bytes: usize = annotations
        .iter()
        .map(|(name, value)| name.len() + value.as_str().map_or(0, str::len))
        .sum();
    if bytes > ANNOTATIONS_MAX_BYTES {
        return Outcome::of(&["too long"]);
    }
    with_server(|server| {
        let Some(uid) = write_node(server, annotations) else {
            return Outcome::of(&["rejected"]);
        };
        write_ledger(server, &uid);
        server.runtime.block_on(async {
            let commands = RebootCommands::new(server.server.client(), AnnotationPrefix::default());
            let status = commands.status().await.expect("the nodes are listed");
            assert_eq!(status.len(), 1, "{status:?}");
            assert!(status[0].holds_slot, "{status:?}");
            let is_printable = !status[0].reason.contains(char::is_control);
            assert!(is_printable, "{status:?}");
            match commands.release("a", Timestamp::UNIX_EPOCH).await {
                Ok(()) => {}
                Err(error @ CommandError::Api(_)) => panic!("{error}"),
                Err(error) => panic!("the slot is not released: {error}"),
            }
            let released = commands.status().await.expect("the nodes are listed");
            assert!(!released[0].holds_slot, "{released:?}");
            let last = status[0].last.as_ref().map_or("", |(result, _)| result);
            Outcome::of(&[status[0].state, &status[0].reason, last])
        })
    })
}

fn text(bytes: &[u8]) -> Value {
    Value::String(String::from_utf8_lossy(bytes).into_owned())
}

/// Creates or replaces the Node, and returns its UID; `None` if the server rejects it.
fn write_node(server: &Server, annotations: serde_json::Map<String, Value>) -> Option<String> {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "a", "annotations": annotations},
    });
    let get = server.send(&Method::GET, NODE, &HeaderMap::new(), "")?;
    if get.status == 404 {
        server.create(NODES, &json!({"metadata": {"name": "a"}}));
        server.create(CRDS, &crd());
    }
    let put = server.send(&Method::PUT, NODE, &HeaderMap::new(), node.to_string())?;
    let is_stored = put.status == 200;
    is_stored.then(|| put.json()["metadata"]["uid"].as_str().map(str::to_owned))?
}

fn crd() -> Value {
    serde_json::to_value(RebootLedger::crd()).expect("a CRD is JSON")
}

/// Applies the ledger: it has a grant of the Node.
fn write_ledger(server: &Server, uid: &str) {
    let grant = json!({
        "id": "g-1", "node": "a", "nodeUid": uid, "bootId": "b-1", "reason": "kernel",
        "grantedAt": "2024-05-06T07:08:09Z", "expiresAt": "2024-05-06T08:08:09Z",
        "backBy": "2024-05-06T09:08:09Z",
    });
    let ledger = json!({
        "apiVersion": "reboot.bellerophon.io/v1alpha1", "kind": "RebootLedger",
        "metadata": {"name": LEDGER}, "spec": {"issued": 1, "grants": [grant]},
    });
    let path = format!("{LEDGERS}/{LEDGER}?fieldManager=fuzz&force=true");
    let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, APPLY)]);
    let applied = server.send(&Method::PATCH, &path, &headers, ledger.to_string());
    let applied = applied.expect("a valid path");
    assert!(applied.status.is_success(), "{:?}", applied.body);
}
