//! Resources: what pods ask for and nodes have, as numbers.
//!
//! In: quantities as people write them. Out: milli-CPUs and whole units.
//! Holds: what does not divide evenly is rounded up, as everywhere in Kubernetes; what cannot be read counts as nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// What a container counts for in scores when it asks for nothing: milli-CPUs and bytes.
const UNASKED: (i64, i64) = (100, 200 * 1024 * 1024);

/// Amounts of each resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    /// In thousandths of a CPU.
    pub(crate) cpu: i64,
    pub(crate) memory: i64,
    pub(crate) ephemeral: i64,
    pub(crate) pods: i64,
    /// Resources with names of their own, ordered by these.
    pub(crate) extended: Vec<(Arc<str>, i64)>,
}

type Quantities = BTreeMap<String, Quantity>;

impl Resources {
    pub(crate) fn of(quantities: Option<&Quantities>) -> Self {
        let mut all = Self::default();
        for (name, quantity) in quantities.into_iter().flatten() {
            match name.as_str() {
                "cpu" => all.cpu = units(quantity, 1000),
                "memory" => all.memory = units(quantity, 1),
                "ephemeral-storage" => all.ephemeral = units(quantity, 1),
                "pods" => all.pods = units(quantity, 1),
                _ => all
                    .extended
                    .push((name.as_str().into(), units(quantity, 1))),
            }
        }
        all
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.change(other, |a, b| a.saturating_add(b));
    }

    pub(crate) fn subtract(&mut self, other: &Self) {
        self.change(other, |a, b| a.saturating_sub(b));
    }

    /// The larger amount of each resource.
    fn raise(&mut self, other: &Self) {
        self.change(other, i64::max);
    }

    /// How much there is of a resource with a name of its own.
    pub(crate) fn extended(&self, name: &str) -> i64 {
        self.extended
            .binary_search_by(|(known, _)| (**known).cmp(name))
            .map_or(0, |at| self.extended[at].1)
    }

    fn change(&mut self, other: &Self, change: impl Fn(i64, i64) -> i64) {
        self.cpu = change(self.cpu, other.cpu);
        self.memory = change(self.memory, other.memory);
        self.ephemeral = change(self.ephemeral, other.ephemeral);
        self.pods = change(self.pods, other.pods);
        for (name, amount) in &other.extended {
            match self.extended.binary_search_by(|(known, _)| known.cmp(name)) {
                Ok(at) => self.extended[at].1 = change(self.extended[at].1, *amount),
                Err(at) => self.extended.insert(at, (name.clone(), change(0, *amount))),
            }
        }
    }
}

/// What a pod asks for: its containers at once, or its hungriest init container if that is more.
pub(crate) fn requests(spec: &PodSpec) -> Resources {
    let mut all = sum(spec, asked);
    let pod = spec
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref());
    let pod = Resources::of(pod);
    // What the pod asks for as a whole counts instead of what its containers do.
    all.cpu = if pod.cpu > 0 { pod.cpu } else { all.cpu };
    all.memory = if pod.memory > 0 {
        pod.memory
    } else {
        all.memory
    };
    all.add(&Resources::of(spec.overhead.as_ref()));
    all
}

/// What a pod counts for in scores: milli-CPUs and bytes, never nothing.
pub(crate) fn weight(spec: &PodSpec) -> (i64, i64) {
    let all = sum(spec, |container| {
        let mut asked = asked(container);
        asked.cpu = if asked.cpu == 0 { UNASKED.0 } else { asked.cpu };
        asked.memory = if asked.memory == 0 {
            UNASKED.1
        } else {
            asked.memory
        };
        asked
    });
    (all.cpu, all.memory)
}

fn asked(container: &Container) -> Resources {
    Resources::of(
        container
            .resources
            .as_ref()
            .and_then(|resources| resources.requests.as_ref()),
    )
}

fn sum(spec: &PodSpec, asked: impl Fn(&Container) -> Resources) -> Resources {
    let (mut all, mut sidecars, mut hungriest) = (
        Resources::default(),
        Resources::default(),
        Resources::default(),
    );
    spec.containers
        .iter()
        .for_each(|container| all.add(&asked(container)));
    for container in spec.init_containers.iter().flatten() {
        let mut asked = asked(container);
        if container.restart_policy.as_deref() == Some("Always") {
            all.add(&asked);
            sidecars.add(&asked);
            hungriest.raise(&sidecars);
        } else {
            asked.add(&sidecars);
            hungriest.raise(&asked);
        }
    }
    all.raise(&hungriest);
    all
}

