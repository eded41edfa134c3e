//! Links the program at a fixed address on Linux with glibc, as Go links `kubectl` and
//! `kube-apiserver`. docs/decisions/0009-position-dependent-program.md has the figures.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_linux = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    // musl programs are static: rustc selects start files that only fit its own choice.
    let is_glibc = std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu");
    if is_linux && is_glibc {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
