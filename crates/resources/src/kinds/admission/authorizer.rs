//! `authorizer` in admission expressions: authorizes further requests of a user.
//! In: a user and an authorizer. Out: decisions. Mirrors `k8s.io/apiserver/pkg/cel/library/authz.go`.

use std::{any::Any, fmt, sync::Arc};

use bellerophon_cel::{CostModel, Failure, Functions, Opaque, Run, Type, Value};

use bellerophon_apimachinery::names;

/// The resource attributes of a check. What does not apply is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedResource {
    /// The API group; empty for the core group.
    pub group: String,
    /// The plural name.
    pub resource: String,
    /// The subresource.
    pub subresource: String,
    /// The namespace.
    pub namespace: String,
    /// The name of one object.
    pub name: String,
}

/// A decision, with the reason that a review shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether a rule allows it.
    pub allowed: bool,
    /// Why; may be empty.
    pub reason: String,
}

/// Decides what a user may do.
pub trait Authorize: Send + Sync {
    /// Whether the user may use a verb on objects.
    fn check_resource(&self, verb: &str, resource: &CheckedResource) -> Decision;
    /// Whether the user may use an HTTP method on a path.
    fn check_path(&self, verb: &str, path: &str) -> Decision;
    /// The same for a service account.
    fn service_account(&self, namespace: &str, name: &str) -> Arc<dyn Authorize>;
}

/// A user and who decides what they may do.
pub type Subject = Arc<dyn Authorize>;

/// `authorizer`, and what its functions return.
#[derive(Clone)]
pub enum Authz {
    /// `authorizer`.
    Authorizer(Subject),
    /// A check of a path.
    Path(Subject, String),
    /// A check of resources of a group.
    Group(Subject, String),
    /// A check of a resource.
    Resource(Subject, CheckedResource),
    /// The decision of a check.
    Decision(Decision),
}

impl fmt::Debug for Authz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name())
    }
}

impl Authz {
    fn type_name(&self) -> &'static str {
        match self {
            Self::Authorizer(_) => AUTHORIZER,
            Self::Path(..) => PATH_CHECK,
            Self::Group(..) => GROUP_CHECK,
            Self::Resource(..) => RESOURCE_CHECK,
            Self::Decision(_) => DECISION,
        }
    }
}

impl Opaque for Authz {
    fn type_of(&self) -> Type {
        Type::opaque(self.type_name())
    }

    fn equals(&self, _: &dyn Opaque) -> Option<bool> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
const PATH_CHECK: &str = "kubernetes.authorization.PathCheck";
const GROUP_CHECK: &str = "kubernetes.authorization.GroupCheck";
const RESOURCE_CHECK: &str = "kubernetes.authorization.ResourceCheck";
const DECISION: &str = "kubernetes.authorization.Decision";

/// The cost of a check: it may be a request to another server in a real cluster.
const CHECK_COST: u64 = 350_000;

pub(super) fn authorizer_type() -> Type {
    Type::opaque(AUTHORIZER)
}

pub(super) fn resource_check_type() -> Type {
    Type::opaque(RESOURCE_CHECK)
}

/// Declares the functions of authorizers and decisions.
pub(super) fn declare(functions: &mut Functions) {
    let authorizer = authorizer_type();
    let resource = resource_check_type();
    let group = Type::opaque(GROUP_CHECK);
    let path = Type::opaque(PATH_CHECK);
    let decision = Type::opaque(DECISION);
    let with_text: [(&'static str, &'static str, &Type, &Type, CostModel, Run); 9] = [
        (
            "path",
            "authorizer_path",
            &authorizer,
            &path,
            CostModel::Unit,
            run_path,
        ),
        (
            "group",
            "authorizer_group",
            &authorizer,
            &group,
            CostModel::Unit,
            run_group,
        ),
        (
            "resource",
            "groupcheck_resource",
            &group,
            &resource,
            CostModel::Unit,
            run_resource,
        ),
        (
            "subresource",
            "resourcecheck_subresource",
            &resource,
            &resource,
            CostModel::Unit,
            |_, args| narrowed(args, |check, text| check.subresource = text),
        ),
        (
            "namespace",
            "resourcecheck_namespace",
            &resource,
            &resource,
            CostModel::Unit,
            |_, args| narrowed(args, |check, text| check.namespace = text),
        ),
        (
            "name",
            "resourcecheck_name",
            &resource,
            &resource,
            CostModel::Unit,
            |_, args| narrowed(args, |check, text| check.name = text),
        ),
        // Selectors narrow a list or watch; RBAC ignores them.
        (
            "fieldSelector",
            "authorizer_fieldselector",
            &resource,
            &resource,
            CostModel::Unit,
            |_, args| narrowed(args, |_, _| {}),
        ),
        (
            "labelSelector",
            "authorizer_labelselector",
            &resource,
            &resource,
            CostModel::Unit,
            |_, args| narrowed(args, |_, _| {}),
        ),
        (
            "check",
            "pathcheck_check",
            &path,
            &decision,
            CostModel::Fixed(CHECK_COST),
            run_check,
        ),
    ];
    for (name, id, target, result, cost, run) in with_text {
        let params = [target.clone(), Type::String];
        functions.member(name, id, &params, result.clone(), cost, run);
    }
    functions.member(
        "check",
        "resourcecheck_check",
        &[resource, Type::String],
        decision.clone(),
        CostModel::Fixed(CHECK_COST),
        run_check,
    );
    functions.member(
        "serviceAccount",
        "authorizer_serviceaccount",
        &[authorizer.clone(), Type::String, Type::String],
        authorizer,
        CostModel::Unit,
        run_service_account,
    );
    let accessors: [(&'static str, &'static str, Type, Run); 4] = [
        ("allowed", "decision_allowed", Type::Bool, |_, args| {
            Ok(Value::Bool(decided(args)?.allowed))
        }),
        ("reason", "decision_reason", Type::String, |_, args| {
            Ok(Value::text(decided(args)?.reason.as_str()))
        }),
        ("errored", "decision_errored", Type::Bool, |_, args| {
            decided(args).map(|_| Value::Bool(false))
        }),
        ("error", "decision_error", Type::String, |_, args| {
            decided(args).map(|_| Value::text(""))
        }),
    ];
    for (name, id, result, run) in accessors {
        let params = [decision.clone()];
        functions.member(name, id, &params, result, CostModel::Unit, run);
    }
}

/// Declares `jsonpatch.escapeKey`.
pub(super) fn declare_json_patch(functions: &mut Functions) {
    functions.global(
        "jsonpatch.escapeKey",
        "string_jsonpatch_escapeKey_string",
        &[Type::String],
        Type::String,
        CostModel::Pass,
        |_, args| {
            let key = text(args, 0)?;
            Ok(Value::text(key.replace('~', "~0").replace('/', "~1")))
        },
    );
}

fn target<'v>(args: &'v [Value<'_>]) -> Result<&'v Authz, Failure> {
    args.first()
        .and_then(Value::downcast)
        .ok_or_else(no_such_overload)
}

fn text<'v>(args: &'v [Value<'_>], at: usize) -> Result<&'v str, Failure> {
    match args.get(at) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(no_such_overload()),
    }
}

fn no_such_overload() -> Failure {
    Failure::new("no such overload")
}

fn run_path<'a>(_: &mut bellerophon_cel::Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    match (target(args)?, text(args, 1)?) {
        (Authz::Authorizer(_), "") => Err(Failure::new("path must not be empty")),
        (Authz::Authorizer(subject), path) => {
            Ok(Value::of(Authz::Path(subject.clone(), path.to_owned())))
        }
        _ => Err(no_such_overload()),
    }
}

