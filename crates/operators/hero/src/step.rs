//! A step: the one thing that a reconcile does.
//!
//! Guarantee: a step is a single mutation, of the status or of one object or of the membership.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    crd::{BellerophonStatus, MemberRole},
    observed::SharedObject,
};

/// The one thing that a reconcile does.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing, until something changes or the time has passed.
    Wait {
        /// What is awaited; a sentence without a full stop.
        reason: String,
        /// When to observe again.
        after: Duration,
    },
    /// Writes the status: facts that were read, and the intent of the next mutation.
    WriteStatus(Box<BellerophonStatus>),
    /// Adds the finalizer.
    AddFinalizer,
    /// Removes the finalizer.
    RemoveFinalizer,
    /// Creates or repairs a shared object.
    ApplyShared(SharedObject),
    /// Creates or repairs the PodDisruptionBudget.
    ApplyBudget {
        /// The minimum number of available voters.
        min_available: i32,
    },
    /// Issues or renews the certificate of a member.
    IssueCertificate {
        /// The name of the member.
        member: String,
    },
    /// Deletes the certificate of a removed member.
    DeleteCertificate {
        /// The name of the member.
        member: String,
    },
    /// Allocates an id and records a new member in the status.
    Allocate {
        /// The name of the new member.
        name: String,
        /// What it is for.
        role: MemberRole,
    },
    /// Creates the claim of a member.
    CreateClaim {
        /// The name of the member.
        member: String,
    },
    /// Labels the claim of a removed member as retired.
    RetireClaim {
        /// The name of the member.
        member: String,
    },
    /// Deletes the claim of a removed member.
    DeleteClaim {
        /// The name of the member.
        member: String,
    },
    /// Creates the Pod of a member.
    CreatePod {
        /// The name of the member.
        member: String,
    },
    /// Creates the Pod that restores the data directory of the first member.
    CreateRestorePod {
        /// The name of the member.
        member: String,
    },
    /// Deletes a Pod, gracefully.
    DeletePod {
        /// The name of the Pod.
        pod: String,
        /// Why; a sentence without a full stop.
        reason: String,
    },
    /// Sets the role label of a member's Pod.
    LabelPod {
        /// The name of the member.
        member: String,
        /// The role.
        role: MemberRole,
    },
    /// Initializes the first member.
    Initialize {
        /// The name of the member.
        member: String,
    },
    /// Formats the data directory of a new member.
    Format {
        /// The name of the member.
        member: String,
    },
    /// Adds a member as a learner.
    AddLearner {
        /// The name of the member.
        member: String,
    },
    /// Changes the membership, if it is still the one that was read.
    ChangeMembership {
        /// The voters afterwards.
        voters: BTreeSet<u64>,
        /// The learners afterwards.
        learners: BTreeSet<u64>,
        /// The index of the membership that was read.
        expected_index: u64,
    },
    /// Hands leadership over.
    TransferLeader {
        /// The name of the next leader.
        to: String,
        /// Why; a sentence without a full stop.
        reason: String,
    },
    /// Raises the format level of the log.
    RaiseFormatLevel {
        /// The level that all members support.
        level: u32,
    },
    /// Compacts the log of a member.
    Compact {
        /// The name of the member.
        member: String,
    },
}

impl Step {
    /// Whether the step changes anything but the status.
    pub fn is_mutation(&self) -> bool {
        !matches!(self, Self::Wait { .. } | Self::WriteStatus(_))
    }

    /// The name of the step, for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Wait { .. } => "Wait",
            Self::WriteStatus(_) => "WriteStatus",
            Self::AddFinalizer => "AddFinalizer",
            Self::RemoveFinalizer => "RemoveFinalizer",
            Self::ApplyShared(_) => "ApplyShared",
            Self::ApplyBudget { .. } => "ApplyBudget",
            Self::IssueCertificate { .. } => "IssueCertificate",
            Self::DeleteCertificate { .. } => "DeleteCertificate",
            Self::Allocate { .. } => "Allocate",
            Self::CreateClaim { .. } => "CreateClaim",
            Self::RetireClaim { .. } => "RetireClaim",
            Self::DeleteClaim { .. } => "DeleteClaim",
            Self::CreatePod { .. } => "CreatePod",
            Self::CreateRestorePod { .. } => "CreateRestorePod",
            Self::DeletePod { .. } => "DeletePod",
            Self::LabelPod { .. } => "LabelPod",
            Self::Initialize { .. } => "Initialize",
            Self::Format { .. } => "Format",
            Self::AddLearner { .. } => "AddLearner",
            Self::ChangeMembership { .. } => "ChangeMembership",
            Self::TransferLeader { .. } => "TransferLeader",
            Self::RaiseFormatLevel { .. } => "RaiseFormatLevel",
            Self::Compact { .. } => "Compact",
        }
    }

    pub(crate) fn wait(reason: impl Into<String>, after: Duration) -> Self {
        Self::Wait {
            reason: reason.into(),
            after,
        }
    }
}
