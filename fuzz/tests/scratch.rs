//! scratch
use bellerophon_apiserver::ApiServer;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;
#[test]
fn make() {
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    rt.block_on(async {
    let server = ApiServer::builder().start().await.unwrap();
    let send = |path: String, body: Value, accept: &'static str| { let s = server.service(); async move {
      let r = Request::post(path).header("content-type","application/json").header("accept",accept).body(Full::new(Bytes::from(body.to_string()))).unwrap();
      let r = s.oneshot(r).await.unwrap(); let st = r.status(); (st, r.into_body().collect().await.unwrap().to_bytes()) } };
    send("/api/v1/namespaces/default/serviceaccounts".into(), json!({"metadata":{"name":"default"}}), "application/json").await;
    let pod = json!({"containers":[{"name":"c","image":"i","env":[{"name":"e","value":"v"}],"ports":[{"containerPort":80}],"resources":{"limits":{"cpu":"1","memory":"1Gi"}},"livenessProbe":{"httpGet":{"port":80,"path":"/"}}}],"volumes":[{"name":"v","configMap":{"name":"a"}}],"tolerations":[{"key":"k","operator":"Exists","effect":"NoExecute","tolerationSeconds":5}]});
    for (name, path, object) in [
      ("config-map","/api/v1/namespaces/default/configmaps", json!({"metadata":{"name":"b","labels":{"x":"y"},"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"a","uid":"u"}]},"data":{"k":"v"},"binaryData":{"b":"aGk="}})),
      ("pod","/api/v1/namespaces/default/pods", json!({"metadata":{"name":"b"},"spec":pod})),
      ("deployment","/apis/apps/v1/namespaces/default/deployments", json!({"metadata":{"name":"b"},"spec":{"selector":{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"a","operator":"Exists"}]},"strategy":{"rollingUpdate":{"maxSurge":"25%","maxUnavailable":1}},"template":{"metadata":{"labels":{"a":"b"}},"spec":pod}}})),
      ("role","/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", json!({"metadata":{"name":"b"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get","list"]}]})),
      ("lease","/apis/coordination.k8s.io/v1/namespaces/default/leases", json!({"metadata":{"name":"b"},"spec":{"holderIdentity":"h","leaseDurationSeconds":15,"renewTime":"2024-05-06T07:08:09.123456Z"}})),
      ("node","/api/v1/nodes", json!({"metadata":{"name":"b"},"spec":{"taints":[{"key":"k","effect":"NoExecute","timeAdded":"2024-05-06T07:08:09Z"}]},"status":{"capacity":{"cpu":"4"}}})),
    ] {
      let (st, mut b) = send(format!("{path}?dryRun=All"), object.clone(), "application/vnd.kubernetes.protobuf").await;
      if st != 201 { let (_, b) = send(format!("{path}?dryRun=All"), object, "application/json").await; eprintln!("{name} {b:?}"); continue; }
      let mut out = format!("{path}\n").into_bytes(); out.extend(b.split_off(0));
      std::fs::create_dir_all("seeds/protobuf_body").unwrap();
      std::fs::write(format!("seeds/protobuf_body/{name}"), out).unwrap();
    }
  });
}
