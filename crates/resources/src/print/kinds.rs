//! The printer of each kind.

use super::{
    access, admission, autoscaler, batch, cluster, config, device, event, network, pod,
    printer::Printer, storage, workload,
};

static NAME_AND_AGE: Printer = Printer::PLAIN;
static DEFAULT: Printer = Printer::DEFAULT;

/// The printer of a built-in kind; kinds that have none show their name and when they were created.
pub fn printer(group: &str, kind: &str) -> &'static Printer {
    match (group, kind) {
        ("", "ComponentStatus") => &cluster::COMPONENT_STATUS,
        ("", "ConfigMap") => &config::CONFIG_MAP,
        ("", "Endpoints") => &network::ENDPOINTS,
        ("", "Event") => &event::CORE,
        ("", "Namespace") => &cluster::NAMESPACE,
        ("", "Node") => &cluster::NODE,
        ("", "PersistentVolume") => &storage::PERSISTENT_VOLUME,
        ("", "PersistentVolumeClaim") => &storage::PERSISTENT_VOLUME_CLAIM,
        ("", "Pod") => &pod::POD,
        ("", "PodTemplate") => &workload::POD_TEMPLATE,
        ("", "ReplicationController") => &workload::REPLICATION_CONTROLLER,
        ("", "ResourceQuota") => &config::RESOURCE_QUOTA,
        ("", "Secret") => &config::SECRET,
        ("", "Service") => &network::SERVICE,
        ("", "ServiceAccount") => &NAME_AND_AGE,
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicy") => &admission::MUTATING_POLICY,
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => {
            &admission::VALIDATING_POLICY
        }
        (
            "admissionregistration.k8s.io",
            "MutatingAdmissionPolicyBinding" | "ValidatingAdmissionPolicyBinding",
        ) => &admission::POLICY_BINDING,
        (
            "admissionregistration.k8s.io",
            "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration",
        ) => &admission::WEBHOOKS,
        ("apiregistration.k8s.io", "APIService") => &cluster::API_SERVICE,
        ("apps", "ControllerRevision") => &workload::CONTROLLER_REVISION,
        ("apps", "DaemonSet") => &workload::DAEMON_SET,
        ("apps", "Deployment") => &workload::DEPLOYMENT,
        ("apps", "ReplicaSet") => &workload::REPLICA_SET,
        ("apps", "StatefulSet") => &workload::STATEFUL_SET,
        ("autoscaling", "HorizontalPodAutoscaler") => &autoscaler::HORIZONTAL_POD_AUTOSCALER,
        ("autoscaling", "Scale") => &autoscaler::SCALE,
        ("batch", "CronJob") => &batch::CRON_JOB,
        ("batch", "Job") => &batch::JOB,
        ("certificates.k8s.io", "CertificateSigningRequest") => {
            &access::CERTIFICATE_SIGNING_REQUEST
        }
        ("coordination.k8s.io", "Lease") => &config::LEASE,
        ("discovery.k8s.io", "EndpointSlice") => &network::ENDPOINT_SLICE,
        ("events.k8s.io", "Event") => &event::EVENTS,
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => &cluster::FLOW_SCHEMA,
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => &cluster::PRIORITY_LEVEL,
        ("networking.k8s.io", "IPAddress") => &network::IP_ADDRESS,
        ("networking.k8s.io", "Ingress") => &network::INGRESS,
        ("networking.k8s.io", "IngressClass") => &network::INGRESS_CLASS,
        ("networking.k8s.io", "NetworkPolicy") => &network::NETWORK_POLICY,
        ("networking.k8s.io", "ServiceCIDR") => &network::SERVICE_CIDR,
        ("node.k8s.io", "RuntimeClass") => &cluster::RUNTIME_CLASS,
        ("policy", "PodDisruptionBudget") => &workload::POD_DISRUPTION_BUDGET,
        ("rbac.authorization.k8s.io", "ClusterRoleBinding") => &access::CLUSTER_ROLE_BINDING,
        ("rbac.authorization.k8s.io", "RoleBinding") => &access::ROLE_BINDING,
        ("resource.k8s.io", "DeviceClass" | "ResourceClaimTemplate") => &NAME_AND_AGE,
        ("resource.k8s.io", "ResourceClaim") => &device::RESOURCE_CLAIM,
        ("resource.k8s.io", "ResourceSlice") => &device::RESOURCE_SLICE,
        ("scheduling.k8s.io", "PriorityClass") => &cluster::PRIORITY_CLASS,
        ("storage.k8s.io", "CSIDriver") => &storage::CSI_DRIVER,
        ("storage.k8s.io", "CSINode") => &storage::CSI_NODE,
        ("storage.k8s.io", "StorageClass") => &storage::STORAGE_CLASS,
        ("storage.k8s.io", "VolumeAttachment") => &storage::VOLUME_ATTACHMENT,
        ("storage.k8s.io", "VolumeAttributesClass") => &storage::VOLUME_ATTRIBUTES_CLASS,
        _ => &DEFAULT,
    }
}
