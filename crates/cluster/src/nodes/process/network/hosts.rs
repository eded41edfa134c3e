//! The hosts file of a pod, in place of the cluster's DNS.
//!
//! In: the pod and the table of Services. Out: lines of `/etc/hosts` and `/etc/resolv.conf`.
//! Guarantees: every name of a Service that DNS would resolve for the pod is in the file, and so are
//! those of the pods of headless Services. The file of a running pod is updated in place.

use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::attached_sandbox::has_host_network;
use super::service_table::ServiceTable;

/// The domain of the cluster.
const CLUSTER_DOMAIN: &str = "cluster.local";

/// Entries that every pod has. Mirrors `managedHostsFileContent`.
const LOCAL_HOSTS: &str = "# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
";

/// The first line of the file of a pod with the network of its node. Mirrors
/// `nodeHostsFileContent`; the entries of the node follow.
const HOST_NETWORK_HOSTS: &str = "# Kubernetes-managed hosts file (host network).\n";

/// The hosts file of this machine.
const NODE_HOSTS: &str = "/etc/hosts";

/// What the entries of a pod are made from.
#[derive(Clone, Debug)]
pub(in super::super) struct HostsInputs {
    pub(in super::super) namespace: String,
    pub(in super::super) ip: IpAddr,
    pub(in super::super) hostname: String,
    /// `spec.subdomain`.
    pub(in super::super) subdomain: Option<String>,
    /// Addresses and names of `spec.hostAliases`.
    pub(in super::super) aliases: Vec<(String, Vec<String>)>,
    /// The entries of this machine, for a pod with its network.
    pub(in super::super) node_hosts: Option<String>,
}

impl HostsInputs {
    pub(in super::super) fn new(pod: &Pod, ip: IpAddr, hostname: String) -> Self {
        let spec = pod.spec.as_ref();
        let aliases = spec
            .into_iter()
            .flat_map(|spec| spec.host_aliases.iter().flatten());
        let aliases = aliases.map(|alias| {
            let names = alias.hostnames.clone().unwrap_or_default();
            (alias.ip.clone(), names)
        });
        Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            ip,
            hostname,
            subdomain: spec.and_then(|spec| spec.subdomain.clone()),
            aliases: aliases.collect(),
            node_hosts: has_host_network(pod).then(|| {
                // Without the file, the machine has no entries.
                fs::read_to_string(NODE_HOSTS).unwrap_or_default()
            }),
        }
    }

    /// The text of `/etc/hosts`.
    pub(super) fn hosts(&self, table: &ServiceTable) -> String {
        let mut text = match &self.node_hosts {
            None => LOCAL_HOSTS.to_owned(),
            Some(hosts) => format!("{HOST_NETWORK_HOSTS}{}\n", hosts.trim_end()),
        };
        let hostname = &self.hostname;
        let mut line = |ip: &dyn std::fmt::Display, names: &str| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{ip}\t{names}");
        };
        match &self.subdomain {
            Some(subdomain) => {
                let namespace = &self.namespace;
                let domain = format!("{subdomain}.{namespace}.svc.{CLUSTER_DOMAIN}");
                line(&self.ip, &format!("{hostname}.{domain}\t{hostname}"));
            }
            None => line(&self.ip, hostname),
        }
        for (ip, names) in &self.aliases {
            line(ip, &names.join("\t"));
        }
        for service in &table.services {
            let namespace = service.key.namespace().unwrap_or_default();
            let is_own = namespace == self.namespace;
            let names = |name: &str| {
                let domain = format!("{name}.{namespace}.svc");
                let mut names = format!("{domain}.{CLUSTER_DOMAIN} {domain} {name}.{namespace}");
                if is_own {
                    names.push(' ');
                    names.push_str(name);
                }
                names
            };
            let name = service.key.name();
            for ip in &service.cluster_ips {
                line(ip, &names(name));
            }
            for (ip, hostname) in &service.headless {
                if let Some(hostname) = hostname {
                    line(ip, &names(&format!("{hostname}.{name}")));
                }
                line(ip, &names(name));
            }
        }
        text
    }
}

