//! Accepted writes, for an observer in the process that runs the server.
//!
//! In: commits of the storage, and the request that each belongs to. Out: one call per accepted write.
//! Guarantees: a write is reported after it is stored and before its request is answered; without an
//! observer nothing is done per write.

use std::{cell::RefCell, fmt, future::Future, pin::Pin, sync::Arc, thread::LocalKey};

use bellerophon_storage::{
    CollectionName, Committing, Compacted, Expect, Listing, ObjectKey, Range, Revision, Scope,
    Store, StoreWatch, Stored, Write,
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

/// The request of an accepted write.
#[derive(Clone, Debug)]
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
    stored: Arc<Stored>,
}

impl ObservedWrite {
    /// The namespace; empty for cluster-scoped resources.
    pub fn namespace(&self) -> &str {
        self.stored.key.namespace()
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.stored.key.name()
    }

    /// The version of the write.
    pub fn resource_version(&self) -> u64 {
        self.stored.revision
    }

    /// The object as JSON; for a deletion its last state. It shares the memory of the storage.
    pub fn object(&self) -> &Bytes {
        self.stored.encoded.bytes()
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
        Some(Arc::new(Self {
            user: shared(&USER, &call.user.name),
            manager: shared(
                &MANAGER,
                &managed_fields::manager_name(manager, &call.user_agent),
            ),
            verb,
            subresource: shared(&SUBRESOURCE, call.subresource_name()),
            is_in_process,
        }))
    }
}

thread_local! {
    // The values of the last request of this thread.
    static USER: RefCell<Arc<str>> = RefCell::new("".into());
    static MANAGER: RefCell<Arc<str>> = RefCell::new("".into());
    static SUBRESOURCE: RefCell<Arc<str>> = RefCell::new("".into());
}

/// A text that shares its memory with the last one of this thread if they are equal: most requests
/// are of few clients.
fn shared(last: &'static LocalKey<RefCell<Arc<str>>>, text: &str) -> Arc<str> {
    last.with_borrow_mut(|last| {
        if **last != *text {
            *last = text.into();
        }
        last.clone()
    })
}

/// A store that reports its commits.
pub(crate) struct ObservedStore {
    store: Arc<dyn Store>,
    observer: Observer,
}

impl ObservedStore {
    pub(crate) fn new(store: Arc<dyn Store>, observer: Observer) -> Self {
        Self { store, observer }
    }

    fn report(
        &self,
        resource: CollectionName,
        expect: Expect,
        is_deletion: bool,
        stored: Arc<Stored>,
    ) {
        (self.observer)(ObservedWrite {
            request: REQUEST.try_with(Clone::clone).ok().flatten(),
            resource,
            previous_version: match expect {
                Expect::Absent => None,
                Expect::Version(version) => Some(version),
            },
            is_deletion,
            stored,
        });
    }
}

impl Store for ObservedStore {
    fn revision(&self) -> Revision {
        self.store.revision()
    }

    fn get(&self, resource: &str, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.store.get(resource, key)
    }

    fn list(
        &self,
        resource: &str,
        range: &Range,
        at: Option<Revision>,
    ) -> Result<Listing, Compacted> {
        self.store.list(resource, range, at)
    }

    fn commit(&self, write: Write) -> Committing<'_> {
        let resource = write.collection.clone();
        let expect = write.expect;
        let is_deletion = write.put.is_none();
        let committing = self.store.commit(write);
        Box::pin(async move {
            let stored = committing.await?;
            self.report(resource, expect, is_deletion, stored.clone());
            Ok(stored)
        })
    }

    fn watch(
        &self,
        resource: &CollectionName,
        scope: &Scope,
        since: Revision,
    ) -> Result<StoreWatch, Compacted> {
        self.store.watch(resource, scope, since)
    }

    fn reached(&self, revision: Revision) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.store.reached(revision)
    }

    fn compact(&self, upto: Revision) {
        self.store.compact(upto);
    }

    fn size(&self, resource: &str) -> Option<(usize, usize)> {
        self.store.size(resource)
    }

    fn sizes(&self) -> Vec<(CollectionName, usize, usize)> {
        self.store.sizes()
    }
}

impl fmt::Debug for ObservedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ObservedStore")
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
        assert_eq!(versions[1].0, Some(versions[0].1), "it replaces the first");
        assert_eq!(versions[2].0, Some(versions[1].1), "it removes the second");
    }
}
