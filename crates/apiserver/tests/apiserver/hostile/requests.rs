//! Malformed paths, queries and headers.

use super::peer::Target;

#[tokio::test]
async fn malformed_paths_reach_no_object() {
    let target = Target::start().await;
    let long = format!("/api/v1/namespaces/{}/configmaps", "a".repeat(60_000));
    let endless = format!("/api/v1/{}", "a".repeat(100_000));
    let nested = format!(
        "/api/v1/namespaces/default/configmaps/{}",
        "x/".repeat(20_000)
    );
    for (path, code) in [
        ("/api/v1/../v1/pods", 404),
        ("/api/v1/namespaces/default/configmaps/..", 404),
        ("/api/v1/namespaces/%2e%2e/configmaps", 404),
        (
            "/api/v1/namespaces/default/configmaps/%2e%2e%2f%2e%2e%2fsecrets",
            404,
        ),
        ("/api/v1/namespaces/default%2fconfigmaps", 200),
        ("/api/v1/namespaces/a%2fb%2fc/configmaps", 404),
        ("/api/v1/namespaces//configmaps", 400),
        ("//api/v1/pods", 404),
        ("/api/v1/pods//", 404),
        ("/api/v1/namespaces/default/configmaps/%00", 404),
        ("/api/v1/namespaces/default/configmaps/a%00b", 404),
        ("/api/v1/namespaces/default/configmaps/%ff%fe", 404),
        ("/api/v1/namespaces/default/configmaps/%zz", 404),
        ("/api/v1/namespaces/default/configmaps/%", 404),
        ("/api/v1/namespaces/default/configmaps/a?b?c", 404),
        ("/api/v1/namespaces/%F0%9F%A6%80/configmaps", 200),
        ("/apis/////", 404),
        ("/apis/%20/%20/%20", 404),
        ("/.", 404),
        ("/..", 404),
        ("*", 404),
        ("x", 404),
        (&long, 200),
        (&endless, 414),
        (&nested, 404),
    ] {
        let answer = target.request(&format!("GET {path}"), "", b"").await;
        let shown = &path[..path.len().min(80)];
        assert_eq!(answer.code, code, "{shown}: {answer:?}");
        assert!(answer.is_clean(), "{shown}: {answer:?}");
    }
    target.must_be_well().await;
}

#[tokio::test]
async fn malformed_queries_have_one_answer_each() {
    let target = Target::start().await;
    let repeat = |text: &str, times: usize| text.repeat(times);
    for (query, code) in [
        (format!("labelSelector={}", repeat("a,", 15_000)), 400),
        (format!("labelSelector=a+in+({})", repeat("b,", 15_000)), 200),
        (format!("labelSelector={}", repeat("(", 30_000)), 400),
        (format!("labelSelector={}", repeat("!", 30_000)), 400),
        // A form feed used to be an endless loop.
        ("labelSelector=a%0Cb,%0C".into(), 400),
        ("labelSelector=%ff%00".into(), 400),
        ("labelSelector=a%00b".into(), 400),
        ("limit=1&continue=%FF".into(), 400),
        ("watch=1&fieldSelector=metadata.name%3D&timeoutSeconds=1".into(), 200),
        ("watch=1&fieldSelector=metadata.name%3Da%2Fb&timeoutSeconds=1".into(), 200),
        ("watch=1&labelSelector=a%3D%FF&timeoutSeconds=1".into(), 400),
        (format!("fieldSelector={}", repeat("metadata.name=a,", 3_000)), 200),
        (format!("fieldSelector={}", repeat("\\", 30_000)), 400),
        ("fieldSelector=metadata.name%3D%2e%2e%2f".into(), 200),
        ("continue=garbage".into(), 400),
        (format!("continue={}", repeat("A", 60_000)), 400),
        ("continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6OTIyMzM3MjAzNjg1NDc3NTgwNywic3RhcnQiOiJhIn0&limit=1".into(), 504),
        ("continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTksInN0YXJ0IjoiLi4vLi4vc2VjcmV0cyJ9".into(), 400),
        ("continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoienovenpcdTAwMDAifQ".into(), 200),
        ("limit=99999999999999999999".into(), 400),
        ("limit=9223372036854775807".into(), 200),
        ("limit=-9223372036854775808".into(), 200),
        ("resourceVersion=18446744073709551615".into(), 504),
        ("resourceVersion=-1".into(), 400),
        ("watch=1&resourceVersion=1&timeoutSeconds=9223372036854775807".into(), 200),
        ("watch=1&resourceVersion=1&timeoutSeconds=-9223372036854775808".into(), 200),
        ("watch=1&resourceVersion=x".into(), 500),
        ("pretty=%&pretty=%%%&%=%".into(), 400),
        (repeat("a&", 20_000), 200),
        (repeat("&", 50_000), 200),
        ("resourceVersionMatch=Exact&resourceVersion=0&sendInitialEvents=x".into(), 422),
    ] {
        let answer = target.request(&format!("GET /api/v1/namespaces/default/configmaps?{query}"), "", b"").await;
        let shown = &query[..query.len().min(80)];
        assert_eq!(answer.code, code, "{shown}: {} {}", answer.head, answer.body);
        assert!(answer.is_clean(), "{shown}: {} {}", answer.head, answer.body);
    }
    target.must_be_well().await;
}

