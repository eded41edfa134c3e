//! A real browser: chromium through chromedriver, by the WebDriver protocol.
//!
//! CHROMEDRIVER and CHROMIUM are the programs; default: those on the PATH.
//!
//! Guarantees: waits are conditions that the browser itself evaluates; browser and driver end with
//! the test.

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use base64::Engine as _;
use serde_json::{Value, json};

use crate::running::TIMEOUT;

/// The name that WebDriver gives to the id of an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

fn program(variable: &str, name: &str) -> String {
    env::var(variable).unwrap_or_else(|_| name.to_owned())
}

/// Whether there is a browser.
///
/// # Errors
/// The program that cannot be run.
pub(crate) fn check_available() -> Result<(), String> {
    for (variable, name) in [("CHROMEDRIVER", "chromedriver"), ("CHROMIUM", "chromium")] {
        let program = program(variable, name);
        let is_available = Command::new(&program)
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success());
        if !is_available {
            return Err(format!("{program} cannot be run"));
        }
    }
    Ok(())
}

/// The size of the page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// The screen of most tests.
pub(crate) const DESKTOP: Screen = Screen {
    width: 1440,
    height: 900,
};

/// The starts of chromedriver: it needs the same free port for IPv4 and IPv6, and ends if another
/// process has one of them.
const STARTS_MAX: usize = 5;

