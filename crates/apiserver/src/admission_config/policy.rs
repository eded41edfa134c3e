//! Policies as they are evaluated: compiled, each with its bindings, in the order of their names.
//! Mirrors `compilePolicy` of the plugins ValidatingAdmissionPolicy and MutatingAdmissionPolicy.

use serde_json::Value;

use super::{
    conditions::MatchConditions,
    matching::{Criteria, LabelSelector},
};
use bellerophon_apimachinery::json_ext::JsonExt as _;
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::admission::Compiler;
use bellerophon_resources::kinds::admission::Declared;
use bellerophon_resources::kinds::admission::Expression;
use bellerophon_resources::kinds::admission::Returns;

/// A policy.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) name: String,
    pub(crate) criteria: Criteria,
    pub(crate) conditions: MatchConditions,
    /// Whether requests are admitted if the policy cannot be evaluated.
    pub(crate) fails_open: bool,
    /// The version and kind of parameters.
    pub(crate) param_kind: Option<(String, String)>,
    /// Variables in their order: a variable uses those before it.
    pub(crate) variables: Vec<(String, Expression)>,
    pub(crate) rules: Rules,
}

/// The validations or mutations of a policy.
#[derive(Debug)]
pub(crate) enum Rules {
    Validating {
        validations: Vec<Validation>,
        audit_annotations: Vec<(String, Expression)>,
    },
    Mutating {
        mutations: Vec<Mutation>,
        is_reinvocable: bool,
    },
}

/// One validation.
#[derive(Debug)]
pub(crate) struct Validation {
    pub(crate) expression: Expression,
    /// Empty if there is none.
    pub(crate) message: String,
    pub(crate) message_expression: Option<Expression>,
    /// Empty for `Invalid`.
    pub(crate) reason: String,
}

/// One mutation.
#[derive(Debug)]
pub(crate) enum Mutation {
    ApplyConfiguration(Expression),
    JsonPatch(Expression),
}

/// A binding of a policy.
#[derive(Debug)]
pub(crate) struct Binding {
    pub(crate) name: String,
    pub(crate) policy: String,
    /// `None` for all requests that the policy matches.
    pub(crate) criteria: Option<Criteria>,
    pub(crate) param_ref: Option<ParamRef>,
    /// `Deny`, `Warn`, `Audit`; none for mutating policies.
    pub(crate) actions: Vec<String>,
}

/// Which parameters a binding uses.
#[derive(Debug)]
pub(crate) struct ParamRef {
    /// Empty if they are selected by labels.
    pub(crate) name: String,
    /// Empty for the namespace of the request.
    pub(crate) namespace: String,
    pub(crate) selector: LabelSelector,
    /// Whether requests are denied if there are none.
    pub(crate) denies_missing: bool,
}

impl Policy {
    pub(super) fn validating(object: &Object) -> Self {
        Self::of(object, |spec, compiler, declared| {
            let compile = |text: &str, authorizer: bool, returns: Returns| {
                let declared = Declared {
                    authorizer,
                    ..declared
                };
                compiler.compile(text, declared, returns)
            };
            let validations = spec.list("validations").iter().map(|validation| {
                let message = Some(validation.text("messageExpression"));
                let message = message.filter(|text| !text.trim().is_empty());
                Validation {
                    expression: compile(validation.text("expression"), true, Returns::Bool),
                    message: validation.text("message").trim().to_owned(),
                    message_expression: message.map(|text| compile(text, false, Returns::String)),
                    reason: validation.text("reason").to_owned(),
                }
            });
            let annotations = spec.list("auditAnnotations").iter().map(|annotation| {
                let text = annotation.text("valueExpression").trim();
                let key = annotation.text("key").to_owned();
                (key, compile(text, true, Returns::StringOrNull))
            });
            Rules::Validating {
                validations: validations.collect(),
                audit_annotations: annotations.collect(),
            }
        })
    }

    pub(super) fn mutating(object: &Object) -> Self {
        Self::of(object, |spec, compiler, declared| {
            let declared = Declared {
                patch_types: true,
                ..declared
            };
            let mutations = spec.list("mutations").iter().map(|mutation| {
                let text = |field: &str| mutation.field(field).text("expression");
                match mutation.text("patchType") {
                    "JSONPatch" => Mutation::JsonPatch(compiler.compile(
                        text("jsonPatch"),
                        declared,
                        Returns::JsonPatch,
                    )),
                    _ => Mutation::ApplyConfiguration(compiler.compile(
                        text("applyConfiguration"),
                        declared,
                        Returns::Object,
                    )),
                }
            });
            Rules::Mutating {
                mutations: mutations.collect(),
                is_reinvocable: spec.text("reinvocationPolicy") == "IfNeeded",
            }
        })
    }

    fn of(object: &Object, rules: impl FnOnce(&Value, &Compiler, Declared) -> Rules) -> Self {
        let spec = object.body.field("spec");
        let param_kind = spec.get_set("paramKind").map(|kind| {
            let api_version = kind.text("apiVersion").to_owned();
            (api_version, kind.text("kind").to_owned())
        });
        let declared = Declared {
            params: param_kind.is_some(),
            authorizer: true,
            ..Declared::default()
        };
        let mut compiler = Compiler::composing();
        let variables = spec.list("variables").iter().map(|variable| {
            let name = variable.text("name");
            let expression = compiler.declare(name, variable.text("expression"), declared);
            (name.to_owned(), expression)
        });
        let variables: Vec<_> = variables.collect();
        Self {
            name: object.meta.name.clone(),
            criteria: Criteria::of_policy(spec.field("matchConstraints")),
            conditions: MatchConditions::of(
                spec.list("matchConditions"),
                param_kind.is_some(),
                &compiler,
            ),
            fails_open: spec.text("failurePolicy") == "Ignore",
            rules: rules(spec, &compiler, declared),
            param_kind,
            variables,
        }
    }
}

impl Binding {
    pub(super) fn of(object: &Object) -> Self {
        let spec = object.body.field("spec");
        Self {
            name: object.meta.name.clone(),
            policy: spec.text("policyName").to_owned(),
            criteria: spec.get_set("matchResources").map(Criteria::of_policy),
            param_ref: spec.get_set("paramRef").map(|reference| ParamRef {
                name: reference.text("name").to_owned(),
                namespace: reference.text("namespace").to_owned(),
                selector: LabelSelector::of(reference.field("selector")),
                denies_missing: reference.text("parameterNotFoundAction") == "Deny",
            }),
            actions: spec.texts("validationActions").map(str::to_owned).collect(),
        }
    }
}
