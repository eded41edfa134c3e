//! `bellerophon up`: runs a cluster until a signal.
//!
//! Inputs: options. Outputs: a kubeconfig, and a message on stdout when the cluster is ready.
//!
//! Guarantees: the message is printed only after everything is ready; a failed start stops what was
//! started. Controllers, nodes and operators act as their own users, with the permissions that
//! these have in a real cluster; only the administrator's requests of this command are unlimited.
//!
//! Start: API server → controllers and nodes → operators → message.
//! Stop: operators → controllers and nodes → API server.

use std::{future::pending, io::stdout, net::SocketAddr, sync::Arc};

use bellerophon::client::ReconcileClient;
use bellerophon::clock::{Clock, Rng};
use bellerophon::manager::{Manager, ManagerOptions, RunningManager};
use bellerophon::trace::Trace;
use bellerophon_apiserver::{ApiServer, AuditOptions, AuditRotation, Component};
use bellerophon_cluster::{
    Builder as ClusterBuilder, Cluster, Identity, KubeletSockets, Kubelets, Level, rbac_objects,
};
use bellerophon_operator::{Operator, Switches, define, manager, user_permissions};
use bellerophon_page::{Actor, LiveSource, ObjectLog, Page, PageOptions, Source};
use bellerophon_reboot::{agents, simulated_agents};
use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};
use kube::core::DynamicObject;
use serde_json::Value;
use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::{
    demo::{self, Detail},
    error::CliError,
    live_page::{self, LivePage},
    memory,
    page_actions::ClusterActor,
    process_nodes::{self, NodeDialer},
    ready::ReadyMessage,
    signals::Signals,
    trace,
    up_options::UpOptions,
    watches::Watches,
};

/// The field manager of the objects that this command applies.
const FIELD_MANAGER: &str = "bellerophon";

/// Runs a cluster until a signal.
///
/// # Errors
/// The address is in use, the kubeconfig cannot be written, or a controller failed.
pub(crate) async fn up(
    options: &UpOptions,
    detail: Detail,
    started: Instant,
) -> Result<(), CliError> {
    let signal_error = || CliError::context("cannot listen for signals");
    // Before anything is started: a signal during the start stops what runs by then.
    let mut signals = Signals::listen().map_err(signal_error())?;
    let operators = options.operators()?;
    let mut cluster = RunningCluster::start(options).await?;
    let result = tokio::select! {
        result = cluster.serve(options, &operators, detail, started) => result,
        signal = signals.next() => signal.map_err(signal_error()),
        never = memory::return_at_intervals() => match never {},
    };
    signals
        .wait_for_shutdown(cluster.stop())
        .await
        .map_err(signal_error())?;
    info!("stopped");
    result
}

/// The components of the control plane that `componentstatuses` shows as healthy.
fn components(level: Option<Level>) -> Vec<Component> {
    match level {
        Some(Level::Full) => vec![Component::ControllerManager, Component::Scheduler],
        Some(Level::Core) => vec![Component::ControllerManager],
        Some(Level::Nodes) | None => Vec::new(),
    }
}

/// The sockets of kubelets, if they have some.
async fn kubelet_sockets(
    options: &UpOptions,
    nodes: usize,
) -> Result<Option<KubeletSockets>, CliError> {
    let Some(port) = options.kubelet_port()? else {
        return Ok(None);
    };
    let sockets = KubeletSockets::bind(port, nodes).await;
    let sockets = sockets.map_err(|error| {
        let failed = CliError::context("cannot listen for kubelets")(error);
        failed.with_hint("choose another port with --kubelet-port")
    })?;
    Ok(Some(sockets))
}

/// Where the audit log goes, and its policy.
fn audit(options: &UpOptions) -> Result<Option<AuditOptions>, CliError> {
    let (Some(log_path), Some(policy)) = (&options.audit_log_path, &options.audit_policy_file)
    else {
        return Ok(None);
    };
    let unreadable = format!("cannot read the audit policy {}", policy.display());
    let policy = std::fs::read_to_string(policy).map_err(CliError::context(&unreadable))?;
    Ok(Some(AuditOptions {
        log_path: log_path.clone(),
        policy,
        rotation: AuditRotation {
            size_max_megabytes: options.audit_log_maxsize,
            backups_max: options.audit_log_maxbackup,
            age_max_days: options.audit_log_maxage,
        },
    }))
}

