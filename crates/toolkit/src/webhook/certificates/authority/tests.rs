//! Three years of rotations: three replicas, two API servers, caches of different ages, and a
//! replica that is down now and then. Every minute, every API server calls every replica that is
//! up.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::{ServerName, UnixTime};

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

/// 2026-01-01T00:00:00Z.
const START: i64 = 1_767_225_600;

const NAME: &str = "operator.heroes.svc";

/// Whether an API server with this bundle accepts this certificate, as rustls verifies it.
fn accepts(bundle: &str, leaf: &Leaf, now: Timestamp) -> bool {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .unwrap();
    let name = ServerName::try_from(NAME).unwrap();
    let now = Duration::from_secs(now.as_second().unsigned_abs());
    let now = UnixTime::since_unix_epoch(now);
    let certificate = &leaf.pair.cert[0];
    verifier
        .verify_server_cert(certificate, &[], &name, &[], now)
        .is_ok()
}

/// A value that readers see some minutes late.
struct Delayed<T>(VecDeque<T>);

impl<T: Clone> Delayed<T> {
    fn new(first: T, minutes: usize) -> Self {
        Self(std::iter::repeat_n(first, minutes + 1).collect())
    }

    /// The value of a minute; returns what the reader sees.
    fn push(&mut self, value: T) -> T {
        self.0.push_back(value);
        self.0.pop_front().expect("it is never empty")
    }
}

/// A replica: what it sees of the Secret, and its certificate.
struct Replica {
    secret: Delayed<Arc<Authorities>>,
    leaf: Option<Leaf>,
    /// How many minutes it stays down.
    down: u32,
}

/// A combination of certificate and bundle, since when it was used, and when it was last.
struct InUse {
    leaf: Leaf,
    bundle: Arc<str>,
    last: Timestamp,
}

#[test]
fn three_years_of_rotations_fail_no_call() {
    let mut rng = StdRng::seed_from_u64(3);
    let names = [SubjectName::Dns(NAME.to_owned())];
    let start = Timestamp::from_second(START).unwrap();
    let mut secret = Arc::new(Authorities::new(0, start).unwrap());
    let mut bundle: Arc<str> = secret.bundle().into();
    // What the API server stores: two configurations, which are written one after the other.
    let mut stored = [bundle.clone(), bundle.clone()];
    // One API server sees configurations immediately, one five minutes late.
    let mut seen = [0, 5].map(|age| Delayed::new(stored.clone(), age));
    // The third replica reads a Secret that is five minutes old.
    let mut replicas = [0, 0, 5].map(|age| Replica {
        secret: Delayed::new(secret.clone(), age),
        leaf: None,
        down: 0,
    });
    let mut in_use: [[[Option<InUse>; 2]; 2]; 3] = Default::default();
    let mut calls = 0_u64;
    let mut verified = 0_u64;
    let mut rotations = 0;
    let mut check = |in_use: &InUse, now: Timestamp| {
        verified += 1;
        let is_accepted = accepts(&in_use.bundle, &in_use.leaf, now);
        assert!(
            is_accepted,
            "{now}: a call fails, signed by {}",
            in_use.leaf.authority
        );
    };

    for minute in 0..3 * 365 * 24 * 60_u32 {
        let now = after(start, MINUTE * minute);
        // The leader: sets one configuration that lacks the bundle, or takes a step. It is away
        // for some minutes now and then.
        if rng.random_range(0..10) > 0 {
            let is_other = |stored: &Arc<str>| !Arc::ptr_eq(stored, &bundle);
            let outdated = stored.iter().position(is_other);
            let is_shown = stored
                .iter()
                .all(|stored| Arc::ptr_eq(stored, &bundle) || secret.is_shown_by(stored));
            if let Some(index) = outdated {
                stored[index] = bundle.clone();
            }
            let next = secret.next(is_shown, u64::from(minute), now).unwrap();
            if let Some(next) = next {
                rotations += u32::from(matches!(next.phase, Phase::Retiring { .. }));
                secret = Arc::new(next);
                bundle = secret.bundle().into();
            }
        }
        let bundles = seen.each_mut().map(|seen| seen.push(stored.clone()));
        for (replica, in_use) in replicas.iter_mut().zip(&mut in_use) {
            let authorities = replica.secret.push(secret.clone());
            if replica.down > 0 {
                replica.down -= 1;
                replica.leaf = None;
                continue;
            }
            // Down for up to 40 days, about once in two months.
            if rng.random_range(0..90_000) == 0 {
                replica.down = rng.random_range(1..57_600);
            }
            let is_current =
                |leaf: &Leaf| leaf.authority == authorities.signer.name && now < leaf.renew_at;
            if !replica.leaf.as_ref().is_some_and(is_current) {
                let leaf = authorities.signer.sign(&names, now, now).unwrap();
                replica.leaf = Some(leaf);
            }
            let leaf = replica.leaf.as_ref().unwrap();
            for (bundles, in_use) in bundles.iter().zip(in_use) {
                for (bundle, in_use) in bundles.iter().zip(in_use) {
                    calls += 1;
                    // A certificate is valid for one span of time, so it is verified in the first
                    // and in the last minute of each combination.
                    match in_use {
                        Some(same)
                            if Arc::ptr_eq(&same.leaf.pair, &leaf.pair)
                                && *same.bundle == **bundle =>
                        {
                            same.last = now;
                        }
                        other => {
                            if let Some(last) = other.take() {
                                check(&last, last.last);
                            }
                            let first = InUse {
                                leaf: leaf.clone(),
                                bundle: bundle.clone(),
                                last: now,
                            };
                            check(&first, now);
                            *other = Some(first);
                        }
                    }
                }
            }
        }
    }
    assert!(calls > 14_000_000, "{calls}");
    assert!(verified > 20_000, "{verified}");
    assert_eq!(rotations, 4, "one about every eight months");
}