/// The text of `/etc/resolv.conf`; `None` if the pod uses that of the host. There is no DNS server:
/// with an address on which no process listens, other names fail immediately.
pub(in super::super) fn resolv_conf(namespace: &str, spec: &PodSpec) -> Option<String> {
    let policy = spec.dns_policy.as_deref().unwrap_or("ClusterFirst");
    let config = spec.dns_config.as_ref();
    // Mirrors getPodDNSType: only ClusterFirstWithHostNet has the names of the cluster there.
    let uses_host = policy == "ClusterFirst" && spec.host_network == Some(true);
    if policy == "Default" || uses_host {
        return None;
    }
    let mut searches = Vec::new();
    let mut nameservers = Vec::new();
    let mut options = Vec::new();
    if policy != "None" {
        searches.push(format!("{namespace}.svc.{CLUSTER_DOMAIN}"));
        searches.push(format!("svc.{CLUSTER_DOMAIN}"));
        searches.push(CLUSTER_DOMAIN.to_owned());
        nameservers.push("127.0.0.1".to_owned());
        options.push("ndots:5".to_owned());
    }
    if let Some(config) = config {
        searches.extend(config.searches.iter().flatten().cloned());
        nameservers.extend(config.nameservers.iter().flatten().cloned());
        options.extend(config.options.iter().flatten().filter_map(|option| {
            let name = option.name.as_deref()?;
            Some(match option.value.as_deref() {
                Some(value) => format!("{name}:{value}"),
                None => name.to_owned(),
            })
        }));
    }
    let mut text = String::new();
    if !searches.is_empty() {
        text.push_str(&format!("search {}\n", searches.join(" ")));
    }
    for nameserver in nameservers {
        text.push_str(&format!("nameserver {nameserver}\n"));
    }
    if !options.is_empty() {
        text.push_str(&format!("options {}\n", options.join(" ")));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_services_are_those_that_dns_would_resolve() {
        let service = |namespace: &str, name: &str, ip: &str| {
            let service = json!({
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"clusterIP": ip, "ports": [{"port": 80}]},
            });
            Arc::new(serde_json::from_value(service).expect("a Service"))
        };
        let slice = json!({
            "metadata": {
                "name": "db-1", "namespace": "shop",
                "labels": {"kubernetes.io/service-name": "db"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.1.0.7"], "hostname": "db-0"}],
        });
        let slice = Arc::new(serde_json::from_value(slice).expect("an EndpointSlice"));
        let services = [
            service("shop", "web", "10.0.0.9"),
            service("shop", "db", "None"),
            service("other", "api", "10.0.0.8"),
        ];
        let table = ServiceTable::new(&services, &[slice]);
        let pod = json!({
            "metadata": {"name": "a", "namespace": "shop"},
            "spec": {
                "containers": [], "subdomain": "db",
                "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["mail", "smtp"]}],
            },
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        let ip = IpAddr::from([10, 1, 0, 2]);
        let hosts = HostsInputs::new(&pod, ip, "a".to_owned()).hosts(&table);
        let expected = "10.1.0.2\ta.db.shop.svc.cluster.local\ta
192.0.2.1\tmail\tsmtp
10.0.0.8\tapi.other.svc.cluster.local api.other.svc api.other
10.1.0.7\tdb-0.db.shop.svc.cluster.local db-0.db.shop.svc db-0.db.shop db-0.db
10.1.0.7\tdb.shop.svc.cluster.local db.shop.svc db.shop db
10.0.0.9\tweb.shop.svc.cluster.local web.shop.svc web.shop web
";
        assert_eq!(hosts.strip_prefix(LOCAL_HOSTS), Some(expected));
    }

    #[test]
    fn pod_on_the_host_network_has_the_entries_of_the_machine() {
        let spec = json!({"containers": [], "hostNetwork": true});
        let pod = json!({"metadata": {"name": "a", "namespace": "shop"}, "spec": spec});
        let pod = serde_json::from_value(pod).expect("a pod");
        let ip = IpAddr::from([127, 0, 0, 1]);
        let mut inputs = HostsInputs::new(&pod, ip, "node-1".to_owned());
        assert!(inputs.node_hosts.is_some());
        inputs.node_hosts = Some("192.0.2.7 laptop\n\n".to_owned());
        let hosts = inputs.hosts(&ServiceTable::new(&[], &[]));
        let expected = "# Kubernetes-managed hosts file (host network).
192.0.2.7 laptop
127.0.0.1\tnode-1
";
        assert_eq!(hosts, expected);
    }

    #[test]
    fn dns_policy_selects_the_configuration() {
        let check = |spec: serde_json::Value, expected: Option<&str>| {
            let spec = serde_json::from_value(spec).expect("a pod spec");
            assert_eq!(resolv_conf("shop", &spec).as_deref(), expected);
        };
        let cluster = "search shop.svc.cluster.local svc.cluster.local cluster.local
nameserver 127.0.0.1
options ndots:5
";
        check(json!({"containers": []}), Some(cluster));
        check(json!({"containers": [], "dnsPolicy": "Default"}), None);
        check(json!({"containers": [], "hostNetwork": true}), None);
        let policy = "ClusterFirstWithHostNet";
        let spec = json!({"containers": [], "hostNetwork": true, "dnsPolicy": policy});
        check(spec, Some(cluster));
        let config = json!({
            "nameservers": ["192.0.2.53"], "searches": ["example.com"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
        });
        check(
            json!({"containers": [], "dnsPolicy": "None", "dnsConfig": config}),
            Some("search example.com\nnameserver 192.0.2.53\noptions ndots:2 edns0\n"),
        );
    }
}
