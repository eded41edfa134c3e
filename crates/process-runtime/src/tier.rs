//! The isolation of pods.

/// The isolation of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Tier {
    /// User, network, mount and PID namespaces: own network stack per pod, volumes at their mount
    /// paths.
    A,
    /// No namespaces: one loopback address per pod, volumes by environment variables.
    B,
}

impl Tier {
    /// The letter of the tier.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
        }
    }
}

/// The tier and why it is not a better one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierReport {
    /// The tier.
    pub tier: Tier,
    /// Why it is not tier A, and the remedy.
    pub reason: Option<String>,
    /// Why a wildcard listener of a pod conflicts with a Service of the same port, in tier A.
    pub veth_error: Option<String>,
}

impl TierReport {
    /// Tier B for that reason.
    pub(crate) fn without_namespaces(reason: String) -> Self {
        Self {
            tier: Tier::B,
            reason: Some(reason),
            veth_error: None,
        }
    }
}
