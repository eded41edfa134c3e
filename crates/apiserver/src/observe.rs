//! Accepted writes, for an observer in the process that runs the server, and the objects they left.
//!
//! In: commits of the storage, and the request that each belongs to. Out: one call per accepted write.
//! Guarantees: a write is reported after it is stored and before its request is answered; without an
//! observer nothing is done per write.

use std::{cell::RefCell, fmt, future::Future, sync::Arc};

use bellerophon_storage::{
    Change, CollectionName, CommitObserver, Event, ObjectKey, Range, Scope, Store, Stored,
};
use bytes::Bytes;
use http::Method;

use crate::{managed_fields, verbs::Call};

/// The media type of server-side apply, without its parameters.
const APPLY: &str = "application/apply-patch+yaml";

tokio::task_local! {
    /// The request that the current task executes.
    static REQUEST: Option<Arc<ObservedRequest>>;
}

thread_local! {
    /// The last request of this thread.
    static LAST: RefCell<Option<Arc<ObservedRequest>>> = const { RefCell::new(None) };
}

/// The request of an accepted write. Consecutive requests of a client share one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedRequest {
    /// The user.
    pub user: Arc<str>,
    /// The field manager, or the program of the user agent.
    pub manager: Arc<str>,
    /// The verb: `create`, `update`, `patch`, `apply`, `delete` or `deletecollection`.
    pub verb: &'static str,
    /// The subresource; empty for the object itself.
    pub subresource: Arc<str>,
    /// The request came through an in-process handle.
    pub is_in_process: bool,
}

/// A write that was stored.
#[derive(Clone, Debug)]
pub struct ObservedWrite {
    /// Its request; `None` for a write of the server itself.
    pub request: Option<Arc<ObservedRequest>>,
    /// The group and plural name of the resource: `apps/deployments`, `/pods`.
    pub resource: Arc<str>,
    /// The version that was replaced; `None` for a new object.
    pub previous_version: Option<u64>,
    /// The object was removed.
    pub is_deletion: bool,
    event: Arc<Event>,
}

impl ObservedWrite {
    /// A commit of the request that the current task executes.
    fn of(resource: &CollectionName, event: &Arc<Event>) -> Self {
        Self {
            request: REQUEST.try_with(Clone::clone).ok().flatten(),
            resource: resource.clone(),
            previous_version: event.previous.as_ref().map(|previous| previous.revision),
            is_deletion: event.change == Change::Deleted,
            event: event.clone(),
        }
    }

    /// The namespace; empty for cluster-scoped resources.
    pub fn namespace(&self) -> &str {
        self.event.object.key.namespace()
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.event.object.key.name()
    }

    /// The version of the write.
    pub fn resource_version(&self) -> u64 {
        self.event.revision
    }

    /// The object as JSON; for a deletion its last state. It shares the memory of the storage.
    pub fn object(&self) -> &Bytes {
        self.event.object.encoded.bytes()
    }

    /// The object before the write as JSON; `None` for a new object. It shares the memory of the
    /// storage.
    pub fn previous_object(&self) -> Option<&Bytes> {
        let previous = self.event.previous.as_ref();
        previous.map(|previous| previous.encoded.bytes())
    }
}

/// Receives accepted writes. It must not block.
pub(crate) type Observer = Arc<dyn Fn(ObservedWrite) + Send + Sync>;

/// Runs a request; its writes are reported with this description of it.
pub(crate) fn with_request<F: Future>(
    request: Option<Arc<ObservedRequest>>,
    running: F,
) -> impl Future<Output = F::Output> {
    REQUEST.scope(request, running)
}

/// Reports each commit to an observer.
pub(crate) fn commit_observer(observer: Observer) -> CommitObserver {
    Arc::new(move |resource, event| observer(ObservedWrite::of(resource, event)))
}

impl ObservedRequest {
    /// The description of a request; `None` if it writes nothing.
    pub(crate) fn of(method: &Method, call: &Call, is_in_process: bool) -> Option<Arc<Self>> {
        let is_apply = || {
            call.content_type
                .as_ref()
                .is_some_and(|media_type| media_type.starts_with(APPLY))
        };
        let verb = match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH if is_apply() => "apply",
            Method::PATCH => "patch",
            Method::DELETE if call.target.name.is_empty() => "deletecollection",
            Method::DELETE => "delete",
            _ => return None,
        };
        let manager = call.query.get("fieldManager").unwrap_or_default();
        let manager = managed_fields::manager_name(manager, &call.user_agent);
        let user = &*call.user.name;
        let subresource = call.subresource_name();
        LAST.with_borrow_mut(|last| {
            // Most requests are of few clients.
            let is_same = |last: &&mut Arc<Self>| {
                *last.user == *user
                    && *last.manager == *manager
                    && last.verb == verb
                    && *last.subresource == *subresource
                    && last.is_in_process == is_in_process
            };
            if let Some(same) = last.as_mut().filter(is_same) {
                return Some(same.clone());
            }
            *last = Some(Arc::new(Self {
                user: user.into(),
                manager: manager.into(),
                verb,
                subresource: subresource.into(),
                is_in_process,
            }));
            last.clone()
        })
    }
}

/// The objects of a server as they are stored now, read without a request.
#[derive(Clone)]
pub struct StoredObjects(Arc<dyn Store>);

