//! The network of the pods: connections to Services and between pods.
//!
//! In: Services, EndpointSlices, sandboxes. Out: listeners, relayed connections, hosts files.
//! Guarantees: a pod of tier A connects to the ClusterIP of every Service, and to every pod at the
//! ports that a Service or a container names, and at those on which its programs have listened for
//! a second; in tier B each Service has an address of 127.0.0.0/8.
//! A node port or host port is one of 127.0.0.1, and of the nodes' addresses in pods of tier A.
//! Pods with `hostNetwork` are reached at the ports that their containers name, and connect as pods
//! of tier B do. Nothing else of the host is reached.

mod attached_sandbox; // hosts file and listeners of a pod
mod host_ports; // ports of containers on their node
mod hosts; // hosts files
mod service_table; // endpoints of Services
mod state; // sandboxes and listeners

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bellerophon::ObjectKey;
use bellerophon::informer::{InformerOptions, Lister};
use bellerophon::manager::{Manager, Runnable, RunnableGroup};
use bellerophon_process_runtime::relay::{Backends, Dialing, Relay};
use bellerophon_process_runtime::udp_relay::{UdpDialing, UdpRelay};
use bellerophon_process_runtime::{Runtime, Sandbox, Tier};
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use self::attached_sandbox::{AttachedSandbox, Listening, Names};
pub(super) use self::attached_sandbox::{container_ports, has_host_network, write_in_place};
pub(super) use self::hosts::{HostsInputs, resolv_conf};
use self::service_table::ServiceTable;
use self::state::{LoopbackService, State};

/// Where node ports and host ports are on this machine.
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// How long changes are collected.
const SYNC_INTERVAL: Duration = Duration::from_millis(10);

/// How often ports are looked for that no Service and no container names.
const LISTENERS_INTERVAL: Duration = Duration::from_secs(1);

/// The network of all pods.
pub(super) struct Network {
    runtime: Runtime,
    relay: Relay,
    udp_relay: UdpRelay,
    services: Lister<Service>,
    slices: Lister<EndpointSlice>,
    /// The addresses of the nodes, which pods of tier A can connect to.
    node_ips: Vec<IpAddr>,
    changed: Notify,
    /// What connections and environment variables need.
    routes: Arc<Mutex<Routes>>,
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct Routes {
    table: ServiceTable,
    /// Where the ports of Services listen without namespaces.
    loopback: HashMap<(ObjectKey, u16), SocketAddr>,
}

/// A sandbox, and what its network depends on.
pub(super) struct Attachment<'a> {
    pub(super) pod: &'a Pod,
    pub(super) node_ip: Option<IpAddr>,
    pub(super) sandbox: Sandbox,
    pub(super) hosts: HostsInputs,
    pub(super) hosts_path: PathBuf,
}

impl Network {
    /// A network that follows Services and their endpoints.
    pub(super) fn setup(mgr: &mut Manager, runtime: Runtime, node_ips: Vec<IpAddr>) -> Arc<Self> {
        let services = mgr.informer::<Service>(InformerOptions::default());
        let slices = mgr.informer::<EndpointSlice>(InformerOptions::default());
        let routes = Arc::<Mutex<Routes>>::default();
        let network = Arc::new(Self {
            relay: relay(runtime.clone(), routes.clone()),
            udp_relay: udp_relay(runtime.clone()),
            runtime,
            services: services.lister(),
            slices: slices.lister(),
            node_ips,
            changed: Notify::new(),
            routes,
            state: tokio::sync::Mutex::default(),
        });
        let changed = Arc::downgrade(&network);
        services.add_key_handler(move |_| {
            if let Some(network) = changed.upgrade() {
                network.changed.notify_one();
            }
        });
        let changed = Arc::downgrade(&network);
        slices.add_key_handler(move |_| {
            if let Some(network) = changed.upgrade() {
                network.changed.notify_one();
            }
        });
        let followed = network.clone();
        let follow = async move |stop: CancellationToken| {
            stop.run_until_cancelled(followed.follow()).await;
            Ok(())
        };
        mgr.add("pod-network", follow.in_group(RunnableGroup::Servers));
        network
    }

