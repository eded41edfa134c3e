//! Shared informers on the embedded API server: kinds of every sort, refusals, and random histories of cut watches.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use bellerophon::{
    CacheForm, Entropy, EventHandler, EventStream, HandlerOptions, InformerOptions, InformerStats,
    InitialList, KubeListWatch, ListRequest, ListWatch, Namespaces, ObjectKey, Page, Received,
    SharedInformer, SourceError, SyncError, Tombstone, Transform, WatchRequest,
};
use bellerophon_apiserver::ApiServer;
use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ObjectMeta, PostParams},
    core::{ApiResource, DynamicObject, Expression, GroupVersionKind, PartialObjectMeta, Selector},
};
use serde::de::DeserializeOwned;
use tokio::{
    task::JoinHandle,
    time::{Duration, Instant, sleep},
};
use tokio_util::sync::CancellationToken;

async fn server() -> ApiServer {
    ApiServer::builder()
        .seed(1)
        .start()
        .await
        .expect("the server starts")
}

fn config_map(name: &str, app: &str) -> ConfigMap {
    let labels = Some([("app".to_owned(), app.to_owned())].into());
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.into()),
            labels,
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

async fn create(client: &Client, name: &str, app: &str) {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    api.create(&PostParams::default(), &config_map(name, app))
        .await
        .expect("it is created");
}

/// Creates the object, or writes over whatever has its name.
async fn put(api: &Api<ConfigMap>, object: &ConfigMap) {
    let options = PostParams::default();
    match api.replace(&object.name_any(), &options, object).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => {
            api.create(&options, object).await
        }
        written => written,
    }
    .expect("it is written");
}

struct Running<K> {
    informer: SharedInformer<K>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl<K: Resource + Send + Sync + 'static> Running<K> {
    fn start(informer: SharedInformer<K>) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let (informer, stop) = (informer.clone(), stop.clone());
            async move { informer.run(stop).await.expect("it runs once") }
        });
        Self {
            informer,
            stop,
            task,
        }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("no panic");
    }
}

/// Lets virtual time pass until it is so.
async fn until(mut so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(3600);
    while !so() {
        assert!(Instant::now() < end, "it never came to be");
        sleep(Duration::from_millis(100)).await;
    }
}

async fn names<K>(client: &Client, kind: K::DynamicType, options: InformerOptions<K>) -> Vec<String>
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    let running = Running::start(SharedInformer::<K>::new(client.clone(), kind, options));
    running
        .informer
        .wait_for_sync()
        .await
        .expect("the server answers");
    let names = running
        .informer
        .lister()
        .list()
        .iter()
        .map(|object| object.name_any())
        .collect();
    running.stop().await;
    names
}

#[tokio::test(start_paused = true)]
async fn typed_metadata_and_dynamic_caches_agree() {
    let server = server().await;
    let client = server.client();
    for name in ["a", "b", "c"] {
        create(&client, name, "x").await;
    }
    let here = || Namespaces::Named(["default".to_owned()].into());
    let wanted = ["a", "b", "c"];
    let typed = InformerOptions {
        namespaces: here(),
        labels: Some("app=x".into()),
        ..InformerOptions::default()
    };
    assert_eq!(names::<ConfigMap>(&client, (), typed.clone()).await, wanted);
    let paged = InformerOptions {
        initial_list: InitialList::Paged,
        page_size: 2,
        ..typed
    };
    assert_eq!(names::<ConfigMap>(&client, (), paged).await, wanted);
    let metadata = InformerOptions {
        namespaces: here(),
        labels: Some("app".into()),
        ..InformerOptions::default()
    };
    assert_eq!(
        names::<PartialObjectMeta<ConfigMap>>(&client, (), metadata).await,
        wanted
    );
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
    let dynamic = InformerOptions {
        fields: Some("metadata.name!=b".into()),
        labels: Some("app=x".into()),
        ..InformerOptions::default()
    };
    assert_eq!(
        names::<DynamicObject>(&client, kind, dynamic).await,
        ["a", "c"]
    );
}

