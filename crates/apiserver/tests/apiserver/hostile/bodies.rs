//! Bodies that are too large, too deep, no text, or larger inside than outside.

use serde_json::{Value, json};

use super::peer::Target;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";

/// A custom resource that keeps whatever it is given.
async fn with_anything() -> Target {
    let target = Target::start().await;
    let definition = json!({"metadata": {"name": "things.example.dev"}, "spec": {
        "group": "example.dev", "scope": "Cluster", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        }}}],
    }});
    let path = "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let made = target
        .request(path, JSON, definition.to_string().as_bytes())
        .await;
    assert_eq!(made.code, 201, "{made:?}");
    target
}

const THINGS: &str = "/apis/example.dev/v1/things";

fn thing(name: &str, rest: &str) -> String {
    format!(
        r#"{{"apiVersion":"example.dev/v1","kind":"Thing","metadata":{{"name":"{name}"}},"x":{rest}}}"#
    )
}

fn nested(depth: usize) -> String {
    format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth))
}

#[tokio::test]
async fn broken_bodies_are_refused() {
    let target = Target::start().await;
    let laughs: String = (1..12)
        .map(|i| {
            format!(
                "a{i}: &a{i} [{}]\n",
                vec![format!("*a{}", i - 1); 12].join(",")
            )
        })
        .collect();
    let anchored: String = (0..250)
        .map(|i| format!("&a{i} ["))
        .chain(["1,".repeat(300_000)])
        .chain(["]".repeat(250)])
        .collect();
    let repeated: String = (0..100_000)
        .map(|i| format!(r#""k{}":"v","#, i % 7))
        .collect();
    let wide: String = (0..200_000).map(|i| format!(r#""k{i}":1,"#)).collect();
    for (what, content_type, body, code) in [
        ("nothing", JSON, Vec::new(), 400),
        ("white space", JSON, b" \n\t ".to_vec(), 400),
        ("null", JSON, b"null".to_vec(), 422),
        ("a list", JSON, b"[]".to_vec(), 400),
        ("half", JSON, br#"{"metadata":{"name":"#.to_vec(), 400),
        (
            "two",
            JSON,
            br#"{"metadata":{"name":"a"}}{"metadata":{"name":"b"}}"#.to_vec(),
            400,
        ),
        (
            "invalid UTF-8",
            JSON,
            b"{\"metadata\":{\"name\":\"\xff\xfe\"}}".to_vec(),
            422,
        ),
        (
            "lone surrogate",
            JSON,
            br#"{"metadata":{"name":"\ud800"}}"#.to_vec(),
            422,
        ),
        (
            "NUL",
            JSON,
            b"{\"metadata\":{\"name\":\"a\0b\"}}".to_vec(),
            400,
        ),
        (
            "escaped NUL",
            JSON,
            br#"{"metadata":{"name":"a\u0000b"}}"#.to_vec(),
            422,
        ),
        ("byte order mark", JSON, b"\xef\xbb\xbf{}".to_vec(), 400),
        ("deep list", JSON, b"[".repeat(1_000_000), 400),
        ("deep object", JSON, nested(100_000).into_bytes(), 400),
        (
            "deep annotation",
            JSON,
            format!(
                r#"{{"metadata":{{"name":"a","annotations":{}}}}}"#,
                nested(5_000)
            )
            .into_bytes(),
            400,
        ),
        (
            "long number",
            JSON,
            format!(
                r#"{{"metadata":{{"name":"a","generation":{}}}}}"#,
                "9".repeat(1_000_000)
            )
            .into_bytes(),
            400,
        ),
        (
            "huge exponent",
            JSON,
            br#"{"metadata":{"name":"a","generation":1e999999999}}"#.to_vec(),
            400,
        ),
        (
            "repeated keys",
            JSON,
            format!(r#"{{"metadata":{{"name":"a b"}},"data":{{{repeated}"z":"v"}}}}"#).into_bytes(),
            422,
        ),
        (
            "unknown keys",
            JSON,
            format!(r#"{{"metadata":{{"name":"a b"}},{wide}"z":1}}"#).into_bytes(),
            422,
        ),
        (
            "aliases in aliases",
            YAML,
            format!("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n{laughs}").into_bytes(),
            400,
        ),
        (
            "anchors in anchors",
            YAML,
            anchored.clone().into_bytes(),
            400,
        ),
        ("alias of itself", YAML, b"a: &a [*a]\n".to_vec(), 400),
        ("unknown alias", YAML, b"a: *b\n".to_vec(), 400),
        ("deep flow", YAML, b"[".repeat(500_000), 400),
        (
            "deep blocks",
            YAML,
            (0..2_000)
                .map(|i| format!("{}a:\n", " ".repeat(i)))
                .collect::<String>()
                .into_bytes(),
            400,
        ),
        ("deep dashes", YAML, b"- ".repeat(100_000), 400),
        (
            "tags",
            YAML,
            b"!!python/object/apply:os.system ['true']".to_vec(),
            400,
        ),
        ("tabs and colons", YAML, b"\t:\t:\t:\n".repeat(1_000), 400),
        (
            "merge keys",
            YAML,
            b"a: &a {b: 1}\nc:\n  <<: [*a, *a]\n  <<: *a\n".to_vec(),
            422,
        ),
        (
            "invalid UTF-8 YAML",
            YAML,
            b"metadata: {name: \xff}\n".to_vec(),
            400,
        ),
        (
            "protobuf noise",
            "application/vnd.kubernetes.protobuf",
            b"k8s\0\xff\xff\xff\xff\xff\xff\xff\xff\xff".to_vec(),
            400,
        ),
        (
            "protobuf without its mark",
            "application/vnd.kubernetes.protobuf",
            b"{}".to_vec(),
            400,
        ),
        (
            "CBOR",
            "application/cbor",
            b"\xd9\xd9\xf7\x9f\x9f\x9f".to_vec(),
            415,
        ),
        ("no type at all", ";;;", b"{}".to_vec(), 422),
        (
            "form",
            "application/x-www-form-urlencoded",
            b"a=b".to_vec(),
            415,
        ),
    ] {
        let answer = target
            .request(&format!("POST {CONFIG_MAPS}"), content_type, &body)
            .await;
        assert_eq!(answer.code, code, "{what}: {:.300}", answer.body);
        assert!(answer.is_clean(), "{what}: {:.300}", answer.body);
    }
    target.must_be_well().await;
}

#[tokio::test]
async fn large_bodies_are_refused_before_they_are_read() {
    let target = Target::start().await;
    let padding = "x".repeat(3 * 1024 * 1024);
    let body = format!(r#"{{"metadata":{{"name":"a"}},"data":{{"k":"{padding}"}}}}"#);
    let answer = target
        .request(&format!("POST {CONFIG_MAPS}"), JSON, body.as_bytes())
        .await;
    assert_eq!(answer.code, 413, "{answer:?}");
    assert!(answer.is_clean(), "{}", answer.body);

    let mut chunked = format!(
        "POST {CONFIG_MAPS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: {JSON}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n",
        target.token
    )
    .into_bytes();
    for _ in 0..8 {
        chunked.extend_from_slice(b"100000\r\n");
        chunked.extend_from_slice(&b" ".repeat(0x10_0000));
        chunked.extend_from_slice(b"\r\n");
    }
    let answer = target.send(&chunked).await;
    assert!(
        [0, 413].contains(&answer.code) && answer.is_clean(),
        "{answer:?}"
    );
    target.must_be_well().await;
}

#[tokio::test]
async fn objects_up_to_250_levels_are_stored_and_deeper_ones_refused() {
    let target = with_anything().await;
    for (depth, code) in [
        (60, 201),
        (120, 201),
        (127, 201),
        (128, 201),
        (200, 201),
        (250, 201),
        (300, 400),
        (10_000, 400),
    ] {
        let name = format!("d{depth}");
        let made = target
            .request(
                &format!("POST {THINGS}"),
                JSON,
                thing(&name, &nested(depth)).as_bytes(),
            )
            .await;
        assert_eq!(made.code, code, "{depth}: {:.300}", made.body);
        assert!(made.is_clean(), "{depth}: {:.300}", made.body);
        if code == 201 {
            for (line, content_type, body) in [
                (format!("GET {THINGS}/{name}"), "", ""),
                (
                    format!("PATCH {THINGS}/{name}"),
                    "application/merge-patch+json",
                    r#"{"y":1}"#,
                ),
                (
                    format!("PATCH {THINGS}/{name}"),
                    "application/json-patch+json",
                    r#"[{"op":"add","path":"/z","value":1}]"#,
                ),
                (format!("GET {THINGS}"), "", ""),
                (format!("DELETE {THINGS}/{name}"), "", ""),
            ] {
                let answer = target.request(&line, content_type, body.as_bytes()).await;
                assert_eq!(
                    answer.code, 200,
                    "{line} at depth {depth}: {:.300}",
                    answer.body
                );
            }
        }
    }
    target.must_be_well().await;
}

#[tokio::test]
async fn patches_do_not_explode() {
    let target = with_anything().await;
    let made = target
        .request(
            &format!("POST {THINGS}"),
            JSON,
            thing("t", r#"{"a":{"b":["c"]}}"#).as_bytes(),
        )
        .await;
    assert_eq!(made.code, 201, "{made:?}");
    let doubling: Vec<Value> = (0..60)
        .map(|i| json!({"op": "copy", "from": "/x", "path": format!("/x/n{i}")}))
        .collect();
    let many = vec![json!({"op": "test", "path": "/none", "value": null}); 10_001];
    // Every round moves the object one level deeper.
    let burying: Vec<Value> = (0..3_300)
        .flat_map(|_| {
            [
                json!({"op": "add", "path": "/y", "value": {}}),
                json!({"op": "move", "from": "/x", "path": "/y/x"}),
                json!({"op": "move", "from": "/y", "path": "/x"}),
            ]
        })
        .collect();
    let far = format!("/x{}", "/a".repeat(100_000));
    for (what, content_type, patch, code) in [
        (
            "copies of copies",
            "application/json-patch+json",
            json!(doubling).to_string(),
            422,
        ),
        (
            "too many operations",
            "application/json-patch+json",
            json!(many).to_string(),
            413,
        ),
        (
            "ever deeper",
            "application/json-patch+json",
            json!(burying).to_string(),
            422,
        ),
        (
            "long pointer",
            "application/json-patch+json",
            json!([{"op": "add", "path": far, "value": 1}]).to_string(),
            422,
        ),
        (
            "root gone",
            "application/json-patch+json",
            r#"[{"op":"remove","path":""}]"#.into(),
            422,
        ),
        (
            "root replaced",
            "application/json-patch+json",
            r#"[{"op":"replace","path":"","value":5}]"#.into(),
            422,
        ),
        (
            "root moved into itself",
            "application/json-patch+json",
            r#"[{"op":"move","from":"/x","path":"/x/a/b"}]"#.into(),
            422,
        ),
        (
            "metadata gone",
            "application/json-patch+json",
            r#"[{"op":"remove","path":"/metadata"}]"#.into(),
            400,
        ),
        (
            "kind gone",
            "application/json-patch+json",
            r#"[{"op":"remove","path":"/kind"}]"#.into(),
            422,
        ),
        (
            "odd indices",
            "application/json-patch+json",
            r#"[{"op":"add","path":"/x/a/b/-9223372036854775808","value":1}]"#.into(),
            422,
        ),
        (
            "huge index",
            "application/json-patch+json",
            r#"[{"op":"add","path":"/x/a/b/99999999999999999999","value":1}]"#.into(),
            422,
        ),
        (
            "deep merge",
            "application/merge-patch+json",
            nested(50_000),
            400,
        ),
        (
            "merge of a list",
            "application/merge-patch+json",
            "[1]".into(),
            400,
        ),
        (
            "merge of null",
            "application/merge-patch+json",
            "null".into(),
            400,
        ),
        (
            "merge that empties",
            "application/merge-patch+json",
            r#"{"metadata":null,"kind":null,"apiVersion":null}"#.into(),
            422,
        ),
    ] {
        let answer = target
            .request(&format!("PATCH {THINGS}/t"), content_type, patch.as_bytes())
            .await;
        assert_eq!(answer.code, code, "{what}: {:.300}", answer.body);
        assert!(answer.is_clean(), "{what}: {:.300}", answer.body);
    }
    target.must_be_well().await;
}

#[tokio::test]
async fn definitions_cannot_hold_bombs() {
    let target = Target::start().await;
    let define = |schema: Value| {
        json!({"metadata": {"name": "bombs.example.dev"}, "spec": {
            "group": "example.dev", "scope": "Cluster", "names": {"plural": "bombs", "kind": "Bomb"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        }})
    };
    let pattern = |pattern: &str| {
        define(
            json!({"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}),
        )
    };
    let deep = (0..110).fold(
        json!({"type": "string"}),
        |inner, _| json!({"type": "object", "properties": {"a": inner}}),
    );
    let wide: Value = (0..5_000)
        .map(|i| (format!("p{i}"), json!({"type": "string"})))
        .collect();
    for (what, definition, code, bomb_code) in [
        (
            "repetition of repetitions",
            pattern("((a{1000}){1000}){1000}"),
            422,
            None,
        ),
        ("backtracking", pattern("^(a+)+$"), 201, Some(422)),
        ("deep schema", define(deep), 422, None),
        (
            "wide schema",
            define(json!({"type": "object", "properties": wide})),
            201,
            Some(201),
        ),
        (
            "reference to itself",
            define(json!({"type": "object", "$ref": "#"})),
            422,
            None,
        ),
        ("schema of another type", define(json!([1, 2])), 400, None),
        (
            "endless bounds",
            define(
                json!({"type": "object", "maxProperties": 9_223_372_036_854_775_807i64, "minProperties": -1}),
            ),
            201,
            Some(201),
        ),
    ] {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let made = target
            .request(
                &format!("POST {path}"),
                JSON,
                definition.to_string().as_bytes(),
            )
            .await;
        assert_eq!(made.code, code, "{what}: {:.300}", made.body);
        assert!(made.is_clean(), "{what}: {:.300}", made.body);
        if let Some(bomb_code) = bomb_code {
            let bomb = json!({"apiVersion": "example.dev/v1", "kind": "Bomb", "metadata": {"name": "b"}, "a": format!("{}!", "a".repeat(50_000))});
            let answer = target
                .request(
                    "POST /apis/example.dev/v1/bombs",
                    JSON,
                    bomb.to_string().as_bytes(),
                )
                .await;
            assert_eq!(answer.code, bomb_code, "{what}: {:.300}", answer.body);
            assert!(answer.is_clean(), "{what}: {:.300}", answer.body);
            let gone = target
                .request(&format!("DELETE {path}/bombs.example.dev"), JSON, b"")
                .await;
            assert_eq!(gone.code, 200, "{what}: {gone:?}");
        }
    }
    target.must_be_well().await;
}