/// The components of a running cluster.
pub(crate) struct RunningCluster {
    server: ApiServer,
    /// `None` for an API server only.
    cluster: Option<Cluster>,
    /// One Manager for each operator, and one for the reboot agents; empty until the cluster is
    /// ready.
    operators: Vec<RunningManager>,
    /// The trace of controllers and operators.
    trace: Trace,
    clock: Clock,
    /// The versions of objects that page and recorder show; `None` without both.
    objects: Option<ObjectLog>,
    page: LivePage,
    /// The watches of controllers and operators, which the page may cut.
    watches: Watches,
}

impl RunningCluster {
    /// Starts the API server, controllers and nodes.
    ///
    /// # Errors
    /// The address is in use, or nodes cannot run processes.
    pub(crate) async fn start(options: &UpOptions) -> Result<Self, CliError> {
        let size = options.cluster()?;
        let is_observed = options.page_address()?.is_some() || options.record.is_some();
        let nodes = size.map_or(0, |(_, nodes)| nodes);
        let kubelet_sockets = kubelet_sockets(options, nodes).await?;
        let process_nodes = process_nodes::start(options).await?;
        let trace = Trace::new(trace::RECORDS_MAX);
        let clock = Clock::system();
        let kubelets = Kubelets::default();
        let dialer = NodeDialer::new(kubelets.clone(), process_nodes.as_ref());
        let builder = match audit(options)? {
            Some(audit) => ApiServer::builder().audit(audit),
            None => ApiServer::builder(),
        };
        let builder = builder
            .listen(options.listen)
            .dialer(dialer)
            .components(components(size.map(|(level, _)| level)));
        // Without controllers there is nothing to trace, and `bellerophon trace` reports that by
        // its 404.
        let objects = (is_observed && size.is_some()).then(ObjectLog::default);
        let builder = if size.is_some() {
            let source = LiveSource {
                trace: trace.clone(),
                clock,
                objects: objects.clone(),
                stored: None,
            };
            builder.endpoint(trace::PATH, trace::endpoint(source))
        } else {
            builder
        };
        let builder = match &objects {
            Some(objects) => {
                builder.observe_writes(live_page::observer(trace.clone(), objects.clone()))
            }
            None => builder,
        };
        let watches = Watches::new(options.page_may_act);
        let server = builder.start().await.map_err(CliError::new)?;
        warn_if_exposed(options.listen);
        let mut cluster = None;
        if let Some((level, nodes)) = size {
            let mut builder = cluster_builder(&server, level, watches.clone())
                .await?
                .nodes(nodes)
                .kubelets(kubelets)
                .clock(clock)
                .trace(trace.clone());
            if let Some(sockets) = kubelet_sockets {
                let client_ca = server.root_ca().unwrap_or_default();
                builder = builder.kubelet_sockets(sockets.client_ca(client_ca));
            }
            if let Some(nodes) = process_nodes {
                builder = builder.process_nodes(nodes);
            }
            cluster = Some(builder.start());
        }
        Ok(Self {
            server,
            cluster,
            operators: Vec::new(),
            trace,
            clock,
            objects,
            page: LivePage::default(),
            watches,
        })
    }

    /// What page and recorder read.
    fn live_source(&self) -> LiveSource {
        LiveSource {
            trace: self.trace.clone(),
            clock: self.clock,
            objects: self.objects.clone(),
            stored: Some(live_page::stored_objects(&self.server)),
        }
    }