#[tokio::test(start_paused = true)]
async fn lister_finds_by_key_namespace_selector_and_index() {
    let server = server().await;
    let client = server.client();
    create(&client, "a", "x").await;
    create(&client, "b", "y").await;
    let running = Running::start(SharedInformer::<ConfigMap>::new(
        client.clone(),
        (),
        InformerOptions::default(),
    ));
    running
        .informer
        .wait_for_sync()
        .await
        .expect("the server answers");
    let by_app = |object: &ConfigMap| object.labels().get("app").cloned().into_iter().collect();
    running
        .informer
        .add_index("app", by_app)
        .expect("a new name");
    let lister = running.informer.lister();
    create(&client, "c", "y").await;
    until(|| lister.get(&ObjectKey::namespaced("default", "c")).is_some()).await;
    let found = |objects: Vec<Arc<ConfigMap>>| {
        objects
            .iter()
            .map(|object| object.name_any())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        found(lister.by_index("app", "y").expect("it was added")),
        ["b", "c"]
    );
    assert_eq!(
        found(lister.matching(&Selector::from(Expression::Equal("app".into(), "x".into())))),
        ["a"]
    );
    assert!(lister.in_namespace("default").len() >= 3);
    assert!(lister.in_namespace("nowhere").is_empty());
    let key = ObjectKey::namespaced("default", "c");
    assert_eq!(lister.seen_up_to(&key), lister.resource_version_of(&key));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn unknown_kind_is_named_at_once_and_awaited() {
    let server = server().await;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Wasp"));
    let informer =
        SharedInformer::<DynamicObject>::new(server.client(), kind, InformerOptions::default());
    let running = Running::start(informer);
    let error = running
        .informer
        .wait_for_sync()
        .await
        .expect_err("nobody defined wasps");
    assert_eq!(
        error,
        SyncError::NoSuchKind {
            what: "wasps.example.com".into()
        }
    );
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn transform_changes_what_is_cached_and_may_panic() {
    let server = server().await;
    let client = server.client();
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    for name in ["a", "b"] {
        let data = Some([("large".to_owned(), "x".repeat(1000))].into());
        put(
            &api,
            &ConfigMap {
                data,
                ..config_map(name, "x")
            },
        )
        .await;
    }
    for cache in [CacheForm::Compact { decoded_max: 0 }, CacheForm::Decoded] {
        let transform = Transform::by(|object: &mut ConfigMap| {
            assert_ne!(object.name_any(), "b", "this one is too much");
            object.data = None;
            object.labels_mut().insert("small".into(), "yes".into());
        });
        let options = InformerOptions {
            transform,
            cache,
            labels: Some("app=x".into()),
            ..InformerOptions::default()
        };
        let running = Running::start(SharedInformer::<ConfigMap>::new(
            client.clone(),
            (),
            options,
        ));
        running
            .informer
            .wait_for_sync()
            .await
            .expect("the server answers");
        let small = running
            .informer
            .lister()
            .matching(&Selector::from(Expression::Equal(
                "small".into(),
                "yes".into(),
            )));
        assert_eq!(
            small
                .iter()
                .map(|object| (object.name_any(), object.data.clone()))
                .collect::<Vec<_>>(),
            [("a".to_owned(), None)]
        );
        assert_eq!(running.informer.stats().undecodable, 1, "{cache:?}");
        running.stop().await;
    }
}

/// What a handler was told, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn push(&self, mark: &str, name: &str) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(format!("{mark}{name}"));
    }
}

impl EventHandler<ConfigMap> for Log {
    fn on_add(&self, object: &Arc<ConfigMap>, _: bool) {
        self.push("+", &object.name_any());
    }
    fn on_update(&self, _: &Arc<ConfigMap>, new: &Arc<ConfigMap>) {
        self.push("~", &new.name_any());
    }
    fn on_delete(&self, last: Tombstone<ConfigMap>) {
        self.push("-", last.key.name());
    }
}

/// From some namespaces to all, or back, everything used to be reported as deleted and added again.
#[tokio::test(start_paused = true)]
async fn objects_stay_in_namespaces_that_stay_watched() {
    let server = server().await;
    let client = server.client();
    create(&client, "a", "x").await;
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    api.create(&PostParams::default(), &config_map("b", "x"))
        .await
        .expect("it is created");
    let here = |name: &str| Namespaces::Named([name.to_owned()].into());
    let options = InformerOptions {
        namespaces: here("default"),
        labels: Some("app=x".into()),
        ..InformerOptions::default()
    };
    let (running, log) = (
        Running::start(SharedInformer::<ConfigMap>::new(
            client.clone(),
            (),
            options,
        )),
        Log::default(),
    );
    running
        .informer
        .add_handler(log.clone(), HandlerOptions::default());
    for (namespaces, objects) in [
        (here("default"), 1),
        (Namespaces::All, 2),
        (here("kube-system"), 1),
        (here("default"), 1),
    ] {
        running.informer.set_namespaces(namespaces);
        sleep(Duration::from_secs(5)).await;
        running
            .informer
            .wait_for_sync()
            .await
            .expect("the server answers");
        assert_eq!(running.informer.lister().len(), objects);
    }
    assert_eq!(
        *log.0.lock().unwrap_or_else(PoisonError::into_inner),
        ["+a", "+b", "-a", "-b", "+a"]
    );
    running.stop().await;
}

