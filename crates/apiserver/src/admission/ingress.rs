//! Sets the default class of an Ingress without one.
//! Mirrors the plugin DefaultIngressClass.

use bellerophon_apimachinery::json_ext::{JsonDefaults, JsonExt};
use bellerophon_codec::object::Object;

use super::{Admission, storage::newest_default};

const DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";
/// How ingresses named their class before it was a field.
const CLASS: &str = "kubernetes.io/ingress.class";

pub(super) fn mutate(request: &Admission<'_>, ingress: &mut Object) {
    let classless = || {
        !ingress.body.field("spec").has("ingressClassName")
            && !ingress.meta.annotations.contains_key(CLASS)
    };
    if !request.creates("networking.k8s.io", "ingresses") || !classless() {
        return;
    }
    if let Some(class) = newest_default(request, "networking.k8s.io/ingressclasses", &[DEFAULT]) {
        ingress
            .section("spec")
            .default_to("ingressClassName", class);
    }
}