/// A browser with one session.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts a browser.
    pub(crate) fn start(screen: Screen) -> Self {
        let (driver, port) = (0..STARTS_MAX)
            .find_map(|_| start_driver())
            .expect("chromedriver prints its port");
        let mut browser = Self {
            driver,
            port,
            session: String::new(),
        };
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--lang=en-US",
        ];
        let options = json!({
            "args": arguments, "binary": which(&program("CHROMIUM", "chromium")),
        });
        let capabilities = json!({ "alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" },
        } });
        let session = browser.send("POST", "/session", &json!({ "capabilities": capabilities }));
        browser.session = session["sessionId"].as_str().expect("a session").to_owned();
        let script = u64::try_from(TIMEOUT.as_millis()).expect("a minute");
        browser.command("timeouts", &json!({ "script": script }));
        browser.resize(screen);
        browser
    }

    /// Sets the size of the page, whatever the frame of the window takes.
    pub(crate) fn resize(&self, screen: Screen) {
        let metrics = json!({
            "width": screen.width, "height": screen.height, "deviceScaleFactor": 1, "mobile": false,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// Opens a URL in the current window.
    pub(crate) fn open(&self, url: &str) {
        self.command("url", &json!({ "url": url }));
    }

    /// Evaluates an expression in the page.
    pub(crate) fn eval(&self, expression: &str) -> Value {
        let script = format!("return ({expression})");
        self.command("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Executes statements in the page.
    pub(crate) fn execute(&self, script: &str) {
        self.command("execute/sync", &json!({ "script": script, "args": [] }));
    }

    /// Evaluates an expression in the page, and waits for its promise.
    pub(crate) fn eval_async(&self, expression: &str) -> Value {
        let script = format!(
            "const done = arguments[0]; Promise.resolve({expression}).then(done, \
             (error) => done(String(error)));"
        );
        self.command("execute/async", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression is true in the page.
    pub(crate) fn wait_for(&self, expression: &str) {
        // Less than the timeout of a script, whose message does not have the expression.
        let deadline_ms = (TIMEOUT / 2).as_millis();
        let script = format!(
            "const done = arguments[0]; const end = Date.now() + {deadline_ms}; \
             const check = () => {{ let value = false; \
             try {{ value = ({expression}); }} catch {{ value = false; }} \
             if (value || Date.now() > end) done(Boolean(value)); \
             else setTimeout(check, 30); }}; check();"
        );
        let found = self.command("execute/async", &json!({ "script": script, "args": [] }));
        assert_eq!(found, json!(true), "{expression} is not true in time");
    }

    /// Presses keys, each a character or a WebDriver key, with Control held if they follow it.
    pub(crate) fn press(&self, keys: &[&str]) {
        let mut actions = Vec::new();
        for key in keys {
            actions.push(json!({ "type": "keyDown", "value": key }));
        }
        for key in keys.iter().rev() {
            actions.push(json!({ "type": "keyUp", "value": key }));
        }
        let source = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.command("actions", &json!({ "actions": [source] }));
    }

    /// Types a text into the focused element.
    pub(crate) fn type_text(&self, text: &str) {
        let element = self.get("element/active");
        let id = element[ELEMENT].as_str().expect("an element");
        self.command(&format!("element/{id}/value"), &json!({ "text": text }));
    }

    /// Opens another window and switches to it.
    pub(crate) fn new_window(&self) {
        let window = self.command("window/new", &json!({ "type": "tab" }));
        self.command("window", &json!({ "handle": window["handle"] }));
    }

    /// Calls a method of the DevTools protocol.
    pub(crate) fn devtools(&self, method: &str, parameters: &Value) -> Value {
        let command = json!({ "cmd": method, "params": parameters });
        self.command("goog/cdp/execute", &command)
    }

    /// The current window as WebP, which takes a third of a PNG.
    pub(crate) fn screenshot(&self) -> Vec<u8> {
        let format = json!({ "format": "webp", "quality": 90 });
        let picture = self.devtools("Page.captureScreenshot", &format);
        let text = picture["data"].as_str().expect("base64");
        let decoded = base64::engine::general_purpose::STANDARD.decode(text);
        decoded.expect("base64")
    }

    /// Messages of the console that are errors, such as violations of the content security policy.
    pub(crate) fn errors(&self) -> Vec<String> {
        let log = self.command("se/log", &json!({ "type": "browser" }));
        let entries = log.as_array().cloned().unwrap_or_default();
        entries
            .iter()
            .filter(|entry| entry["level"] == "SEVERE")
            .map(|entry| entry["message"].to_string())
            .collect()
    }

    fn command(&self, path: &str, body: &Value) -> Value {
        self.send("POST", &format!("/session/{}/{path}", self.session), body)
    }

    fn get(&self, path: &str) -> Value {
        let path = format!("/session/{}/{path}", self.session);
        self.send("GET", &path, &Value::Null)
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("chromedriver");
        // Longer than the timeout of a script, which has a better message.
        stream
            .set_read_timeout(Some(2 * TIMEOUT))
            .expect("a timeout");
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.port,
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("a request");
        let response = read(&mut stream);
        let value: Value = serde_json::from_str(&response).expect("JSON");
        let value = &value["value"];
        assert!(
            value["error"].is_null(),
            "{path}: {} {}",
            value["error"],
            value["message"]
        );
        value.clone()
    }
}

/// Starts chromedriver; `None` if it ends without a port.
fn start_driver() -> Option<(Child, u16)> {
    let mut driver = Command::new(program("CHROMEDRIVER", "chromedriver"))
        .arg("--port=0")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("chromedriver starts");
    let output = BufReader::new(driver.stdout.take().expect("stdout is piped"));
    let port = output.lines().map_while(Result::ok).find_map(|line| {
        let (_, port) = line.split_once("successfully on port ")?;
        port.trim_end_matches('.').parse().ok()
    });
    if port.is_none() {
        drop(driver.wait());
    }
    Some((driver, port?))
}

/// The body of a response with a length.
fn read(stream: &mut TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a header");
        let line = line.trim().to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    String::from_utf8(body).expect("UTF-8")
}

/// The absolute path of a program.
fn which(name: &str) -> String {
    let directories = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&directories)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
        .map_or_else(|| name.to_owned(), |path| path.display().to_string())
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            let path = format!("/session/{}", self.session);
            self.send("DELETE", &path, &Value::Null);
        }
        // Ends the browser too.
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}