/// Reads numbers where the server has text.
#[derive(Clone, Debug, serde::Deserialize)]
struct Numbers {
    metadata: ObjectMeta,
    #[serde(default)]
    data: BTreeMap<String, NumberText>,
}

/// A number, and no other text.
#[derive(Clone, Debug)]
struct NumberText(u64);

impl<'de> serde::Deserialize<'de> for NumberText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map(Self)
            .map_err(serde::de::Error::custom)
    }
}

impl Resource for Numbers {
    type DynamicType = ();
    type Scope = k8s_openapi::NamespaceResourceScope;
    fn kind((): &()) -> std::borrow::Cow<'_, str> {
        ConfigMap::kind(&())
    }
    fn group((): &()) -> std::borrow::Cow<'_, str> {
        ConfigMap::group(&())
    }
    fn version((): &()) -> std::borrow::Cow<'_, str> {
        ConfigMap::version(&())
    }
    fn plural((): &()) -> std::borrow::Cow<'_, str> {
        ConfigMap::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[tokio::test(start_paused = true)]
async fn one_undecodable_object_costs_no_other() {
    let server = server().await;
    let client = server.client();
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let write = |name: &str, value: &str| {
        let object = ConfigMap {
            data: Some([("n".to_owned(), value.to_owned())].into()),
            ..config_map(name, "x")
        };
        let api = api.clone();
        async move { put(&api, &object).await }
    };
    for (name, value) in [("a", "1"), ("b", "two"), ("c", "3")] {
        write(name, value).await;
    }
    for initial_list in [InitialList::Streamed, InitialList::Paged] {
        let options = InformerOptions {
            labels: Some("app=x".into()),
            initial_list,
            ..InformerOptions::default()
        };
        let running = Running::start(SharedInformer::<Numbers>::new(client.clone(), (), options));
        running
            .informer
            .wait_for_sync()
            .await
            .expect("the server answers");
        let lister = running.informer.lister();
        let value = |name: &str| {
            lister
                .get(&ObjectKey::namespaced("default", name))
                .map(|object| object.data["n"].0)
        };
        assert_eq!(
            (value("a"), value("b"), value("c")),
            (Some(1), None, Some(3))
        );
        write("c", "four").await;
        write("b", "2").await;
        until(|| value("b") == Some(2)).await;
        assert_eq!(value("c"), Some(3), "the last readable form stays");
        api.delete("c", &DeleteParams::default())
            .await
            .expect("it is deleted");
        until(|| value("c").is_none()).await;
        let InformerStats {
            undecodable,
            watches,
            ..
        } = running.informer.stats();
        assert_eq!((undecodable, watches), (2, 1), "{initial_list:?}");
        running.stop().await;
        write("b", "two").await;
        write("c", "3").await;
    }
}

#[tokio::test(start_paused = true)]
async fn random_histories_on_a_bad_line_end_with_the_cache_of_the_server() {
    let server = server().await;
    for seed in 0..300 {
        history(&server.client(), seed).await;
    }
}

/// What a handler believes to exist, and whether it was ever told nonsense.
#[derive(Clone, Default)]
struct View(Arc<Mutex<(BTreeMap<ObjectKey, String>, usize)>>);

impl View {
    fn note(&self, key: ObjectKey, version: Option<String>, before: Option<&ConfigMap>) {
        let (objects, lies) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let was = match version {
            Some(version) => objects.insert(key, version),
            None => objects.remove(&key),
        };
        *lies += usize::from(was != before.and_then(ResourceExt::resource_version));
    }
}

impl EventHandler<ConfigMap> for View {
    fn on_add(&self, object: &Arc<ConfigMap>, _: bool) {
        self.note(ObjectKey::of(&**object), object.resource_version(), None);
    }
    fn on_update(&self, old: &Arc<ConfigMap>, new: &Arc<ConfigMap>) {
        self.note(ObjectKey::of(&**new), new.resource_version(), Some(old));
    }
    fn on_delete(&self, last: Tombstone<ConfigMap>) {
        let (objects, lies) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *lies += usize::from(objects.remove(&last.key).is_none());
    }
}

/// The server behind a bad line: requests fail, watches break off after a few events.
struct BadLine {
    source: KubeListWatch<ConfigMap>,
    entropy: Entropy,
    mended: CancellationToken,
}

impl BadLine {
    fn error(&self) -> Option<SourceError> {
        if self.mended.is_cancelled() {
            return None;
        }
        match self.entropy.below(10) {
            0 => Some(SourceError::Unreachable("refused".into())),
            1 => Some(SourceError::Expired("too old".into())),
            2 => Some(SourceError::TooLarge("from the future".into())),
            _ => None,
        }
    }
}