/// A quantity in so many parts of a whole, rounded up.
pub(crate) fn units(quantity: &Quantity, parts: i128) -> i64 {
    parse(&quantity.0).map_or(0, |(mantissa, scale)| {
        let (numerator, denominator) = scale.of(mantissa * parts);
        let rounded =
            numerator.div_euclid(denominator) + i128::from(numerator.rem_euclid(denominator) != 0);
        i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
    })
}

/// What a mantissa is multiplied with: tens or twos to a power.
#[derive(Clone, Copy, Debug)]
struct Scale {
    tens: i32,
    twos: u32,
}

impl Scale {
    fn of(self, mantissa: i128) -> (i128, i128) {
        let power = |exponent: u32| 10_i128.checked_pow(exponent).unwrap_or(i128::MAX);
        let mantissa = mantissa.saturating_mul(1 << self.twos);
        match u32::try_from(self.tens) {
            Ok(up) => (mantissa.saturating_mul(power(up)), 1),
            Err(_) => (mantissa, power(self.tens.unsigned_abs())),
        }
    }
}

/// Digits as one number, and what it is multiplied with.
fn parse(text: &str) -> Option<(i128, Scale)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '+' | '-'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let fraction = i32::try_from(fraction.len()).ok()?;
    let decimal = |tens: i32| Scale {
        tens: tens - fraction,
        twos: 0,
    };
    let binary = |twos: u32| Scale {
        tens: -fraction,
        twos,
    };
    let scale = match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => decimal(
            suffix
                .strip_prefix(['e', 'E'])?
                .parse()
                .ok()
                .filter(|tens: &i32| tens.abs() <= 30)?,
        ),
    };
    Some((mantissa, scale))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_read_as_people_write_them() {
        for (text, milli, whole) in [
            ("0", 0, 0),
            ("1", 1000, 1),
            ("100m", 100, 1),
            ("1.5", 1500, 2),
            ("0.0001", 1, 1),
            ("2k", 2_000_000, 2000),
            ("1e3", 1_000_000, 1000),
            ("1E", i64::MAX, 1_000_000_000_000_000_000),
            ("1Ki", 1_024_000, 1024),
            ("1.5Gi", 1_610_612_736_000, 1_610_612_736),
            ("100n", 1, 1),
            ("-1", -1000, -1),
            ("many", 0, 0),
            ("9999999999E", i64::MAX, i64::MAX),
        ] {
            let quantity = Quantity(text.into());
            assert_eq!(
                (units(&quantity, 1000), units(&quantity, 1)),
                (milli, whole),
                "{text}"
            );
        }
    }

    #[test]
    fn pods_ask_for_their_containers_or_their_hungriest_init_container() {
        let container = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu, "example.com/gpu": "1"}}});
        let sidecar = |cpu: &str| json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}});
        for (why, spec, cpu, gpus) in [
            (
                "containers",
                json!({"containers": [container("1"), container("2")]}),
                3000,
                2,
            ),
            (
                "a hungry init container",
                json!({"containers": [container("1")], "initContainers": [container("5")]}),
                5000,
                1,
            ),
            (
                "sidecars stay",
                json!({"containers": [container("1")], "initContainers": [sidecar("2")]}),
                3000,
                1,
            ),
            (
                "init after a sidecar",
                json!({"containers": [container("1")], "initContainers": [sidecar("2"), container("3")]}),
                5000,
                1,
            ),
            (
                "init before a sidecar",
                json!({"containers": [container("1")], "initContainers": [container("3"), sidecar("2")]}),
                3000,
                1,
            ),
            (
                "overhead",
                json!({"containers": [container("1")], "overhead": {"cpu": "250m"}}),
                1250,
                1,
            ),
            (
                "the pod as a whole",
                json!({"containers": [container("1")], "resources": {"requests": {"cpu": "4"}}}),
                4000,
                1,
            ),
        ] {
            let asked = requests(&serde_json::from_value(spec).unwrap());
            assert_eq!(
                (asked.cpu, asked.extended("example.com/gpu")),
                (cpu, gpus),
                "{why}"
            );
        }
        let idle: PodSpec =
            serde_json::from_value(json!({"containers": [{"name": "a"}, {"name": "b"}]})).unwrap();
        assert_eq!(weight(&idle), (200, 400 * 1024 * 1024));
    }
}
