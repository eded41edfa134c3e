//! The environment of admission expressions: variables, types and functions.
//! In: the text of an expression. Out: a program, or errors with the messages of kube-apiserver.
//! Mirrors `k8s.io/apiserver/pkg/admission/plugin/cel`: `compile.go` and `composition.go`.

use std::sync::LazyLock;

use bellerophon_cel::{CompileError, Environment, MessageType, Program, Type};

use super::authorizer;

/// The type of `variables`.
pub(super) const VARIABLES: &str = "kubernetes.variables";

/// The variables of an expression besides `object`, `oldObject`, `request` and `namespaceObject`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// `params`.
    pub params: bool,
    /// `authorizer` and `authorizer.requestResource`.
    pub authorizer: bool,
    /// `variables`.
    pub variables: bool,
    /// `Object{…}` and `JSONPatch{…}`.
    pub patch_types: bool,
}

/// The required type of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// A value of any type.
    Anything,
    /// A boolean.
    Bool,
    /// A text.
    String,
    /// A text, or null.
    StringOrNull,
    /// An apply configuration.
    Object,
    /// A list of JSON Patch operations.
    JsonPatch,
}

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Expression {
    /// The expression itself.
    pub text: String,
    /// The declared variables.
    pub declared: Declared,
    /// Why there is no program, if there is none.
    pub program: Result<Program, String>,
}

/// Compiles the expressions of one webhook or policy. Variables are declared in their order.
#[derive(Clone, Debug, Default)]
pub struct Compiler {
    /// Whether `variables` is declared.
    composes: bool,
    variables: Vec<(String, Type)>,
}

impl Compiler {
    /// Expressions that may use `variables`.
    pub fn composing() -> Self {
        Self {
            composes: true,
            variables: Vec::new(),
        }
    }

    /// Compiles a variable, which later expressions may use.
    pub fn declare(&mut self, name: &str, text: &str, declared: Declared) -> Expression {
        let expression = self.compile(text, declared, Returns::Anything);
        let ty = match &expression.program {
            Ok(program) => program.output().clone(),
            Err(_) => Type::Dyn,
        };
        self.variables.retain(|(other, _)| other != name);
        self.variables.push((name.to_owned(), ty));
        expression
    }

    /// Compiles an expression.
    pub fn compile(&self, text: &str, declared: Declared, returns: Returns) -> Expression {
        let declared = Declared {
            variables: self.composes,
            ..declared
        };
        let program = match self.environment(declared).compile(text) {
            Ok(program) => returns.check(program),
            Err(CompileError::Issues(issues)) => Err(format!("compilation failed: {issues}")),
            Err(CompileError::Plan(why)) => Err(format!("program instantiation failed: {why}")),
        };
        Expression {
            text: text.to_owned(),
            declared,
            program,
        }
    }

    /// Variables are declared in the order in which an evaluation gives their values.
    fn environment(&self, declared: Declared) -> Environment {
        let mut environment = BASE.clone();
        if declared.params {
            environment = environment.with_variable("params", Type::Dyn);
        }
        if declared.authorizer {
            environment = environment
                .with_variable("authorizer", authorizer::authorizer_type())
                .with_variable(
                    "authorizer.requestResource",
                    authorizer::resource_check_type(),
                );
        }
        if declared.variables {
            environment = environment
                .with_object(VARIABLES, self.variables.iter().cloned())
                .with_variable("variables", Type::object(VARIABLES));
        }
        if declared.patch_types {
            environment = environment
                .with_messages(patch_type)
                .with_functions(authorizer::declare_json_patch);
        }
        environment
    }
}

impl Returns {
    fn check(self, program: Program) -> Result<Program, String> {
        let output = program.output();
        let (is_right, expected) = match self {
            Self::Anything => return Ok(program),
            Self::Bool => (*output == Type::Bool, "bool"),
            Self::String => (*output == Type::String, "string"),
            Self::StringOrNull => (
                matches!(output, Type::String | Type::Null),
                "one of [string null_type]",
            ),
            Self::Object => (*output == Type::object("Object"), "Object"),
            Self::JsonPatch => (
                *output == Type::list(Type::object("JSONPatch")),
                "list(JSONPatch)",
            ),
        };
        if is_right {
            return Ok(program);
        }
        let found = match output {
            Type::Null => "null_type".to_owned(),
            output => output.to_string(),
        };
        Err(format!("must evaluate to {expected} but got {found}"))
    }
}

/// The types of messages that mutations make.
fn patch_type(name: &str) -> Option<MessageType> {
    const JSON_PATCH: &[(&str, Type)] = &[
        ("op", Type::String),
        ("path", Type::String),
        ("from", Type::String),
        ("value", Type::Dyn),
    ];
    match name {
        "JSONPatch" => Some(MessageType::Fields(JSON_PATCH)),
        "Object" => Some(MessageType::Open),
        name if name.starts_with("Object.") => Some(MessageType::Open),
        _ => None,
    }
}

