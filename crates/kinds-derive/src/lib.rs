//! `#[derive(Kind)]`: the codec of a custom resource.
//! In: the struct that `#[derive(CustomResource)]` generates. Out: its implementation of
//! `bellerophon::Kind`.
//!
//! The name of the type is all that is needed, so the macro reads tokens itself instead of
//! compiling a parser.

use proc_macro::{TokenStream, TokenTree};

/// Implements `bellerophon::Kind` for a custom resource.
///
/// It is given to kube's derive macro, which passes it on to the type it generates:
///
/// ```ignore
/// #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
/// #[kube(group = "example.org", version = "v1", kind = "Hero", namespaced, derive = "Kind")]
/// struct HeroSpec { replicas: i32 }
/// ```
#[proc_macro_derive(Kind)]
pub fn derive_kind(item: TokenStream) -> TokenStream {
    let mut tokens = item.into_iter();
    let is_struct =
        |token: &TokenTree| matches!(token, TokenTree::Ident(word) if word.to_string() == "struct");
    let Some(TokenTree::Ident(name)) = tokens.by_ref().find(is_struct).and_then(|_| tokens.next())
    else {
        return error("Kind can be derived for a struct only");
    };
    if matches!(tokens.next(), Some(TokenTree::Punct(next)) if next.as_char() == '<') {
        return error("Kind cannot be derived for a generic struct: a kind has one schema");
    }
    // The codec is a static of a function that is never inlined: an inlined or promoted one would
    // be instantiated again, with the type's serde code, in every crate that uses the kind.
    let code = format!(
        "impl ::bellerophon::Kind for {name} {{
            #[inline(never)]
            fn codec() -> &'static ::bellerophon::kinds::KindCodec {{
                static CODEC: ::bellerophon::kinds::KindCodec =
                    ::bellerophon::kinds::KindCodec::of::<{name}>();
                &CODEC
            }}
        }}"
    );
    code.parse()
        .unwrap_or_else(|_| error("the name of the struct cannot be used"))
}

fn error(message: &str) -> TokenStream {
    let code = format!("compile_error!({message:?});");
    code.parse()
        .expect("a literal in a macro call is valid Rust")
}