/// A stored object.
#[derive(Clone, Debug)]
pub struct StoredObject {
    /// The group and plural name of its resource: `apps/deployments`, `/pods`.
    pub resource: Arc<str>,
    stored: Arc<Stored>,
}

impl StoredObjects {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }

    /// All objects of all resources.
    pub fn list(&self) -> Vec<StoredObject> {
        let mut objects = Vec::new();
        for (resource, ..) in self.0.sizes() {
            let range = Range::all_of(Scope::All);
            let listing = self.0.list(&resource, &range, None);
            let listing = listing.expect("the newest state is always kept");
            objects.extend(listing.objects.into_iter().map(|stored| StoredObject {
                resource: resource.clone(),
                stored,
            }));
        }
        objects
    }

    /// An object of a resource; the namespace is empty for cluster-scoped resources.
    pub fn get(&self, resource: &Arc<str>, namespace: &str, name: &str) -> Option<StoredObject> {
        let key = ObjectKey::new(namespace, name);
        Some(StoredObject {
            resource: resource.clone(),
            stored: self.0.get(resource, &key)?,
        })
    }
}

impl fmt::Debug for StoredObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoredObjects")
    }
}

impl StoredObject {
    /// The namespace; empty for cluster-scoped resources.
    pub fn namespace(&self) -> &str {
        self.stored.key.namespace()
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.stored.key.name()
    }

    /// The version of its newest write.
    pub fn resource_version(&self) -> u64 {
        self.stored.revision
    }

    /// The object as JSON. It shares the memory of the storage.
    pub fn object(&self) -> &Bytes {
        self.stored.encoded.bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use http::Request;
    use serde_json::json;
    use tower::ServiceExt as _;

    use super::*;
    use crate::ApiServer;

    #[tokio::test]
    async fn accepted_writes_are_reported_with_their_request() {
        let writes = Arc::new(Mutex::new(Vec::new()));
        let observed = writes.clone();
        let observer = move |write: ObservedWrite| {
            let mut writes = observed.lock().unwrap_or_else(PoisonError::into_inner);
            writes.push(write);
        };
        let server = ApiServer::builder().observe_writes(observer).start().await;
        let server = server.expect("a server");
        let started = writes.lock().expect("no panic").len();
        let service = server.service().as_user("jane", ["system:masters"]);
        let maps = "/api/v1/namespaces/default/configmaps";
        let map = "/api/v1/namespaces/default/configmaps/a?fieldManager=editor";
        let send = async |method: Method, path: &str, media_type: &str, body: serde_json::Value| {
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header("content-type", media_type)
                .header("user-agent", "tool/1.0")
                .body(body.to_string());
            let response = service.clone().oneshot(request.expect("a request")).await;
            response.expect("a response").status().as_u16()
        };
        let json = "application/json";
        let new = json!({ "metadata": { "name": "a" } });
        assert_eq!(send(Method::POST, maps, json, new.clone()).await, 201);
        assert_eq!(
            send(Method::POST, maps, json, new).await,
            409,
            "not reported"
        );
        let data = json!({ "data": { "k": "v" } });
        let merge = "application/merge-patch+json";
        assert_eq!(send(Method::PATCH, map, merge, data.clone()).await, 200);
        assert_eq!(
            send(Method::PATCH, map, merge, data).await,
            200,
            "changes nothing"
        );
        assert_eq!(send(Method::DELETE, map, json, json!({})).await, 200);
        let writes = writes.lock().expect("no panic");
        assert!(
            writes[..started]
                .iter()
                .all(|write| write.request.is_none())
        );
        let reported: Vec<_> = writes[started..]
            .iter()
            .map(|write| {
                let request = write.request.as_ref().expect("a request");
                assert_eq!(&*request.user, "jane");
                assert!(request.is_in_process);
                let names = (&*write.resource, write.namespace(), write.name());
                assert_eq!(names, ("/configmaps", "default", "a"));
                (request.verb, request.manager.to_string(), write.is_deletion)
            })
            .collect();
        assert_eq!(
            reported,
            [
                ("create", "tool".to_owned(), false),
                ("patch", "editor".to_owned(), false),
                ("delete", "editor".to_owned(), true),
            ]
        );
        let versions: Vec<_> = writes[started..]
            .iter()
            .map(|write| (write.previous_version, write.resource_version()))
            .collect();
        assert_eq!(versions[0].0, None);
        let previous: Vec<_> = writes[started..]
            .iter()
            .map(ObservedWrite::previous_object)
            .collect();
        assert_eq!(previous[0], None);
        assert_eq!(previous[1], Some(writes[started].object()));
        assert_eq!(previous[2], Some(writes[started + 1].object()));
        let stored = server.stored_objects();
        let removed = stored.get(&"/configmaps".into(), "default", "a");
        assert!(removed.is_none(), "it was removed");
        let namespace = stored.get(&"/namespaces".into(), "", "default");
        let namespace = namespace.expect("a namespace");
        let listed = stored.list();
        let same = listed
            .iter()
            .find(|object| object.name() == "default" && *object.resource == *"/namespaces");
        let same = same.expect("all objects are listed");
        assert_eq!(same.object(), namespace.object());
        assert_eq!(same.resource_version(), namespace.resource_version());
        assert_eq!(versions[1].0, Some(versions[0].1), "it replaces the first");
        assert_eq!(versions[2].0, Some(versions[1].1), "it removes the second");
    }
}