/// The variables and types that every admission expression has.
pub(super) static BASE: LazyLock<Environment> = LazyLock::new(|| {
    let list = |item: Type| Type::list(item);
    let strings = || Type::map(Type::String, Type::String);
    let objects: [(&str, Vec<(&str, Type)>); 9] = [
        (
            "kubernetes.GroupVersionKind",
            vec![
                ("group", Type::String),
                ("version", Type::String),
                ("kind", Type::String),
            ],
        ),
        (
            "kubernetes.GroupVersionResource",
            vec![
                ("group", Type::String),
                ("version", Type::String),
                ("resource", Type::String),
            ],
        ),
        (
            "kubernetes.UserInfo",
            vec![
                ("username", Type::String),
                ("uid", Type::String),
                ("groups", list(Type::String)),
                ("extra", Type::map(Type::String, list(Type::String))),
            ],
        ),
        (
            "kubernetes.AdmissionRequest",
            vec![
                ("kind", Type::object("kubernetes.GroupVersionKind")),
                ("resource", Type::object("kubernetes.GroupVersionResource")),
                ("subResource", Type::String),
                ("requestKind", Type::object("kubernetes.GroupVersionKind")),
                (
                    "requestResource",
                    Type::object("kubernetes.GroupVersionResource"),
                ),
                ("requestSubResource", Type::String),
                ("name", Type::String),
                ("namespace", Type::String),
                ("operation", Type::String),
                ("userInfo", Type::object("kubernetes.UserInfo")),
                ("dryRun", Type::Bool),
                ("options", Type::Dyn),
            ],
        ),
        (
            "kubernetes.NamespaceSpec",
            vec![("finalizers", list(Type::String))],
        ),
        (
            "kubernetes.NamespaceCondition",
            vec![
                ("status", Type::String),
                ("type", Type::String),
                ("lastTransitionTime", Type::Timestamp),
                ("message", Type::String),
                ("reason", Type::String),
            ],
        ),
        (
            "kubernetes.NamespaceStatus",
            vec![
                (
                    "conditions",
                    list(Type::object("kubernetes.NamespaceCondition")),
                ),
                ("phase", Type::String),
            ],
        ),
        (
            "kubernetes.NamespaceMetadata",
            vec![
                ("name", Type::String),
                ("generateName", Type::String),
                ("namespace", Type::String),
                ("labels", strings()),
                ("annotations", strings()),
                ("UID", Type::String),
                ("creationTimestamp", Type::Timestamp),
                ("deletionGracePeriodSeconds", Type::Int),
                ("deletionTimestamp", Type::Timestamp),
                ("generation", Type::Int),
                ("resourceVersion", Type::String),
                ("finalizers", list(Type::String)),
            ],
        ),
        (
            "kubernetes.Namespace",
            vec![
                ("metadata", Type::object("kubernetes.NamespaceMetadata")),
                ("spec", Type::object("kubernetes.NamespaceSpec")),
                ("status", Type::object("kubernetes.NamespaceStatus")),
            ],
        ),
    ];
    let mut environment = Environment::kubernetes().with_functions(authorizer::declare);
    for (name, fields) in objects {
        let fields = fields.into_iter().map(|(field, ty)| (field.to_owned(), ty));
        environment = environment.with_object(name, fields);
    }
    environment
        .with_variable("object", Type::Dyn)
        .with_variable("oldObject", Type::Dyn)
        .with_variable("request", Type::object("kubernetes.AdmissionRequest"))
        .with_variable("namespaceObject", Type::object("kubernetes.Namespace"))
});

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Declared = Declared {
        params: true,
        authorizer: true,
        variables: false,
        patch_types: false,
    };

    fn error(text: &str, declared: Declared, returns: Returns) -> String {
        Compiler::default()
            .compile(text, declared, returns)
            .program
            .err()
            .unwrap_or_default()
    }

    #[test]
    fn expressions_see_declared_fields_only() {
        let sound = [
            "request.userInfo.username == 'a' && object.spec.x > 1",
            "namespaceObject.metadata.labels['a'] == 'b' && params.x == 1",
            "authorizer.group('apps').resource('deployments').namespace('n').check('get').allowed()",
            "authorizer.requestResource.check('create').reason() == ''",
            "authorizer.serviceAccount('n', 'a').path('/healthz').check('get').errored()",
        ];
        for text in sound {
            assert_eq!(error(text, ALL, Returns::Bool), "", "{text}");
        }
        let refused = [
            ("request.nosuch == 'a'", "undefined field 'nosuch'"),
            ("variables.a", "undeclared reference to 'variables'"),
            ("1", "must evaluate to bool but got int"),
            ("object.a", "must evaluate to bool but got dyn"),
            ("Object{}", "undeclared reference to 'Object'"),
        ];
        for (text, expected) in refused {
            let found = error(text, ALL, Returns::Bool);
            assert!(found.contains(expected), "{text}: {found}");
        }
        let found = error("params.x == 1", Declared::default(), Returns::Bool);
        assert!(
            found.contains("undeclared reference to 'params'"),
            "{found}"
        );
    }

    #[test]
    fn variables_have_the_types_of_their_expressions() {
        let mut compiler = Compiler::composing();
        compiler.declare("names", "object.items.map(i, string(i.name))", ALL);
        let sound = compiler.compile("variables.names.exists(n, n == 'a')", ALL, Returns::Bool);
        assert!(sound.program.is_ok(), "{:?}", sound.program);
        let unknown = compiler.compile("variables.other == 1", ALL, Returns::Bool);
        let why = unknown.program.expect_err("there is no such variable");
        assert!(why.contains("undefined field 'other'"), "{why}");
    }

    #[test]
    fn mutations_return_patches() {
        let declared = Declared {
            patch_types: true,
            ..ALL
        };
        let object = "Object{metadata: Object.metadata{labels: {'a': 'b'}}}";
        assert_eq!(error(object, declared, Returns::Object), "");
        let patch = "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b'), value: 'c'}]";
        assert_eq!(error(patch, declared, Returns::JsonPatch), "");
        assert_eq!(
            error(patch, declared, Returns::Object),
            "must evaluate to Object but got list(JSONPatch)"
        );
        let unknown = error("[JSONPatch{oops: 1}]", declared, Returns::JsonPatch);
        assert!(
            unknown.contains("expected type of field 'oops'"),
            "{unknown}"
        );
    }
}
