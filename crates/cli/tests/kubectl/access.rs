//! Who asks, what they may, and how others speak for a service account.

use std::{fs, process::Command};

use crate::driver::Kubectl;

const ROBOT: &str = "system:serviceaccount:default:robot";

/// A service account that may read pods, and nothing else.
fn make_robot(kubectl: &Kubectl) {
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

#[test]
fn people_learn_what_they_may() {
    Kubectl::each(|kubectl| {
        make_robot(kubectl);
        kubectl.check(&[
            ("auth can-i create pods", "yes"),
            ("auth can-i get /healthz", "yes"),
            (&format!("auth can-i list pods --as={ROBOT}"), "yes"),
        ]);
        let no = kubectl
            .command(&format!("auth can-i delete pods --as={ROBOT}"))
            .output()
            .expect("kubectl starts");
        assert_eq!(
            (no.status.code(), String::from_utf8_lossy(&no.stdout).trim()),
            (Some(1), "no")
        );
        let list = kubectl.table(&format!("auth can-i --list --as={ROBOT}"));
        assert_eq!(list[0], "Resources Non-Resource URLs Resource Names Verbs");
        assert!(
            list.iter().any(|row| row == "pods [] [] [get list]"),
            "{list:#?}"
        );
        assert!(
            list.iter().any(|row| row
                .starts_with("selfsubjectaccessreviews.authorization.k8s.io [] [] [create]")),
            "{list:#?}"
        );
        let refused = kubectl.refused("get pods --as=nobody");
        assert!(
            refused.contains(r#"pods is forbidden: User "nobody" cannot list resource "pods" in API group "" in the namespace "default""#),
            "{refused}"
        );
    });
}

#[test]
fn people_learn_who_they_are() {
    Kubectl::each_from(27, |kubectl| {
        let who = kubectl.table("auth whoami");
        assert!(who.iter().any(|row| row == "Username admin"), "{who:?}");
        let other = kubectl.json("auth whoami -o json --as=rider --as-group=horses");
        assert_eq!(
            other["status"]["userInfo"]["groups"],
            serde_json::json!(["horses", "system:authenticated"])
        );
    });
}

#[test]
fn token_speaks_for_its_account() {
    Kubectl::each_from(24, |kubectl| {
        make_robot(kubectl);
        let token = kubectl.run("create token robot --duration=11m");
        let asking = format!("--token={token} --client-certificate= --client-key=");
        let config = kubectl.write(
            "bare",
            &bare(&fs::read_to_string(kubectl.server.kubeconfig()).expect("a kubeconfig")),
        );
        let ask = |line: &str| format!("--kubeconfig {config} {asking} {line}");
        kubectl.check(&[(&ask("auth can-i list pods"), "yes")]);
        assert!(kubectl.refused(&ask("get secrets")).contains(&format!(
            "User \"{ROBOT}\" cannot list resource \"secrets\""
        )));
        assert!(
            kubectl
                .refused("create token nosuch")
                .contains(r#"serviceaccounts "nosuch" not found"#)
        );
        assert!(
            kubectl
                .refused("create token robot --duration=1m")
                .contains("may not specify a duration less than 10 minutes")
        );
    });
}

/// A kubeconfig without its credentials.
fn bare(kubeconfig: &str) -> String {
    let secret = |line: &&str| {
        !["client-certificate-data:", "client-key-data:", "token:"]
            .iter()
            .any(|key| line.trim().starts_with(key))
    };
    kubeconfig
        .lines()
        .filter(secret)
        .map(|line| format!("{line}\n"))
        .collect::<String>()
        .replace("  user:\n", "  user: {}\n")
}

/// `bellerophon kubeconfig`: exit code, stdout, stderr.
fn kubeconfig(kubectl: &Kubectl, line: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bellerophon"));
    let output = command
        .current_dir(&kubectl.server.directory)
        .arg("kubeconfig")
        .args(line.split(' '))
        .output()
        .expect("the binary starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (
        output.status.code().expect("an exit code"),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn kubeconfig_of_an_account_lets_it_do_what_it_may() {
    Kubectl::each(|kubectl| {
        make_robot(kubectl);
        let (code, out, err) = kubeconfig(kubectl, "--service-account default/robot");
        assert_eq!((code, err.as_str()), (0, ""));
        let file = kubectl.write("robot", &out);
        let as_robot = |line: &str| format!("--kubeconfig {file} {line}");
        kubectl.check(&[
            (&as_robot("get pods -o name"), ""),
            (&as_robot("auth can-i list pods"), "yes"),
        ]);
        assert!(kubectl.refused(&as_robot("get secrets")).contains(&format!(
            "User \"{ROBOT}\" cannot list resource \"secrets\""
        )));
        let administrator = fs::read_to_string(kubectl.server.kubeconfig()).expect("a kubeconfig");
        let secrets = ["token: ", "client-key-data: "].map(|key| {
            administrator
                .split_once(key)
                .expect("it is there")
                .1
                .lines()
                .next()
        });
        assert!(
            secrets.iter().flatten().all(|secret| !out.contains(secret)),
            "the administrator's keys stay where they are"
        );
        // The account may not make kubeconfigs for others.
        let (code, out, err) = kubeconfig(
            kubectl,
            &format!("--service-account default/robot --kubeconfig {file}"),
        );
        assert_eq!(
            (code, out.as_str(), err.lines().count()),
            (1, "", 1),
            "{err}"
        );
        assert!(
            err.contains("is forbidden") && err.contains("use a kubeconfig that may create tokens"),
            "{err}"
        );
    });
}

#[test]
fn kubeconfig_that_cannot_be_made_is_explained_in_a_line() {
    Kubectl::each(|kubectl| {
        kubectl.run("create serviceaccount robot");
        for (line, wanted) in [
            (
                "--service-account default/nosuch",
                "bellerophon: cannot get a token for service account default/nosuch: serviceaccounts \"nosuch\" not found; create it with \
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
            let (code, out, err) = kubeconfig(kubectl, line);
            assert_eq!(
                (code, out.as_str(), err.lines().count()),
                (1, "", 1),
                "{line}: {err}"
            );
            assert!(err.contains(wanted), "{line}: {err}");
        }
    });
}
