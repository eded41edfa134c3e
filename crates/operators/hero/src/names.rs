//! Names, labels, ports and addresses of everything that belongs to a store.
//!
//! Guarantee: every name is a function of the Bellerophon and, for members, of their random name;
//! two stores of one namespace share nothing.

use std::collections::BTreeMap;

use bellerophon::clock::Rng;
use kube::ResourceExt as _;

use crate::crd::{Bellerophon, MemberRole, MemberStatus};

/// The label with the name of the Bellerophon.
pub const HERO_LABEL: &str = "stable.bellerophon.io/hero";

/// The label of claims with the UID of the Bellerophon, which a later object of its name lacks.
pub const HERO_UID_LABEL: &str = "stable.bellerophon.io/hero-uid";

/// The label with the cluster id.
pub const CLUSTER_LABEL: &str = "stable.bellerophon.io/cluster-id";

/// The label with the member id.
pub const MEMBER_LABEL: &str = "stable.bellerophon.io/member-id";

/// The label of Pods with the role `voter` or `reader`; the PodDisruptionBudget selects voters.
pub const ROLE_LABEL: &str = "stable.bellerophon.io/role";

/// The label of claims that are never mounted again.
pub const RETIRED_LABEL: &str = "stable.bellerophon.io/retired";

/// The label that distinguishes Pods of members, backups and restores.
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/component";

/// The component of members.
pub const MEMBER_COMPONENT: &str = "member";

/// The component of Pods that write or delete backups.
pub const BACKUP_COMPONENT: &str = "backup";

/// The component of Pods that restore a data directory.
pub const RESTORE_COMPONENT: &str = "restore";

/// The annotation of Pods with the inputs that they were created from.
pub const REVISION_ANNOTATION: &str = "stable.bellerophon.io/revision";

/// The annotation of Secrets with the time at which their certificate expires.
pub const NOT_AFTER_ANNOTATION: &str = "stable.bellerophon.io/not-after";

/// The finalizer of a Bellerophon: its claims are deleted or retired first.
pub const FINALIZER: &str = "stable.bellerophon.io/claims";

/// The finalizer of a Backup: its file is deleted first.
pub const BACKUP_FINALIZER: &str = "stable.bellerophon.io/file";

/// The port of the client and admin API.
pub const CLIENT_PORT: u16 = 7070;

/// The port of the API between members.
pub const PEER_PORT: u16 = 7071;

/// The port of health and metrics.
pub const HEALTH_PORT: u16 = 7072;

/// The characters of random names: those of Kubernetes' `generateName`.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The length of the random part: 27^5, 14 million, names.
const RANDOM_LENGTH: usize = 5;

/// The longest name of a Bellerophon whose members still have valid host names.
pub const NAME_LENGTH_MAX: usize = 63 - "-".len() - RANDOM_LENGTH - "-restore".len();

/// A random name for a member.
pub fn random_member_name(hero: &str, rng: &Rng) -> String {
    let mut name = format!("{hero}-");
    for _ in 0..RANDOM_LENGTH {
        let index = rng.below(ALPHABET.len() as u64) as usize;
        name.push(char::from(ALPHABET[index]));
    }
    name
}

/// A random UUID (version 4) for a cluster.
pub fn random_cluster_id(rng: &Rng) -> String {
    let mut bytes = [0_u8; 16];
    for byte in &mut bytes {
        *byte = rng.below(256) as u8;
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// The headless Service of the members.
pub fn peer_service(hero: &str) -> String {
    format!("{hero}-peer")
}

/// The Secret with the certificate authority.
pub fn ca_secret(hero: &str) -> String {
    format!("{hero}-ca")
}

/// The Secret with the admin token.
pub fn admin_secret(hero: &str) -> String {
    format!("{hero}-admin")
}

/// The Secret with the client token and the CA certificate, for clients.
pub fn client_secret(hero: &str) -> String {
    format!("{hero}-client")
}

/// The Secret with the certificate of a member.
pub fn member_secret(member: &str) -> String {
    format!("{member}-tls")
}

/// The Pod that restores the data directory of the first member.
pub fn restore_pod(member: &str) -> String {
    format!("{member}-restore")
}

/// The claim of a store's backups.
pub fn backup_claim(hero: &str) -> String {
    format!("{hero}-backup")
}

/// The host name of a member.
pub fn host(hero: &Bellerophon, member: &str) -> String {
    let namespace = hero.namespace().unwrap_or_default();
    format!(
        "{member}.{}.{namespace}.svc",
        peer_service(&hero.name_any())
    )
}

/// The address of a member in the membership.
pub fn peer_address(hero: &Bellerophon, member: &str) -> String {
    format!("{}:{PEER_PORT}", host(hero, member))
}

/// The name in a member's certificate that proves its identity to other members.
pub fn identity(cluster_id: &str, member_id: u64) -> String {
    format!("m-{member_id}.{cluster_id}.store.bellerophon.io")
}

/// The labels of everything that belongs to a store.
pub fn labels(hero: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (
            "app.kubernetes.io/name".to_owned(),
            "bellerophon-store".to_owned(),
        ),
        ("app.kubernetes.io/instance".to_owned(), hero.to_owned()),
        (
            "app.kubernetes.io/managed-by".to_owned(),
            "bellerophon".to_owned(),
        ),
        (HERO_LABEL.to_owned(), hero.to_owned()),
    ])
}

/// The labels that select the Pods of all members.
pub fn member_selector(hero: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (HERO_LABEL.to_owned(), hero.to_owned()),
        (COMPONENT_LABEL.to_owned(), MEMBER_COMPONENT.to_owned()),
    ])
}

/// The labels that select the Pods of voters.
pub fn voter_selector(hero: &str) -> BTreeMap<String, String> {
    let mut labels = member_selector(hero);
    labels.insert(
        ROLE_LABEL.to_owned(),
        role_label(MemberRole::Voter).to_owned(),
    );
    labels
}

/// The value of [`ROLE_LABEL`].
pub fn role_label(role: MemberRole) -> &'static str {
    match role {
        MemberRole::Voter => "voter",
        MemberRole::Reader => "reader",
    }
}

/// The labels of a member's claim: whose disk it is.
pub fn claim_labels(
    hero: &Bellerophon,
    cluster_id: &str,
    member: &MemberStatus,
) -> BTreeMap<String, String> {
    let mut labels = labels(&hero.name_any());
    labels.insert(HERO_UID_LABEL.to_owned(), hero.uid().unwrap_or_default());
    labels.insert(CLUSTER_LABEL.to_owned(), cluster_id.to_owned());
    labels.insert(MEMBER_LABEL.to_owned(), member.id.to_string());
    labels.insert(COMPONENT_LABEL.to_owned(), MEMBER_COMPONENT.to_owned());
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_names_are_valid_host_names() {
        let rng = Rng::seeded(1);
        let hero = "h".repeat(NAME_LENGTH_MAX);
        for _ in 0..100 {
            let name = restore_pod(&random_member_name(&hero, &rng));
            assert!(name.len() <= 63, "{name}");
            assert!(
                name.bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            );
        }
    }

    #[test]
    fn cluster_ids_are_random_uuids() {
        let rng = Rng::seeded(1);
        let first = random_cluster_id(&rng);
        let second = random_cluster_id(&rng);
        assert_ne!(first, second);
        for id in [first, second] {
            let lengths: Vec<usize> = id.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
            assert_eq!(id.as_bytes()[14], b'4', "{id}");
        }
    }
}
