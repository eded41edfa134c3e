//! The internal Go structs of kube-apiserver, which some of its messages print whole or as a diff.
//! In: the name of a struct and a value of an object. Out: the text of a message.
//! Guarantees: every member is printed under its Go name and in the order of the struct, with null
//! or the zero value where an object has no value.

mod diff; // unified diffs
mod model; // entries of the table
#[rustfmt::skip]
mod table; // the structs of Kubernetes 1.36, generated
mod view; // a value seen as a struct

use bellerophon_apimachinery::field::Shown;
use serde::Serialize as _;
use serde_json::{Serializer, Value, ser::PrettyFormatter};

use self::{model::Holds, view::View};
use super::written::escape;

/// A value that messages show as the server has it.
pub struct Internal<'a>(View<'a>);

impl<'a> Internal<'a> {
    /// A struct: `Internal::one("core.PodSpec", spec)`.
    pub fn one(name: &'static str, value: &'a Value) -> Self {
        Self(View::of(Holds::Maybe, name, value))
    }

    /// A list of structs.
    pub fn list(name: &'static str, value: &'a Value) -> Self {
        Self(View::of(Holds::List, name, value))
    }
}

impl Shown for Internal<'_> {
    fn shown(&self) -> String {
        escape(&serde_json::to_string(&self.0).expect("a view has nothing that JSON has not"))
    }
}

/// The differences of a value of the struct `name`, as a unified diff.
pub fn changes(name: &'static str, old: &Value, new: &Value) -> String {
    diff::unified(&lines(name, old), &lines(name, new))
}

fn lines(name: &'static str, value: &Value) -> String {
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b" "));
    View::of(Holds::Maybe, name, value)
        .serialize(&mut serializer)
        .expect("a view has nothing that JSON has not");
    escape(&String::from_utf8(text).expect("JSON is text"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn struct_shows_every_member_under_its_go_name() {
        let cases = [
            (
                "rbac.RoleRef",
                json!({"kind": "Role", "name": "a<b"}),
                r#"{"APIGroup":"","Kind":"Role","Name":"a\u003cb"}"#,
            ),
            (
                "core.NodeSelectorTerm",
                json!({}),
                r#"{"MatchExpressions":null,"MatchFields":null}"#,
            ),
            (
                "core.ResourceRequirements",
                json!({"limits": {"cpu": "1"}}),
                r#"{"Limits":{"cpu":"1"},"Requests":null,"Claims":null}"#,
            ),
            ("batch.SuccessPolicy", Value::Null, "null"),
            (
                "policy.PodDisruptionBudgetSpec",
                json!({"minAvailable": "50%", "selector": {"matchExpressions": [{"operator": "Exists", "key": "a"}], "matchLabels": {"b": "c"}}}),
                r#"{"MinAvailable":"50%","Selector":{"matchLabels":{"b":"c"},"matchExpressions":[{"key":"a","operator":"Exists"}]},"MaxUnavailable":null,"UnhealthyPodEvictionPolicy":null}"#,
            ),
            (
                "storage.VolumeAttachmentSpec",
                json!({"attacher": "a", "source": {"persistentVolumeName": "v"}}),
                r#"{"Attacher":"a","Source":{"PersistentVolumeName":"v","InlineVolumeSpec":null},"NodeName":""}"#,
            ),
        ];
        for (name, value, expected) in cases {
            assert_eq!(Internal::one(name, &value).shown(), expected, "{name}");
        }
    }

    #[test]
    fn metadata_is_a_member_and_host_settings_are_in_the_security_context() {
        let template = json!({"metadata": {"labels": {"a": "b"}, "name": "n"}, "spec": {"hostNetwork": true, "hostUsers": false}});
        let shown = Internal::one("core.PodTemplateSpec", &template).shown();
        assert!(
            shown.starts_with(r#"{"name":"n","labels":{"a":"b"},"Spec":{"Volumes":null,"#),
            "{shown}"
        );
        let context = r#""SecurityContext":{"HostNetwork":true,"HostPID":false,"HostIPC":false,"ShareProcessNamespace":null,"HostUsers":false,"#;
        assert!(shown.contains(context), "{shown}");
    }

    #[test]
    fn change_is_shown_with_three_lines_around_it() {
        let old = json!({"name": "a", "weight": 1});
        let new = json!({"kind": "User", "name": "b"});
        let expected = "@@ -1,5 +1,5 @@\n {\n  \"APIGroup\": \"\",\n- \"Kind\": \"\",\n- \"Name\": \"a\"\n+ \"Kind\": \"User\",\n+ \"Name\": \"b\"\n }\n";
        assert_eq!(changes("rbac.RoleRef", &old, &new), expected);
        assert_eq!(changes("rbac.RoleRef", &old, &old), "");
    }
}