    async fn follow(&self) {
        let mut listeners = tokio::time::interval(LISTENERS_INTERVAL);
        listeners.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.changed.notified() => {
                    self.sync().await;
                    tokio::time::sleep(SYNC_INTERVAL).await;
                }
                _ = listeners.tick() => self.sync_listeners().await,
            }
        }
    }

    /// Makes the ports reachable on which programs listen.
    async fn sync_listeners(&self) {
        let mut state = self.state.lock().await;
        let table = self.lock_routes().table.clone();
        let known = state.ports(&table);
        for attached in state.sandboxes.values_mut() {
            attached.find_listeners();
        }
        if state.ports(&table) != known {
            self.sync_sandboxes(&mut state, &table).await;
        }
    }

    fn lock_routes(&self) -> MutexGuard<'_, Routes> {
        lock(&self.routes)
    }

    /// Applies the current Services and endpoints.
    pub(super) async fn sync(&self) {
        let mut state = self.state.lock().await;
        let table = ServiceTable::new(&self.services.list(), &self.slices.list());
        let mut backends: HashMap<SocketAddr, Backends> = HashMap::new();
        let mut udp_backends: HashMap<SocketAddr, Backends> = HashMap::new();
        let mut node_ports = BTreeSet::new();
        for service in &table.services {
            for port in &service.udp_ports {
                let addresses = service.cluster_ips.iter();
                let addresses = addresses.map(|ip| SocketAddr::new(*ip, port.port));
                udp_backends.extend(addresses.map(|it| (it, port.backends.clone())));
            }
            for port in &service.ports {
                for ip in &service.cluster_ips {
                    let address = SocketAddr::new(*ip, port.port);
                    backends.insert(address, port.backends.clone());
                }
                if let Some(node_port) = port.node_port {
                    let addresses = self.node_ips.iter().copied().chain([HOST]);
                    let addresses = addresses.map(|ip| SocketAddr::new(ip, node_port));
                    backends.extend(addresses.map(|it| (it, port.backends.clone())));
                    node_ports.insert(node_port);
                }
            }
        }
        state.add_host_ports(&mut backends);
        node_ports.extend(state.host_port_owners.keys());
        let mut loopback = HashMap::new();
        if self.runtime.tier() == Tier::B || state.has_host_network() {
            loopback = self.sync_loopback(&mut state, &table, &mut backends).await;
            self.sync_udp_loopback(&mut state, &table, &mut udp_backends, &mut loopback)
                .await;
        } else {
            state.loopback.clear();
        }
        self.relay.set_all(backends);
        self.udp_relay.set_all(udp_backends);
        {
            let mut routes = self.lock_routes();
            routes.table = table.clone();
            routes.loopback = loopback;
        }
        self.sync_node_ports(&mut state, &node_ports).await;
        self.sync_sandboxes(&mut state, &table).await;
    }

    async fn sync_node_ports(&self, state: &mut State, node_ports: &BTreeSet<u16>) {
        state.node_ports.retain(|port, _| node_ports.contains(port));
        for port in node_ports {
            if !state.node_ports.contains_key(port) {
                let address = SocketAddr::new(HOST, *port);
                if let Some(listener) = state.listen(address).await {
                    state.node_ports.insert(*port, self.relay.serve(listener));
                }
            }
        }
    }

    /// Listens for every Service on an address of the host.
    async fn sync_loopback(
        &self,
        state: &mut State,
        table: &ServiceTable,
        backends: &mut HashMap<SocketAddr, Backends>,
    ) -> HashMap<(ObjectKey, u16), SocketAddr> {
        let known = |key: &ObjectKey| table.services.iter().any(|service| service.key == *key);
        state.loopback.retain(|key, _| known(key));
        let mut addresses = HashMap::new();
        for service in &table.services {
            if service.is_api_server() {
                // Its certificate is valid for its own address.
                for port in &service.ports {
                    let endpoint = port.backends.endpoints.first().copied();
                    let address =
                        endpoint.map(|endpoint| ((service.key.clone(), port.port), endpoint));
                    addresses.extend(address);
                }
                continue;
            }
            let ports: Vec<u16> = service.ports.iter().map(|port| port.port).collect();
            let mut listeners = match state.loopback.remove(&service.key) {
                Some(listeners) => listeners,
                None if ports.is_empty() && service.udp_ports.is_empty() => continue,
                None => LoopbackService::new(self.runtime.allocate_ip()),
            };
            listeners.ports.retain(|port, _| ports.contains(port));
            for port in &service.ports {
                if !listeners.ports.contains_key(&port.port) {
                    let wanted = SocketAddr::new(listeners.ip, port.port);
                    if let Some((address, listener)) = state.listen_near(wanted).await {
                        let guard = self.relay.serve(listener);
                        listeners.ports.insert(port.port, (address, guard));
                    }
                }
                if let Some((address, _)) = listeners.ports.get(&port.port) {
                    backends.insert(*address, port.backends.clone());
                    addresses.insert((service.key.clone(), port.port), *address);
                }
            }
            state.loopback.insert(service.key.clone(), listeners);
        }
        addresses
    }

    /// Receives datagrams for every UDP port of a Service on its address of the host.
    async fn sync_udp_loopback(
        &self,
        state: &mut State,
        table: &ServiceTable,
        backends: &mut HashMap<SocketAddr, Backends>,
        addresses: &mut HashMap<(ObjectKey, u16), SocketAddr>,
    ) {
        for service in &table.services {
            let Some(listeners) = state.loopback.get_mut(&service.key) else {
                continue;
            };
            let ports: Vec<u16> = service.udp_ports.iter().map(|port| port.port).collect();
            listeners.udp_ports.retain(|port, _| ports.contains(port));
            for port in &service.udp_ports {
                let address = SocketAddr::new(listeners.ip, port.port);
                if !listeners.udp_ports.contains_key(&port.port)
                    && let Ok(socket) = UdpSocket::bind(address).await
                {
                    let guard = self.udp_relay.serve(socket);
                    listeners.udp_ports.insert(port.port, guard);
                }
                backends.insert(address, port.backends.clone());
                let key = (service.key.clone(), port.port);
                addresses.entry(key).or_insert(address);
            }
        }
    }

    async fn sync_sandboxes(&self, state: &mut State, table: &ServiceTable) {
        let ports = state.ports(table);
        let names = self.names(state, table);
        let listening = self.listening(&ports, table);
        let sandboxes = state.sandboxes.values_mut();
        join_all(sandboxes.map(|sandbox| sandbox.sync(&listening, &names))).await;
    }

    fn listening<'a>(&'a self, ports: &'a BTreeSet<u16>, table: &ServiceTable) -> Listening<'a> {
        Listening {
            relay: &self.relay,
            udp_relay: &self.udp_relay,
            ports,
            udp_addresses: table.udp_addresses(),
        }
    }

    /// The Services with the addresses that hosts files have.
    fn names<'a>(&self, state: &State, table: &'a ServiceTable) -> Names<'a> {
        let is_tier_a = self.runtime.tier() == Tier::A;
        if is_tier_a && !state.has_host_network() {
            return Names {
                pod: Cow::Borrowed(table),
                host: Cow::Borrowed(table),
            };
        }
        let service_ip = |key: &ObjectKey| state.loopback.get(key).map(|service| service.ip);
        let pod_ip = |ip| {
            let sandbox = self.runtime.sandbox_by_ip(ip);
            sandbox.map(|sandbox| sandbox.listen_ip())
        };
        let host: Cow<'_, ServiceTable> = Cow::Owned(table.with_addresses(service_ip, pod_ip));
        let pod = match is_tier_a {
            true => Cow::Borrowed(table),
            false => host.clone(),
        };
        Names { pod, host }
    }

    /// Connects a sandbox. Its containers start after this. Returns the host ports that others have
    /// on this machine.
    pub(super) async fn attach(&self, uid: &str, attachment: Attachment<'_>) -> Vec<u16> {
        let Attachment {
            pod,
            node_ip,
            sandbox,
            hosts,
            hosts_path,
        } = attachment;
        // A pod on the host network listens on its host ports itself.
        let host_ports = match sandbox.has_host_network() {
            true => Vec::new(),
            false => host_ports::of_pod(pod, sandbox.ip(), node_ip),
        };
        let published: Vec<u16> = host_ports.iter().map(|port| port.host_port).collect();
        let attached = AttachedSandbox {
            ports: container_ports(pod),
            listening_ports: BTreeSet::new(),
            sandbox,
            host_ports,
            hosts,
            hosts_path,
            written_hosts: String::new(),
            listeners: HashMap::new(),
            udp_listeners: HashMap::new(),
        };
        self.attach_sandbox(uid.to_owned(), attached).await;
        if published.is_empty() {
            return published;
        }
        self.sync().await;
        let state = self.state.lock().await;
        let is_taken = |port: &u16| {
            let is_own = state
                .host_port_owners
                .get(port)
                .is_some_and(|owner| owner == uid);
            !is_own || !state.node_ports.contains_key(port)
        };
        published.into_iter().filter(is_taken).collect()
    }

    async fn attach_sandbox(&self, uid: String, attached: AttachedSandbox) {
        let mut state = self.state.lock().await;
        let table = self.lock_routes().table.clone();
        let known = state.ports(&table);
        let has_new_ports = !attached.ports.is_subset(&known);
        state.sandboxes.insert(uid.clone(), attached);
        if has_new_ports {
            return self.sync_sandboxes(&mut state, &table).await;
        }
        let names = self.names(&state, &table);
        if let Some(attached) = state.sandboxes.get_mut(&uid) {
            let listening = self.listening(&known, &table);
            attached.sync(&listening, &names).await;
        }
        if self.runtime.tier() == Tier::B || state.has_host_network() {
            // A sandbox that was created again has another address, which hosts files have.
            self.changed.notify_one();
        }
    }

    /// Disconnects the sandbox of a pod that has terminated.
    pub(super) async fn detach(&self, uid: &str) {
        self.state.lock().await.sandboxes.remove(uid);
    }

    /// The address at which a program finds a port of a Service, if it is not the ClusterIP.
    pub(super) fn loopback_address(&self, service: &ObjectKey, port: u16) -> Option<SocketAddr> {
        let routes = self.lock_routes();
        routes.loopback.get(&(service.clone(), port)).copied()
    }

    /// Where the API server listens.
    pub(super) fn api_server(&self) -> Option<SocketAddr> {
        let routes = self.lock_routes();
        let mut services = routes.table.services.iter();
        let service = services.find(|service| service.is_api_server())?;
        service.ports.first()?.backends.endpoints.first().copied()
    }
}

