//! RBAC, impersonation, tokens and kubeconfigs of service accounts.

use std::{fs, process::Command};

use crate::kubectl::{Kubectl, KubectlTest, Setup};

/// The tests of this file.
pub(crate) fn tests() -> Vec<KubectlTest> {
    vec![
        KubectlTest::new(Setup::Server, auth_can_i_reports_permissions),
        KubectlTest::new(Setup::Server, auth_whoami_reports_user_and_groups).since(27),
        KubectlTest::new(Setup::Server, token_authenticates_as_its_service_account).since(24),
        KubectlTest::new(
            Setup::Server,
            kubeconfig_of_a_service_account_has_its_permissions,
        ),
        KubectlTest::new(Setup::Server, kubeconfig_errors_are_one_line_with_a_hint),
    ]
}

const ROBOT: &str = "system:serviceaccount:default:robot";

/// Creates a service account that may only read pods.
fn create_robot(kubectl: &Kubectl) {
    kubectl.check(&[
        (
            "create serviceaccount robot",
            "serviceaccount/robot created",
        ),
        (
            "create role reader --verb=get,list --resource=pods",
            "role.rbac.authorization.k8s.io/reader created",
        ),
        (
            "create rolebinding robot --role=reader --serviceaccount=default:robot",
            "rolebinding.rbac.authorization.k8s.io/robot created",
        ),
    ]);
}

fn auth_can_i_reports_permissions(kubectl: &Kubectl) {
    create_robot(kubectl);
    kubectl.check(&[
        ("auth can-i create pods", "yes"),
        ("auth can-i get /healthz", "yes"),
        (&format!("auth can-i list pods --as={ROBOT}"), "yes"),
    ]);
    let no = kubectl
        .command(&format!("auth can-i delete pods --as={ROBOT}"))
        .output()
        .expect("kubectl starts");
    assert_eq!(no.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&no.stdout).trim(), "no");
    let list = kubectl.table(&format!("auth can-i --list --as={ROBOT}"));
    assert_eq!(list[0], "Resources Non-Resource URLs Resource Names Verbs");
    assert!(
        list.iter().any(|row| row == "pods [] [] [get list]"),
        "{list:#?}"
    );
    assert!(
        list.iter()
            .any(|row| row
                .starts_with("selfsubjectaccessreviews.authorization.k8s.io [] [] [create]")),
        "{list:#?}"
    );
    let error = kubectl.run_failing("get pods --as=nobody");
    assert!(
        error.contains(concat!(
            r#"pods is forbidden: User "nobody" cannot list resource "pods" "#,
            r#"in API group "" in the namespace "default""#
        )),
        "{error}"
    );
}

fn auth_whoami_reports_user_and_groups(kubectl: &Kubectl) {
    let who = kubectl.table("auth whoami");
    assert!(who.iter().any(|row| row == "Username admin"), "{who:?}");
    let other = kubectl.json("auth whoami -o json --as=rider --as-group=horses");
    assert_eq!(
        other["status"]["userInfo"]["groups"],
        serde_json::json!(["horses", "system:authenticated"])
    );
}