impl ListWatch<ConfigMap> for BadLine {
    fn list(
        &self,
        request: ListRequest,
    ) -> BoxFuture<'static, Result<Page<Received<ConfigMap>>, SourceError>> {
        match self.error() {
            Some(error) => std::future::ready(Err(error)).boxed(),
            None => self.source.list(request),
        }
    }

    fn watch(
        &self,
        request: WatchRequest,
    ) -> BoxFuture<'static, Result<EventStream<ConfigMap>, SourceError>> {
        if let Some(error) = self.error() {
            return std::future::ready(Err(error)).boxed();
        }
        let opened = self.source.watch(request);
        if self.mended.is_cancelled() {
            return opened;
        }
        let (length, mended) = (self.entropy.below(8), self.mended.clone());
        let length = usize::try_from(length).expect("small");
        async move {
            Ok(opened
                .await?
                .take(length)
                .take_until(async move { mended.cancelled().await })
                .boxed())
        }
        .boxed()
    }
}

/// Writes while the line is bad, then mends it: the cache and the handler end with what the server has.
async fn history(client: &Client, seed: u64) {
    let (entropy, mended) = (Entropy::seeded(seed), CancellationToken::new());
    let (line, broken, source) = (
        entropy.clone(),
        mended.clone(),
        KubeListWatch::new(client.clone(), &(), Some("default")),
    );
    let sources = move |_: Option<&str>| -> Arc<dyn ListWatch<ConfigMap>> {
        let source = source.clone().labels("app=x");
        Arc::new(BadLine {
            source,
            entropy: line.clone(),
            mended: broken.clone(),
        })
    };
    let initial_list = if seed.is_multiple_of(3) {
        InitialList::Paged
    } else {
        InitialList::Streamed
    };
    let forms = [
        CacheForm::default(),
        CacheForm::Compact { decoded_max: 1 },
        CacheForm::Compact { decoded_max: 0 },
        CacheForm::Decoded,
    ];
    let cache = forms[usize::try_from(entropy.below(4)).expect("small")];
    let options = InformerOptions {
        entropy: entropy.clone(),
        initial_list,
        cache,
        page_size: 2,
        ..InformerOptions::default()
    };
    let informer =
        SharedInformer::from_sources(ApiResource::erase::<ConfigMap>(&()), sources, options);
    let by_step = |object: &ConfigMap| {
        object
            .data
            .iter()
            .flat_map(|data| data.values().cloned())
            .collect()
    };
    informer.add_index("step", by_step).expect("a new name");
    let view = View::default();
    informer.add_handler(view.clone(), HandlerOptions::default());
    let running = Running::start(informer);
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    for step in 0..12 {
        let name = ["a", "b", "c", "d"][usize::try_from(entropy.below(4)).expect("small")];
        if entropy.below(3) == 0 {
            let deleted = api.delete(name, &DeleteParams::default()).await;
            assert!(
                deleted.is_ok()
                    || matches!(&deleted, Err(kube::Error::Api(status)) if status.is_not_found())
            );
        } else {
            // An object that loses its label leaves the cache without being deleted.
            let mut object = config_map(name, if entropy.below(4) == 0 { "y" } else { "x" });
            object.data = Some([("step".to_owned(), format!("{seed}-{step}"))].into());
            put(&api, &object).await;
        }
        if entropy.below(2) == 0 {
            sleep(Duration::from_millis(entropy.below(3000))).await;
        }
    }
    mended.cancel();
    let there = api
        .list(&kube::api::ListParams::default().labels("app=x"))
        .await
        .expect("the server answers");
    let wanted: BTreeMap<_, _> = there
        .iter()
        .map(|object| {
            (
                ObjectKey::of(object),
                object.resource_version().unwrap_or_default(),
            )
        })
        .collect();
    let lister = running.informer.lister();
    let cached = || -> BTreeMap<ObjectKey, String> {
        lister
            .list()
            .iter()
            .map(|object| {
                (
                    ObjectKey::of(&**object),
                    object.resource_version().unwrap_or_default(),
                )
            })
            .collect()
    };
    until(|| {
        cached() == wanted && view.0.lock().unwrap_or_else(PoisonError::into_inner).0 == wanted
    })
    .await;
    for object in there {
        let key = ObjectKey::of(&object);
        let step = &object.data.as_ref().expect("each has data")["step"];
        assert_eq!(
            lister.index_keys("step", step).expect("it was added"),
            std::slice::from_ref(&key),
            "seed {seed}"
        );
        let read = lister.get(&key).expect("it is cached");
        assert_eq!(
            (&read.data, &read.metadata.labels, &read.metadata.uid),
            (&object.data, &object.metadata.labels, &object.metadata.uid)
        );
    }
    assert_eq!(
        view.0.lock().unwrap_or_else(PoisonError::into_inner).1,
        0,
        "the handler was told nonsense, seed {seed}"
    );
    running.stop().await;
}
