//! An operation: one method of one path.
//! In: names, parameters, schemas. Out: the operation in the form of either document.

use serde_json::{Map, Value, json};

use super::{
    form::Form,
    parameters::{self, Parameter},
};

/// Media types in the order in which they are listed.
pub(super) type Media = &'static [&'static str];

/// One operation, before it is written.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    /// Unique in the document: `createAppsV1NamespacedDeployment`.
    pub(super) id: String,
    pub(super) about: String,
    /// The action and its kind; `None` for non-resource paths.
    pub(super) action: Option<(&'static str, Value)>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Option<Body>,
    pub(super) consumes: Media,
    pub(super) produces: Media,
    /// The codes that bring the answer, each with its name.
    pub(super) codes: &'static [(&'static str, &'static str)],
    pub(super) answer: Value,
}

/// The body of a request.
#[derive(Clone, Debug)]
pub(super) struct Body {
    pub(super) schema: Value,
    pub(super) required: bool,
}

pub(super) const OK: &[(&str, &str)] = &[("200", "OK")];
pub(super) const OK_OR_CREATED: &[(&str, &str)] = &[("200", "OK"), ("201", "Created")];
pub(super) const OK_OR_ACCEPTED: &[(&str, &str)] = &[("200", "OK"), ("202", "Accepted")];
pub(super) const ANY_SUCCESS: &[(&str, &str)] =
    &[("200", "OK"), ("201", "Created"), ("202", "Accepted")];

impl Operation {
    /// An operation that takes nothing and answers with `answer`.
    pub(super) fn new(id: String, about: String, answer: Value) -> Self {
        Self {
            id,
            about,
            action: None,
            parameters: Vec::new(),
            body: None,
            consumes: &[],
            produces: &["application/json"],
            codes: OK,
            answer,
        }
    }

    fn write(&self, form: Form, tag: &str) -> Value {
        let mut operation = match form {
            Form::V2 => self.write_v2(),
            Form::V3 => self.write_v3(),
        };
        operation["tags"] = json!([tag]);
        operation["description"] = self.about.as_str().into();
        operation["operationId"] = self.id.as_str().into();
        operation["responses"]["401"] = json!({"description": "Unauthorized"});
        if let Some((action, kind)) = &self.action {
            operation["x-kubernetes-action"] = (*action).into();
            operation["x-kubernetes-group-version-kind"] = kind.clone();
        }
        operation
    }

    fn write_v2(&self) -> Value {
        let response = |name: &str| json!({"description": name, "schema": self.answer});
        let mut operation = json!({"schemes": ["https"], "produces": self.produces, "responses": self.responses(response)});
        if !self.consumes.is_empty() {
            operation["consumes"] = self.consumes.into();
        }
        let body = self
            .body
            .iter()
            .map(|body| parameters::body(&body.schema, body.required));
        let parameters: Vec<Value> = body
            .chain(self.parameters.iter().map(|p| p.write(Form::V2)))
            .collect();
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        operation
    }

    fn write_v3(&self) -> Value {
        let response = |name: &str| json!({"description": name, "content": content(self.produces, &self.answer)});
        let mut operation = json!({"responses": self.responses(response)});
        if !self.parameters.is_empty() {
            operation["parameters"] = self.parameters.iter().map(|p| p.write(Form::V3)).collect();
        }
        if let Some(body) = &self.body {
            operation["requestBody"] = json!({"content": content(self.consumes, &body.schema)});
            if body.required {
                operation["requestBody"]["required"] = true.into();
            }
        }
        operation
    }

    fn responses(&self, write: impl Fn(&str) -> Value) -> Map<String, Value> {
        self.codes
            .iter()
            .map(|(code, name)| ((*code).to_owned(), write(name)))
            .collect()
    }
}

fn content(types: Media, schema: &Value) -> Value {
    types
        .iter()
        .map(|media_type| ((*media_type).to_owned(), json!({"schema": schema})))
        .collect::<Map<_, _>>()
        .into()
}

/// Writes what can be done at one path. Parameters that all its operations take stand at the path
/// itself.
pub(super) fn path_item(
    form: Form,
    tag: &str,
    operations: Vec<(&'static str, Operation)>,
) -> Value {
    let mut operations = operations;
    let first = operations
        .first()
        .map(|(_, operation)| operation.parameters.clone())
        .unwrap_or_default();
    let mut common: Vec<Parameter> = first
        .into_iter()
        .filter(|p| {
            operations
                .iter()
                .all(|(_, operation)| operation.parameters.contains(p))
        })
        .collect();
    common.sort_by_key(Parameter::order);
    for (_, operation) in &mut operations {
        operation.parameters.retain(|p| !common.contains(p));
    }
    let mut item: Map<String, Value> = operations
        .iter()
        .map(|(method, operation)| ((*method).to_owned(), operation.write(form, tag)))
        .collect();
    if !common.is_empty() {
        item.insert(
            "parameters".into(),
            common.iter().map(|p| p.write(form)).collect(),
        );
    }
    item.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_all_operations_are_at_the_path() {
        let operation = |id: &str, more: &[&str]| Operation {
            parameters: [Parameter::in_query(&["pretty"]), Parameter::in_query(more)].concat(),
            ..Operation::new(id.to_owned(), String::new(), json!({"type": "string"}))
        };
        let item = path_item(
            Form::V3,
            "core_v1",
            vec![
                ("get", operation("read", &[])),
                ("put", operation("replace", &["dryRun"])),
            ],
        );
        assert_eq!(item["parameters"][0]["name"], "pretty");
        assert_eq!(&item["get"]["parameters"], &Value::Null);
        assert_eq!(
            &item["put"]["parameters"][0]["name"],
            &Value::from("dryRun")
        );
        assert_eq!(
            item["put"]["responses"]["200"]["content"]["application/json"]["schema"]["type"],
            "string"
        );
    }
}