/// The parameters used to be left out: everything was deleted, dry run or not.
#[tokio::test]
async fn deletion_by_a_malformed_query_deletes_nothing() {
    let target = Target::start().await;
    let config_maps = "/api/v1/namespaces/default/configmaps";
    let object = br#"{"metadata":{"name":"kept","labels":{"app":"x"}}}"#;
    let made = target
        .request(&format!("POST {config_maps}"), "application/json", object)
        .await;
    assert_eq!(made.code, 201, "{made:?}");
    for query in [
        "labelSelector=app%3D%FF",
        "dryRun=All%FF",
        "fieldSelector=metadata.name%3D%FF",
        "labelSelector=app%3D%",
    ] {
        let answer = target
            .request(&format!("DELETE {config_maps}?{query}"), "", b"")
            .await;
        assert_eq!(answer.code, 400, "{query}: {answer:?}");
        assert!(answer.is_clean(), "{query}: {answer:?}");
    }
    let kept = target
        .request(&format!("GET {config_maps}/kept"), "", b"")
        .await;
    assert_eq!(kept.code, 200, "{kept:?}");
    target.must_be_well().await;
}

#[tokio::test]
async fn malformed_headers_have_one_answer_each() {
    let target = Target::start().await;
    let token = format!("authorization: Bearer {}\r\n", target.token);
    let many: String = (0..600).map(|i| format!("x-{i}: y\r\n")).collect();
    let wide = format!("x: {}\r\n", "y".repeat(2 << 20));
    let forged = format!("authorization: Bearer {}\r\n", "e30.".repeat(20_000));
    for (headers, code) in [
        (format!("{token}accept: ;;;,,,\r\n"), 406),
        (
            format!("{token}accept: application/json;as=Table;v=v9;g=x\r\n"),
            406,
        ),
        (
            format!("{token}accept: application/json;q=abc, */*;q=9\r\n"),
            200,
        ),
        (
            format!("{token}accept: {}\r\n", "application/json,".repeat(3000)),
            200,
        ),
        (
            format!(
                "{token}accept-encoding: gzip;q=x, {}\r\n",
                "br,".repeat(1000)
            ),
            200,
        ),
        (format!("{token}accept: \u{e9}\r\n"), 200),
        (format!("{token}{token}"), 200),
        (format!("{token}impersonate-user: \r\n"), 200),
        (format!("{token}impersonate-group: g\r\n"), 400),
        (
            format!("{token}impersonate-user: a\r\nimpersonate-uid: \u{1}\r\n"),
            400,
        ),
        (forged, 401),
        ("authorization: Bearer\r\n".into(), 403),
        ("authorization: Basic YTpi\r\n".into(), 403),
        ("authorization: Bearer a.b.c\r\n".into(), 401),
        ("authorization: Bearer \u{e9}\r\n".into(), 401),
        (
            "authorization: Bearer eyJhbGciOiJub25lIn0.e30.\r\n".into(),
            401,
        ),
        (format!("{token}content-length: -5\r\n"), 400),
        (
            format!("{token}content-length: 5\r\ncontent-length: 6\r\n"),
            400,
        ),
        (
            format!("{token}transfer-encoding: chunked\r\ncontent-length: 5\r\n"),
            200,
        ),
        (format!("{token}transfer-encoding: nonsense\r\n"), 400),
        (format!("{token}expect: 100-continue\r\n"), 200),
        (format!("{token}upgrade: websocket\r\n"), 200),
        (format!("{token}: nameless\r\n"), 400),
        (format!("{token}a b: c\r\n"), 400),
        (format!("{token}x: a\0b\r\n"), 400),
        (format!("{token}{many}"), 431),
        (format!("{token}{wide}"), 431),
    ] {
        let request = format!(
            "GET /api/v1/namespaces HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n"
        );
        let answer = target.send(request.as_bytes()).await;
        let shown = headers.replace(&target.token, "TOKEN");
        let shown: String = shown.chars().take(80).collect();
        assert_eq!(
            answer.code, code,
            "{shown}: {} {}",
            answer.head, answer.body
        );
        assert!(answer.is_clean(), "{shown}: {}", answer.body);
    }
    target.must_be_well().await;
}

#[tokio::test]
async fn connection_without_http_is_closed() {
    let target = Target::start().await;
    let noise: Vec<u8> = (0..4096u32)
        .map(|i| (i * 7 + i / 3) as u8)
        .chain(*b"\r\n\r\n")
        .collect();
    for (what, bytes) in [
        ("noise", noise.as_slice()),
        ("nothing", b"\r\n\r\n\r\n\r\n"),
        ("HTTP/0.9", b"GET /\r\n\r\n"),
        ("HTTP/7", b"GET / HTTP/7.3\r\nhost: x\r\n\r\n"),
        ("no method", b" / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
        ("no path", b"GET HTTP/1.1\r\nhost: x\r\n\r\n"),
        ("control characters", b"GET /\x01\x02\x7f HTTP/1.1\r\nhost: x\r\n\r\n"),
        ("another method", b"BREW /api/v1/pods HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
        ("connect", b"CONNECT example.dev:443 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
        ("options", b"OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
        (
            "bad chunk",
            b"POST /api/v1/namespaces HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        ),
        (
            "endless chunk",
            b"POST /api/v1/namespaces HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        ),
        ("HTTP/2 over HTTP/1.1", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense that is no frame at all, and much of it, so that it is read"),
    ] {
        let answer = target.send_all(bytes).await;
        assert!(!(200..300).contains(&answer.code), "{what}: {answer:?}");
    }
    target.must_be_well().await;
}
