//! Build script: with the feature `descriptions`, writes the descriptions of the built-in types.
//!
//! In: the source of the k8s-openapi package in the dependency graph, of the Kubernetes version
//! that is enabled there. Out: `OUT_DIR/descriptions.json.gz`, a JSON object by published type
//! name: `{"description": "...", "fields": {"name": "..."}}`.
//!
//! The texts are Kubernetes' own, so they are not in this repository. Reading them from source
//! takes half a second. Compiling k8s-openapi's `JsonSchema` implementations, which have the same
//! texts, takes 47 s of CPU time in a release build.

#![expect(
    clippy::print_stdout,
    reason = "cargo reads the directives of build scripts from stdout"
)]

#[cfg(feature = "descriptions")]
mod package; // where k8s-openapi is
#[cfg(feature = "descriptions")]
mod schemas; // descriptions from its source

fn main() {
    println!("cargo::rerun-if-changed=build");
    #[cfg(feature = "descriptions")]
    if let Err(error) = descriptions() {
        println!("cargo::error=feature `descriptions`: {error}");
    }
}

#[cfg(feature = "descriptions")]
fn descriptions() -> Result<(), String> {
    let out = std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?;
    let out = std::path::Path::new(&out);
    let source = package::Package::find()?.types_dir(out)?;
    println!("cargo::rerun-if-changed={}", source.display());
    let descriptions = schemas::read(&source)?;
    let path = out.join("descriptions.json.gz");
    schemas::write(&descriptions, &path)
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}
