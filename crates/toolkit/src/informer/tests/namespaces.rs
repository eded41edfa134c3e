//! Several namespaces, each with its own reflector.

use tokio::time::sleep;

use super::*;
use crate::list_watch::ListWatchError;

type Servers = BTreeMap<String, Scripted>;

/// A server for each of the namespaces `m` and `n`.
fn two_servers() -> Servers {
    ["m", "n"]
        .map(|name| (name.to_owned(), Scripted::new(name)))
        .into()
}

fn informer_of(servers: &Servers, names: &[&str]) -> SharedInformer<ConfigMap> {
    let servers = servers.clone();
    let list_watch: ListWatchFn = Arc::new(move |namespace| {
        let namespace = namespace.expect("namespaces are watched one by one");
        Arc::new(servers[namespace].clone())
    });
    let informer = seeded_informer(list_watch, InformerOptions::default(), 1);
    informer.handle.informer.set_scopes(named(names));
    informer
}

fn named(names: &[&str]) -> Scopes {
    Scopes::Named(names.iter().map(ToString::to_string).collect())
}

#[tokio::test(start_paused = true)]
async fn watched_namespaces_change_at_run_time() {
    let servers = two_servers();
    servers["m"].apply("a");
    servers["n"].apply("b");
    let informer = informer_of(&servers, &["m"]);
    let recorder = Recorder::default();
    informer.add_event_handler(recorder.clone());
    let running = Running::start(informer);
    let synced = running.informer.wait_for_cache_sync().await;
    synced.expect("m responds");
    let scopes = |names: &[&str]| running.informer.handle.informer.set_scopes(named(names));
    scopes(&["m", "n"]);
    running
        .wait_for(|running| running.informer.lister().len() == 2)
        .await;
    let synced = running.informer.wait_for_cache_sync().await;
    synced.expect("n responds too");
    scopes(&["n"]);
    recorder.caught_up(&servers["n"]).await;
    assert_eq!(recorder.log(), ["*a", "*b", "-a"]);
    let lister = running.informer.lister();
    assert_eq!(lister.in_namespace("m").len(), 0);
    let latest = lister.latest_version(&ObjectKey::namespaced("n", "x"));
    assert_eq!(latest.as_deref(), Some("2"));
    running.stop().await;
}

/// One forbidden watch used to slow all others of a controller in other libraries.
#[tokio::test(start_paused = true)]
async fn forbidden_watch_does_not_slow_another() {
    let servers = two_servers();
    let forbidden = vec![ListWatchError::Forbidden("access denied".into()); 1000];
    servers["m"].fail_watches(forbidden.clone());
    servers["m"].fail_lists(forbidden);
    let informer = informer_of(&servers, &["m", "n"]);
    let recorder = Recorder::default();
    informer.add_event_handler(recorder.clone());
    let running = Running::start(informer);
    assert!(running.informer.wait_for_cache_sync().await.is_err());
    for round in 0..150 {
        servers["n"].apply("a");
        sleep(Duration::from_millis(200)).await;
        assert_eq!(
            recorder.lock().objects,
            servers["n"].content(),
            "round {round}"
        );
    }
    running.stop().await;
}
