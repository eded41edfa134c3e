//! `bellerophon dev`: a cluster, and the operator of the working directory in it, built again and
//! restarted when its sources change.
//!
//! Guarantees: the cluster and its objects stay while the operator is replaced; the old operator runs
//! until a build succeeded; a change during a build begins another one; a failed build or a refused
//! object does not end the command; the end of the command leaves no process behind. No other
//! cluster is contacted.

mod install; // CRDs, permissions, samples
mod process; // process groups
mod project; // languages, builds
mod serving; // webhooks of operators that are given a certificate
mod watch; // changes of files
mod webhooks; // webhooks on the loopback address

use std::{
    fs,
    io::{Write as _, stdout},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::Args;
use jiff::SignedDuration;
use serde_json::Value;
use tokio::{
    task::JoinSet,
    time::{Duration, Instant, sleep, sleep_until, timeout},
};

use self::{
    install::{Applied, Installed, Installer, describe, is_unanswered, read_files},
    process::ProcessGroup,
    project::{Build, Project},
    serving::{Serving, ServingState},
    watch::Watcher,
};
use crate::{
    error::CliError,
    kubeconfig::{self, Account},
    signals::Signals,
    up::RunningCluster,
    up_options::UpOptions,
};

/// How long the operator's token is valid: longer than anyone edits without a restart.
const TOKEN_DURATION: SignedDuration = SignedDuration::from_hours(24 * 30);

/// How long an operator may take to register its webhooks.
const REGISTRATION_MAX: Duration = Duration::from_secs(10);

/// How often the registration of webhooks is looked at.
const REGISTRATION_POLL: Duration = Duration::from_millis(50);

/// The kubeconfig of the operator's service account.
const OPERATOR_KUBECONFIG: &str = ".bellerophon/operator.kubeconfig";

#[derive(Debug, Args)]
pub(crate) struct DevOptions {
    /// The number of simulated nodes
    #[arg(long, value_name = "N", default_value = "3")]
    nodes: u16,

    /// The kubeconfig of the administrator to write, readable only by its owner
    #[arg(long, value_name = "FILE", default_value = ".bellerophon/kubeconfig")]
    kubeconfig: PathBuf,
}

/// Runs the project of the working directory until a signal.
///
/// # Errors
/// There is no project, or the cluster does not start.
pub(crate) async fn dev(options: &DevOptions, started: Instant) -> Result<(), CliError> {
    let signal_error = || CliError::context("cannot listen for signals");
    let mut signals = Signals::listen().map_err(signal_error())?;
    let directory = std::env::current_dir().map_err(CliError::new)?;
    let project = Project::find(&directory)?;
    let up_options = UpOptions::of_dev(options.nodes, options.kubeconfig.clone());
    let mut cluster = RunningCluster::start(&up_options).await?;
    let mut tasks = JoinSet::new();
    let mut session = None;
    let result = tokio::select! {
        result = run(&mut cluster, &up_options, project, &mut session, &mut tasks, started) => result,
        signal = signals.next() => signal.map_err(signal_error()),
    };
    // The operator first: it may write while it stops.
    let stop = async {
        if let Some(session) = session {
            session.stop().await;
        }
        tasks.shutdown().await;
        cluster.stop().await;
    };
    signals
        .wait_for_shutdown(stop)
        .await
        .map_err(signal_error())?;
    result
}

/// Starts the session, and drives it. Returns only after a failure.
async fn run(
    cluster: &mut RunningCluster,
    up_options: &UpOptions,
    project: Project,
    session: &mut Option<Session>,
    tasks: &mut JoinSet<()>,
    started: Instant,
) -> Result<(), CliError> {
    let message = cluster.make_ready(up_options, &[], started).await?;
    message
        .write(up_options.output, &mut stdout().lock())
        .map_err(CliError::context("cannot write to stdout"))?;
    let step = "cannot read the project";
    let mut watcher = Watcher::start(project.root(), tasks).map_err(CliError::context(step))?;
    let serving = match project.is_given_certificate() {
        true => Some(Serving::create(project.root())?),
        false => None,
    };
    let session = session.insert(Session {
        installer: Installer::new(cluster.admin_client()),
        administrator: up_options.kubeconfig.clone(),
        project,
        build: None,
        operator: None,
        webhooks: None,
        serving,
        registration_check: None,
    });
    session.apply_files().await;
    session.begin_build().await;
    loop {
        tokio::select! {
            changes = watcher.next() => {
                if changes.manifests {
                    session.apply_files().await;
                }
                if changes.sources {
                    session.begin_build().await;
                }
            }
            event = session.next() => match event {
                SessionEvent::Built(built) => session.replace_operator(built).await,
                SessionEvent::OperatorEnded(how) => {
                    say(&format!("the operator ended: {how}; waiting for a change"));
                }
                SessionEvent::RegistrationDue => session.report_unregistered_webhooks().await,
            },
            result = cluster.ended() => return result,
        }
    }
}

/// A project in a cluster.
struct Session {
    project: Project,
    installer: Installer,
    /// The kubeconfig of the administrator.
    administrator: PathBuf,
    /// The build under way, and when it began.
    build: Option<(Build, Instant)>,
    operator: Option<ProcessGroup>,
    /// The webhook configurations of the last operator, or of the YAML files if `serving` is there;
    /// `None` if there are none.
    webhooks: Option<Vec<Value>>,
    /// Where the operator serves webhooks, if it does not register them itself.
    serving: Option<Serving>,
    /// When the webhooks that the operator serves have to be registered, if no file registers them.
    registration_check: Option<Instant>,
}

/// What happens in a session by itself.
enum SessionEvent {
    Built(Built),
    /// The operator ended, and nobody stopped it.
    OperatorEnded(String),
    /// The operator had time to register the webhooks that it serves, if it serves any.
    RegistrationDue,
}

/// The result of a build.
struct Built {
    /// `None` if it failed.
    program: Option<PathBuf>,
    took: Duration,
}

impl Session {
    /// Begins a build; one under way is cancelled, since it reads what has changed.
    async fn begin_build(&mut self) {
        if let Some((build, _)) = self.build.take() {
            build.cancel().await;
        }
        match self.project.build() {
            Ok(build) => {
                say("building");
                self.build = Some((build, Instant::now()));
            }
            Err(error) => report(&error),
        }
    }

    /// Resolves when a build or the operator ends. Cancel safe.
    async fn next(&mut self) -> SessionEvent {
        let built = async {
            match &mut self.build {
                Some((build, begun)) => (build.finish().await, begun.elapsed()),
                None => std::future::pending().await,
            }
        };
        let ended = async {
            match &mut self.operator {
                Some(operator) => operator.wait().await,
                None => std::future::pending().await,
            }
        };
        let due = async {
            match self.registration_check {
                Some(time) => sleep_until(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            (result, took) = built => {
                self.build = None;
                let program = result.unwrap_or_else(|error| {
                    report(&CliError::context("cannot read the build's output")(error));
                    None
                });
                SessionEvent::Built(Built { program, took })
            }
            status = ended => {
                self.operator = None;
                let how = status.map_or_else(|e| e.to_string(), |status| status.to_string());
                self.registration_check = None;
                SessionEvent::OperatorEnded(how)
            }
            () = due => {
                self.registration_check = None;
                SessionEvent::RegistrationDue
            }
        }
    }

    /// Installs what the new operator needs, and runs it instead of the old one.
    async fn replace_operator(&mut self, built: Built) {
        let seconds = built.took.as_secs_f64();
        let kept = match self.operator {
            Some(_) => "the operator of the last build runs on",
            None => "waiting for a change",
        };
        let Some(program) = built.program else {
            say(&format!("build failed after {seconds:.1} s; {kept}"));
            return;
        };
        let mut installed = match self.installer.operator(&self.project, &program).await {
            Ok(installed) => installed,
            Err(error) => {
                report(&error);
                say(kept);
                return;
            }
        };
        if let Some(misfit) = &installed.misfit {
            report(misfit);
        }
        if self.serving.is_some() {
            installed.webhooks = self.webhooks.clone();
        }
        if installed.webhooks.is_none() {
            // Samples may be of a kind that the operator defines.
            self.apply_files().await;
        }
        match self.start_operator(&program, installed).await {
            Ok(address) => {
                say(&format!("built in {seconds:.1} s; the operator runs"));
                if let Some(address) = address {
                    if self.serving.is_none() {
                        self.await_registration(address).await;
                    }
                    // Not before, so that the webhooks are called for them.
                    self.apply_files().await;
                }
            }
            Err(error) => report(&error),
        }
    }

    /// Runs a new operator instead of the old one. Returns the address of its webhooks.
    async fn start_operator(
        &mut self,
        program: &Path,
        installed: Installed,
    ) -> Result<Option<SocketAddr>, CliError> {
        let kubeconfig = match installed.account {
            Some(account) => self.operator_kubeconfig(&account).await,
            None => Ok(self.administrator.clone()),
        };
        if let Some(old) = self.operator.take() {
            old.stop().await;
        }
        self.remove_undeclared(installed.webhooks.as_deref())
            .await?;
        self.webhooks = installed.webhooks;
        // After the end of the old operator, whose port is free now.
        let address = match (&self.webhooks, &mut self.serving) {
            (_, Some(serving)) => {
                serving.prepare_start()?;
                self.webhooks.is_some().then(|| serving.address())
            }
            (Some(_), None) => Some(webhooks::free_address()?),
            (None, None) => None,
        };
        let is_undeclared = self.serving.is_some() && address.is_none();
        self.registration_check = is_undeclared.then(|| Instant::now() + REGISTRATION_MAX);
        let mut command = self.project.run(program, address);
        command.envs(self.serving.iter().flat_map(Serving::environment));
        let kubeconfig = std::path::absolute(kubeconfig?).map_err(CliError::new)?;
        command.env("KUBECONFIG", kubeconfig);
        let step = format!("cannot run {}", command.as_std().get_program().display());
        let operator = ProcessGroup::start(&mut command).map_err(CliError::context(&step))?;
        self.operator = Some(operator);
        Ok(address)
    }

    /// Deletes configurations of the last operator that the new one does not declare: with the
    /// failure policy `Fail`, they would refuse requests for ever.
    async fn remove_undeclared(&self, declared: Option<&[Value]>) -> Result<(), CliError> {
        let id = |object: &Value| (object["kind"].clone(), object["metadata"]["name"].clone());
        let declared = declared.unwrap_or_default();
        for old in self.webhooks.iter().flatten() {
            if !declared.iter().any(|new| id(new) == id(old)) {
                self.installer.delete(old).await?;
            }
        }
        Ok(())
    }

    /// Waits until the operator has registered its webhooks, and listens.
    async fn await_registration(&mut self, address: SocketAddr) {
        let configurations = self.webhooks.as_deref().unwrap_or_default();
        let registered = async {
            while !self.installer.are_registered(configurations, address).await {
                sleep(REGISTRATION_POLL).await;
            }
        };
        let Some(operator) = &mut self.operator else {
            return;
        };
        tokio::select! {
            registered = timeout(REGISTRATION_MAX, registered) => match registered {
                Ok(()) => say(&format!("webhooks are called at https://{address}")),
                Err(_) => say("webhooks are not registered: look at the operator's output"),
            },
            // `next` reports it.
            _ended = operator.wait() => {}
        }
    }

    /// Writes a kubeconfig with a token of the operator's service account, so that it has the
    /// permissions that it will have in a cluster.
    async fn operator_kubeconfig(&self, account: &Account) -> Result<PathBuf, CliError> {
        let text =
            kubeconfig::of_account(&self.administrator, None, account, TOKEN_DURATION).await?;
        let path = self.project.root().join(OPERATOR_KUBECONFIG);
        let step = format!("cannot write {}", path.display());
        write_private(&path, &text).map_err(CliError::context(&step))?;
        Ok(path)
    }

    /// Waits until the operator answers at the address that it was given.
    async fn await_serving(&mut self) {
        let (Some(serving), Some(operator)) = (&mut self.serving, &mut self.operator) else {
            return;
        };
        let timeout = match serving.state {
            ServingState::Awaited => REGISTRATION_MAX,
            // Reported before.
            ServingState::Unanswered => Duration::ZERO,
            ServingState::Answered => return,
        };
        let until = Instant::now() + timeout;
        let address = serving.address();
        let answered = async {
            loop {
                match serving.check().await {
                    Err(_) if Instant::now() < until => sleep(REGISTRATION_POLL).await,
                    result => break result,
                }
            }
        };
        let result = tokio::select! {
            result = answered => result,
            // `next` reports it.
            _ended = operator.wait() => return,
        };
        serving.state = match result {
            Ok(()) => {
                say(&format!("webhooks are called at https://{address}"));
                ServingState::Answered
            }
            Err(error) => {
                let configurations = self.webhooks.iter().flatten();
                let names: Vec<String> = configurations.map(describe).collect();
                let error = error.with_hint(
                    "serve where WEBHOOK_HOST and WEBHOOK_PORT say, with the certificate in \
                     WEBHOOK_CERT_DIR (webhook.Options in Go), or remove the configuration",
                );
                say(&format!(
                    "{} is not applied: the operator does not answer at https://{address}: {}",
                    names.join(", "),
                    message_of(&error)
                ));
                ServingState::Unanswered
            }
        };
    }

    /// Explains why the webhooks that the operator serves are not called.
    async fn report_unregistered_webhooks(&self) {
        let Some(serving) = &self.serving else { return };
        let address = serving.address();
        if serving.check().await.is_ok() && !self.installer.is_called(address).await {
            say(&format!(
                "the operator serves webhooks at https://{address}, and neither it nor a YAML file of \
                 the project registers them: nothing calls them; write a webhook configuration, as \
                 `bellerophon new NAME --go --webhook` does"
            ));
        }
    }

    /// Applies the YAML files. Objects of kinds that do not exist yet come after the build.
    async fn apply_files(&mut self) {
        let is_first = self.operator.is_none() && self.build.is_none();
        match self.try_apply_files().await {
            Ok(applied) => {
                let left_out = applied.left_out.iter().filter(|_| self.serving.is_none());
                for object in left_out {
                    say(&format!(
                        "{object} is not applied: nothing answers for its Service"
                    ));
                }
                if applied.count > 0 {
                    say(&format!("applied {} objects", applied.count));
                }
            }
            // Before the first build, the CRDs of a Rust operator do not exist.
            Err(_) if is_first && self.project.has_manifests() => {}
            Err(error) => report(&error),
        }
    }

    async fn try_apply_files(&mut self) -> Result<Applied, CliError> {
        let objects = read_files(&self.project)?;
        if self.serving.is_some() {
            self.register(&objects).await?;
        }
        let until = Instant::now() + REGISTRATION_MAX;
        loop {
            let applied = self.installer.files(&objects, self.serving.as_ref()).await;
            match applied {
                // An operator that was replaced listens before it has a certificate.
                Err(error)
                    if self.operator.is_some()
                        && is_unanswered(message_of(&error))
                        && Instant::now() < until =>
                {
                    sleep(REGISTRATION_POLL).await;
                }
                result => return result,
            }
        }
    }

    /// Prepares the webhook configurations of YAML files: deletes those that are no longer there, and
    /// waits for the operator.
    async fn register(&mut self, objects: &[Value]) -> Result<(), CliError> {
        let mut declared = objects.to_vec();
        declared.retain(webhooks::calls_a_service);
        self.remove_undeclared(Some(&declared)).await?;
        self.webhooks = (!declared.is_empty()).then_some(declared);
        if self.webhooks.is_some() {
            self.registration_check = None;
            self.await_serving().await;
        }
        Ok(())
    }

    async fn stop(self) {
        if let Some((build, _)) = self.build {
            build.cancel().await;
        }
        if let Some(operator) = self.operator {
            operator.stop().await;
        }
    }
}

/// Prints a line about the session, apart from those of compiler and operator.
fn say(line: &str) {
    let mut out = stdout().lock();
    // Nobody may read it, which is no reason to stop.
    let _printed = writeln!(out, "dev: {line}").and_then(|()| out.flush());
}

fn report(error: &CliError) {
    say(message_of(error));
}

fn message_of(error: &CliError) -> &str {
    let (CliError::Usage(message) | CliError::Failed(message)) = error;
    message
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(text.as_bytes())
}