    /// Starts the page, and returns its URL; `None` if it is not served.
    async fn start_page(&mut self, options: &UpOptions) -> Result<Option<String>, CliError> {
        let Some(address) = options.page_address()? else {
            return Ok(None);
        };
        let actor = options.page_may_act.then(|| {
            let actor = ClusterActor {
                client: admin_client(&self.server),
                nodes: self.cluster.as_ref().and_then(Cluster::nodes).cloned(),
                watches: self.watches.clone(),
            };
            Arc::new(actor) as Arc<dyn Actor>
        });
        let page = Page::bind(PageOptions {
            address,
            source: Source::Live(self.live_source()),
            actor,
            // The API server has it.
            endpoint: None,
            rng: Rng::from_os(),
        });
        let page = page.await.map_err(CliError::new)?;
        let url = page.url();
        self.page.serve(page);
        Ok(Some(url))
    }

    /// Writes the kubeconfig, starts operators and page, and waits until everything is ready.
    ///
    /// # Errors
    /// A file cannot be written, or a controller failed.
    pub(crate) async fn make_ready(
        &mut self,
        options: &UpOptions,
        operators: &[Operator],
        started: Instant,
    ) -> Result<ReadyMessage, CliError> {
        self.server
            .write_kubeconfig(&options.kubeconfig)
            .map_err(|error| {
                CliError::new(error).with_hint("name another file with --kubeconfig")
            })?;
        if let Some(path) = &options.record {
            let source = self.live_source();
            self.page.record(source, path.clone())?;
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.ready().await.map_err(CliError::new)?;
        }
        self.start_operators(operators).await?;
        let page = self.start_page(options).await?;
        let url = self.server.url().expect("the server has an address");
        ReadyMessage::new(url, &options.kubeconfig, page, started).map_err(CliError::context(
            "cannot resolve the path of the kubeconfig",
        ))
    }

    /// A client of the API server as its administrator.
    pub(crate) fn admin_client(&self) -> kube::Client {
        admin_client(&self.server)
    }

    /// Returns when the controllers ended, which is a failure.
    pub(crate) async fn ended(&mut self) -> Result<(), CliError> {
        match &mut self.cluster {
            Some(cluster) => cluster.ended().await.map_err(CliError::new),
            None => pending().await,
        }
    }

    /// Prints the message when everything is ready. Returns only after a failure.
    async fn serve(
        &mut self,
        options: &UpOptions,
        operators: &[Operator],
        detail: Detail,
        started: Instant,
    ) -> Result<(), CliError> {
        let message = self.make_ready(options, operators, started).await?;
        message
            .write(options.output, &mut stdout().lock())
            .map_err(CliError::context("cannot write to stdout"))?;
        info!(?message, "cluster is ready");
        let client = admin_client(&self.server);
        let demo = async {
            if options.demo {
                let output = (options.output, detail);
                demo::run(&client, operators, &self.trace, self.clock, output).await
            } else {
                pending().await
            }
        };
        let cluster_ended = async {
            match &mut self.cluster {
                Some(cluster) => cluster.ended().await.map_err(CliError::new),
                None => pending().await,
            }
        };
        let operators_ended = async {
            let ended = self
                .operators
                .iter_mut()
                .map(|operator| operator.ended().boxed());
            let ended: Vec<_> = ended.collect();
            if ended.is_empty() {
                return pending().await;
            }
            let (result, ..) = select_all(ended).await;
            result.map_err(CliError::new)
        };
        tokio::select! {
            result = demo => result,
            result = cluster_ended => result,
            result = operators_ended => result,
        }
    }

    /// Applies the CRDs and the permissions of operators, starts them and waits until their caches
    /// are synced. With the reboot operator, every simulated node has a reboot agent.
    async fn start_operators(&mut self, operators: &[Operator]) -> Result<(), CliError> {
        // The Manager reports a resource that is not served as an error of the start, so the CRDs
        // come first.
        define(&admin_client(&self.server), operators)
            .await
            .map_err(CliError::new)?;
        // An operator without permissions has CRDs only.
        let has_permissions = |operator: &&Operator| !(operator.permissions)().is_empty();
        for operator in operators.iter().filter(has_permissions) {
            let client = self.operator_client(operator).await?;
            let operator = std::slice::from_ref(operator);
            let mgr = manager(
                client,
                operator,
                &Switches::default(),
                self.manager_options(),
            );
            self.operators.push(mgr.start());
        }
        let has_reboot_operator = operators
            .iter()
            .any(|operator| operator.name == bellerophon_reboot::OPERATOR.name);
        if has_reboot_operator {
            self.start_reboot_agents().await?;
        }
        for operator in &mut self.operators {
            operator.ready().await.map_err(CliError::new)?;
        }
        Ok(())
    }