fn token_authenticates_as_its_service_account(kubectl: &Kubectl) {
    create_robot(kubectl);
    let token = kubectl.run("create token robot --duration=11m");
    let credentials = format!("--token={token} --client-certificate= --client-key=");
    let kubeconfig = fs::read_to_string(kubectl.server.kubeconfig()).expect("a kubeconfig");
    let config = kubectl.write("without-credentials", &without_credentials(&kubeconfig));
    let as_robot = |line: &str| format!("--kubeconfig {config} {credentials} {line}");
    kubectl.check(&[(&as_robot("auth can-i list pods"), "yes")]);
    assert!(
        kubectl
            .run_failing(&as_robot("get secrets"))
            .contains(&format!(
                "User \"{ROBOT}\" cannot list resource \"secrets\""
            ))
    );
    assert!(
        kubectl
            .run_failing("create token nosuch")
            .contains(r#"serviceaccounts "nosuch" not found"#)
    );
    assert!(
        kubectl
            .run_failing("create token robot --duration=1m")
            .contains("may not specify a duration less than 10 minutes")
    );
}

/// A kubeconfig without its credentials.
fn without_credentials(kubeconfig: &str) -> String {
    let is_kept = |line: &&str| {
        !["client-certificate-data:", "client-key-data:", "token:"]
            .iter()
            .any(|key| line.trim().starts_with(key))
    };
    kubeconfig
        .lines()
        .filter(is_kept)
        .map(|line| format!("{line}\n"))
        .collect::<String>()
        .replace("  user:\n", "  user: {}\n")
}

/// The result of `bellerophon kubeconfig`.
#[derive(Debug)]
struct Finished {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Finished {
    /// Checks for a failure with no output and one line on stderr that contains this part.
    fn assert_fails_with(&self, part: &str) {
        assert_eq!(self.code, 1, "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(self.stderr.contains(part), "{part:?} is not in {self:?}");
    }
}

/// Runs `bellerophon kubeconfig`.
fn kubeconfig(kubectl: &Kubectl, line: &str) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bellerophon"));
    let output = command
        .current_dir(&kubectl.server.directory)
        .arg("kubeconfig")
        .args(line.split(' '))
        .output()
        .expect("the binary starts");
    Finished {
        code: output.status.code().expect("an exit code"),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

fn kubeconfig_of_a_service_account_has_its_permissions(kubectl: &Kubectl) {
    create_robot(kubectl);
    let Finished {
        code,
        stdout,
        stderr,
    } = kubeconfig(kubectl, "--service-account default/robot");
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stderr, "");
    let file = kubectl.write("robot", &stdout);
    let as_robot = |line: &str| format!("--kubeconfig {file} {line}");
    kubectl.check(&[
        (&as_robot("get pods -o name"), ""),
        (&as_robot("auth can-i list pods"), "yes"),
    ]);
    assert!(
        kubectl
            .run_failing(&as_robot("get secrets"))
            .contains(&format!(
                "User \"{ROBOT}\" cannot list resource \"secrets\""
            ))
    );
    let administrator = fs::read_to_string(kubectl.server.kubeconfig()).expect("a kubeconfig");
    let secrets = ["token: ", "client-key-data: "].map(|key| {
        let (_, rest) = administrator.split_once(key).expect("the key exists");
        rest.lines().next().expect("the key has a value")
    });
    for secret in secrets {
        assert!(!stdout.contains(secret), "a secret of the administrator");
    }
    // The service account itself may not create tokens.
    let options = format!("--service-account default/robot --kubeconfig {file}");
    let forbidden = kubeconfig(kubectl, &options);
    forbidden.assert_fails_with("is forbidden");
    forbidden.assert_fails_with("use a kubeconfig that may create tokens");
}

fn kubeconfig_errors_are_one_line_with_a_hint(kubectl: &Kubectl) {
    kubectl.run("create serviceaccount robot");
    for (line, expected) in [
        (
            "--service-account default/nosuch",
            "bellerophon: cannot get a token for service account default/nosuch: \
                 serviceaccounts \"nosuch\" not found; create it with \
                 `kubectl create serviceaccount --namespace default nosuch`",
        ),
        (
            "--service-account default/robot --duration 1m",
            "may not specify a duration less than 10 minutes; choose another --duration",
        ),
        (
            "--service-account default/robot --kubeconfig nosuch",
            "bellerophon: cannot use kubeconfig nosuch: ",
        ),
        (
            "--service-account default/robot --context nosuch",
            "bellerophon: cannot use kubeconfig .bellerophon/kubeconfig: ",
        ),
    ] {
        kubeconfig(kubectl, line).assert_fails_with(expected);
    }
}