#[test]
fn a_configuration_that_loses_the_bundle_begins_the_proof_again() {
    let start = Timestamp::from_second(START).unwrap();
    let first = Authorities::new(0, start).unwrap();
    let due = after(start, AUTHORITY_LIFE * 2 / 3);
    let publishing = first.next(true, 1, due).unwrap().unwrap();
    assert_eq!(publishing.certificates().len(), 2);
    assert_eq!(
        publishing.next(false, 2, due).unwrap(),
        None,
        "not shown yet"
    );
    let shown = publishing.next(true, 2, due).unwrap().unwrap();
    let lost = shown.next(false, 2, after(due, PUBLISH_MARGIN)).unwrap();
    assert_eq!(
        lost,
        Some(publishing),
        "another client overwrote a configuration"
    );
    let retiring = shown
        .next(true, 2, after(due, PUBLISH_MARGIN))
        .unwrap()
        .unwrap();
    assert_ne!(retiring.signer, first.signer);
    assert_eq!(retiring.certificates().len(), 2);
    let ended = after(due, PUBLISH_MARGIN + LEAF_LIFE + RETIRE_MARGIN);
    let stable = retiring.next(false, 3, ended).unwrap().unwrap();
    assert_eq!(stable.certificates(), [retiring.signer.certificate_pem()]);
}

#[test]
fn the_state_in_the_secret_is_read_back_as_it_was_written() {
    let start = Timestamp::from_second(START).unwrap();
    let first = Authorities::new(7, start).unwrap();
    let due = after(start, AUTHORITY_LIFE);
    let publishing = first.next(true, 8, due).unwrap().unwrap();
    let shown = publishing.next(true, 8, due).unwrap().unwrap();
    let retiring = shown
        .next(true, 8, after(due, PUBLISH_MARGIN))
        .unwrap()
        .unwrap();
    for authorities in [first, publishing, shown, retiring] {
        let json = serde_json::to_string(&authorities).unwrap();
        assert_eq!(
            serde_json::from_str::<Authorities>(&json).unwrap(),
            authorities
        );
        let debug = format!("{authorities:?}");
        assert!(!debug.contains("PRIVATE KEY"), "{debug}");
    }
}

#[test]
fn a_pair_of_another_key_is_refused() {
    let start = Timestamp::from_second(START).unwrap();
    let authority = Authority::new(0, start).unwrap();
    let other = Authority::new(1, start).unwrap();
    assert!(certified_pem(authority.certificate.as_bytes(), authority.key.as_bytes()).is_ok());
    assert!(certified_pem(authority.certificate.as_bytes(), other.key.as_bytes()).is_err());
    assert!(certified_pem(b"", other.key.as_bytes()).is_err());
}