    /// Starts an agent for every simulated node.
    async fn start_reboot_agents(&mut self) -> Result<(), CliError> {
        let Some(nodes) = self.cluster.as_ref().and_then(Cluster::nodes).cloned() else {
            return Ok(());
        };
        let boot_ids = nodes.clone();
        let machines = nodes.clone();
        let agent_options = simulated_agents(
            nodes.names(),
            move |node| boot_ids.boot_id(node),
            move |node| machines.reboot(node),
        );
        let client = self.operator_client(&bellerophon_reboot::AGENT).await?;
        let prefix = bellerophon_reboot::prefix().map_err(CliError::new)?;
        let mut mgr = Manager::new(client, self.manager_options());
        agents(&mut mgr, &prefix, agent_options);
        self.operators.push(mgr.start());
        Ok(())
    }

    /// A client that acts as a user with exactly the permissions of an operator.
    async fn operator_client(&self, operator: &Operator) -> Result<kube::Client, CliError> {
        let user = format!("bellerophon:operator:{}", operator.name);
        let permissions = user_permissions(operator, &user);
        apply(&admin_client(&self.server), permissions.to_vec()).await?;
        Ok(self
            .watches
            .client(self.server.service().as_user(&user, [])))
    }

    fn manager_options(&self) -> ManagerOptions {
        ManagerOptions {
            trace: self.trace.clone(),
            clock: self.clock,
            ..ManagerOptions::default()
        }
    }

    // The reverse of the start: each component still reaches those that it depends on while it
    // stops.
    pub(crate) async fn stop(self) {
        self.page.stop().await;
        for stopped in join_all(self.operators.into_iter().map(RunningManager::stop)).await {
            if let Err(error) = stopped {
                error!(%error, "an operator failed to stop");
            }
        }
        if let Some(cluster) = self.cluster
            && let Err(error) = cluster.stop().await
        {
            error!(%error, "controllers failed to stop");
        }
        self.server.shutdown().await;
    }
}

/// The controllers of a server, each with its own user. Their watches are recorded.
///
/// # Errors
/// The server refuses the permissions of these users.
pub(crate) async fn cluster_builder(
    server: &ApiServer,
    level: Level,
    watches: Watches,
) -> Result<ClusterBuilder, CliError> {
    apply(&admin_client(server), rbac_objects()).await?;
    let service = server.service();
    let client_for = move |identity: &Identity| {
        let groups = identity.groups.iter().map(String::as_str);
        watches.client(service.as_user(&identity.user, groups))
    };
    let builder = Cluster::builder(admin_client(server))
        .client_for(client_for)
        .level(level)
        .root_ca(server.root_ca().unwrap_or_default());
    Ok(builder)
}

/// A client of the embedded server as its administrator. It is not `ApiServer::client`, whose
/// feature makes the server wait for kube to compile.
fn admin_client(server: &ApiServer) -> kube::Client {
    kube::Client::new(server.service(), "default")
}

/// Applies objects of any kind.
async fn apply(client: &kube::Client, objects: Vec<Value>) -> Result<(), CliError> {
    let client = ReconcileClient::new(client.clone(), FIELD_MANAGER);
    for object in objects {
        let object: DynamicObject = serde_json::from_value(object).map_err(CliError::new)?;
        client.apply(&object).await.map_err(CliError::new)?;
    }
    Ok(())
}

fn warn_if_exposed(address: SocketAddr) {
    if !address.ip().is_loopback() {
        warn!(
            %address,
            "the API server is reachable from other machines; listen on 127.0.0.1 to prevent that"
        );
    }
}