fn lock(routes: &Mutex<Routes>) -> MutexGuard<'_, Routes> {
    routes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Dials pods in their networks, and endpoints that are no pods from the host.
fn relay(runtime: Runtime, routes: Arc<Mutex<Routes>>) -> Relay {
    Relay::new(move |endpoint: SocketAddr, client: IpAddr| {
        let sandbox = runtime.sandbox_at(endpoint);
        // A pod sees which other pod connects; other clients are hidden, as by kube-proxy.
        let source = runtime.sandbox_by_ip(client).map(|_| client);
        let is_outside = lock(&routes).table.outside.contains(&endpoint);
        let dial = async move {
            if let Some(sandbox) = sandbox {
                let stream = sandbox.dial(endpoint, source).await;
                return stream.map_err(io::Error::other);
            }
            if !is_outside {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            TcpStream::connect(endpoint).await
        };
        Box::pin(dial) as Dialing
    })
}

/// Sends datagrams to pods in their networks. Endpoints that are no pods are not reached.
fn udp_relay(runtime: Runtime) -> UdpRelay {
    UdpRelay::new(move |endpoint: SocketAddr, client: IpAddr| {
        let sandbox = runtime.sandbox_at(endpoint);
        let source = runtime.sandbox_by_ip(client).map(|_| client);
        let dial = async move {
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            let sandbox = sandbox.ok_or_else(refused)?;
            let socket = sandbox.dial_udp(endpoint, source).await;
            socket.map_err(io::Error::other)
        };
        Box::pin(dial) as UdpDialing
    })
}