fn run_group<'a>(_: &mut bellerophon_cel::Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    match target(args)? {
        Authz::Authorizer(subject) => {
            let group = text(args, 1)?.to_owned();
            Ok(Value::of(Authz::Group(subject.clone(), group)))
        }
        _ => Err(no_such_overload()),
    }
}

fn run_resource<'a>(
    _: &mut bellerophon_cel::Meter,
    args: &[Value<'a>],
) -> Result<Value<'a>, Failure> {
    match (target(args)?, text(args, 1)?) {
        (Authz::Group(..), "") => Err(Failure::new("resource must not be empty")),
        (Authz::Group(subject, group), resource) => {
            let check = CheckedResource {
                group: group.clone(),
                resource: resource.to_owned(),
                ..CheckedResource::default()
            };
            Ok(Value::of(Authz::Resource(subject.clone(), check)))
        }
        _ => Err(no_such_overload()),
    }
}

fn narrowed<'a>(
    args: &[Value<'a>],
    narrow: fn(&mut CheckedResource, String),
) -> Result<Value<'a>, Failure> {
    match target(args)? {
        Authz::Resource(subject, check) => {
            let mut check = check.clone();
            narrow(&mut check, text(args, 1)?.to_owned());
            Ok(Value::of(Authz::Resource(subject.clone(), check)))
        }
        _ => Err(no_such_overload()),
    }
}

fn run_check<'a>(_: &mut bellerophon_cel::Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let verb = text(args, 1)?;
    let decision = match target(args)? {
        Authz::Path(subject, path) => {
            let verb = verb.to_lowercase();
            subject.check_path(&verb, path)
        }
        Authz::Resource(subject, check) => subject.check_resource(verb, check),
        _ => return Err(no_such_overload()),
    };
    Ok(Value::of(Authz::Decision(decision)))
}

fn run_service_account<'a>(
    _: &mut bellerophon_cel::Meter,
    args: &[Value<'a>],
) -> Result<Value<'a>, Failure> {
    let Authz::Authorizer(subject) = target(args)? else {
        return Err(no_such_overload());
    };
    let namespace = text(args, 1)?;
    let name = text(args, 2)?;
    if !names::dns_subdomain(name).is_empty() {
        return Err(Failure::new("Invalid service account name"));
    }
    if !names::dns_label(namespace).is_empty() {
        return Err(Failure::new("Invalid service account namespace"));
    }
    let account = subject.service_account(namespace, name);
    Ok(Value::of(Authz::Authorizer(account)))
}

fn decided<'v>(args: &'v [Value<'_>]) -> Result<&'v Decision, Failure> {
    match target(args)? {
        Authz::Decision(decision) => Ok(decision),
        _ => Err(no_such_overload()),
    }
}
