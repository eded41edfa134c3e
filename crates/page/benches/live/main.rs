//! Benchmark of the live page in a browser: `cargo bench -p bellerophon-page --bench live`
//!
//! Records 5,000 records per second for 60 s into a trace, serves it, shows it in chromium, and
//! prints a Markdown table: records that arrived, gaps, DOM nodes, heap and long tasks of the page,
//! and the processor time of the thread that serves it. Options: `-- --seconds N`, `-- --rate N`,
//! `-- --view NAME`, `-- --profile FILE` for a CPU profile of the page, and `-- --check`, which fails
//! if a limit is exceeded.
//!
//! Needs chromium and chromedriver. Recording costs the same without a viewer, so it is a separate
//! thread and not part of the result.

mod generator; // records of chains

#[path = "../../../cli/tests/clients/webdriver.rs"]
#[expect(dead_code, reason = "a benchmark types nothing")]
mod webdriver; // a browser

mod running {
    //! What a browser waits for.

    /// The timeout of every wait: longer than anything takes on a busy machine.
    pub(crate) const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);
}

use std::{
    error::Error,
    fmt::Write as _,
    io::Write as _,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use bellerophon::clock::{Clock, Rng};
use bellerophon::trace::Trace;
use bellerophon_page::{LiveSource, ObjectLog, Page, PageOptions, Source};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::generator::Generator;
use crate::webdriver::{Browser, DESKTOP};

/// The allocator of the `bellerophon` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type BenchError = Box<dyn Error + Send + Sync>;

/// The records that a process keeps, as in `bellerophon up`.
const RECORDS_MAX: usize = 1 << 16;

/// The limits of the page.
const DOM_NODES_MAX: f64 = 3_000.0;
const HEAP_MAX_MB: f64 = 150.0;
const LONG_TASKS_MAX: f64 = 3.0;
const PROCESSOR_MAX_PERCENT: f64 = 5.0;

/// What is measured.
struct Options {
    seconds: u64,
    rate: u64,
    view: String,
    profile: Option<String>,
    check: bool,
}

fn options() -> Result<Options, BenchError> {
    let mut options = Options {
        seconds: 60,
        rate: 5_000,
        view: "timeline".to_owned(),
        profile: None,
        check: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or("a value is missing");
        match argument.as_str() {
            "--seconds" => options.seconds = value()?.parse()?,
            "--rate" => options.rate = value()?.parse()?,
            "--view" => options.view = value()?,
            "--profile" => options.profile = Some(value()?),
            "--check" => options.check = true,
            // Cargo adds it.
            "--bench" => {}
            other => return Err(format!("unknown option {other}").into()),
        }
    }
    Ok(options)
}

fn main() -> Result<(), BenchError> {
    let options = options()?;
    webdriver::check_available()?;
    let recording = Generator::new(Trace::new(RECORDS_MAX), ObjectLog::default()).recording_time();
    let trace = Trace::new(RECORDS_MAX);
    let objects = ObjectLog::default();
    let source = LiveSource {
        trace: trace.clone(),
        clock: Clock::system(),
        objects: Some(objects.clone()),
        // The browser reads them before the first write.
        stored: None,
    };
    let page = ServedPage::start(source)?;
    let browser = Browser::start(DESKTOP);
    browser.open(&page.url);
    browser.wait_for("document.getElementById('app').dataset.ready === 'true'");
    browser.eval(&format!("bellerophon.app.show('{}')", options.view));
    browser.eval(
        "(window.longTasks = [], new PerformanceObserver((list) => \
         window.longTasks.push(...list.getEntries().map((entry) => entry.duration))) \
         .observe({ type: 'longtask' }))",
    );
    if options.profile.is_some() {
        browser.devtools("Profiler.enable", &json!({}));
        browser.devtools("Profiler.start", &json!({}));
    }
    let first = metrics(&browser);
    let before = page.processor_time()?;
    let stop = CancellationToken::new();
    let generator = Generator::new(trace.clone(), objects);
    let generating = generator.start(options.rate, stop.clone());
    let started = generator::now();
    let mut nodes: f64 = 0.0;
    let mut heap: f64 = 0.0;
    while started.elapsed() < Duration::from_secs(options.seconds) {
        generator::sleep(Duration::from_secs(1));
        let now = metrics(&browser);
        let count = browser.eval("document.querySelectorAll('*').length");
        nodes = nodes.max(count.as_f64().unwrap_or_default());
        heap = heap.max(now["JSHeapUsedSize"].as_f64().unwrap_or_default() / 1e6);
    }
    let spent = page.processor_time()? - before;
    let elapsed = started.elapsed();
    let after = metrics(&browser);
    let task = |metrics: &Value| metrics["TaskDuration"].as_f64().unwrap_or_default();
    let page_seconds = task(&after) - task(&first);
    stop.cancel();
    generating.join().map_err(|_| "the generator failed")?;
    if let Some(file) = &options.profile {
        let profile = browser.devtools("Profiler.stop", &json!({}));
        std::fs::write(file, profile["profile"].to_string())?;
    }
    let newest = trace.newest_sequence();
    browser.wait_for(&format!("bellerophon.app.model.last >= {newest}"));
    let tasks = browser.eval("window.longTasks");
    let read = |expression: &str| browser.eval(expression).as_f64().unwrap_or_default();
    let received = read("bellerophon.app.model.total");
    let missed = read("bellerophon.app.model.gaps.reduce((sum, gap) => sum + gap.missed, 0)");
    let result = Measured {
        recorded: newest as f64,
        received,
        missed,
        nodes,
        heap_mb: heap,
        tasks: tasks
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_f64)
            .collect(),
        seconds: elapsed.as_secs_f64(),
        recording,
        page_percent: 100.0 * page_seconds / elapsed.as_secs_f64(),
        processor_percent: 100.0 * spent.as_secs_f64() / elapsed.as_secs_f64(),
    };
    let table = result.table(&options)?;
    std::io::stdout().write_all(table.as_bytes())?;
    match (options.check, result.exceeded()) {
        (true, Some(limit)) => Err(limit.into()),
        _ => Ok(()),
    }
}

/// Metrics of the page: `JSHeapUsedSize` in bytes, `TaskDuration` in seconds of processor time.
fn metrics(browser: &Browser) -> Value {
    // The first call starts to count.
    let domain = json!({ "timeDomain": "threadTicks" });
    browser.devtools("Performance.enable", &domain);
    let found = browser.devtools("Performance.getMetrics", &json!({}));
    let metrics = found["metrics"].as_array().into_iter().flatten();
    let members = metrics.filter_map(|metric| {
        let name = metric["name"].as_str()?;
        Some((name.to_owned(), metric["value"].clone()))
    });
    Value::Object(members.collect())
}

/// The results.
struct Measured {
    seconds: f64,
    recorded: f64,
    received: f64,
    /// Records of gaps that the page shows.
    missed: f64,
    nodes: f64,
    heap_mb: f64,
    /// The long tasks of the page in milliseconds.
    tasks: Vec<f64>,
    /// The time of one accepted write without a viewer.
    recording: Duration,
    /// The processor time of the main thread of the page.
    page_percent: f64,
    processor_percent: f64,
}

impl Measured {
    fn long_tasks(&self) -> f64 {
        self.tasks.iter().filter(|ms| **ms > 200.0).count() as f64
    }

    fn table(&self, options: &Options) -> Result<String, BenchError> {
        let longest = self.tasks.iter().copied().fold(0.0, f64::max);
        let silent = self.recorded - self.received - self.missed;
        let mut table = String::from("| measure | result | limit |\n|---|---|---|\n");
        writeln!(
            table,
            "| records in {:.0} s, {} | {:.0} ({:.0}/s) | |",
            self.seconds,
            options.view,
            self.recorded,
            self.recorded / self.seconds
        )?;
        writeln!(table, "| missing without a gap | {silent:.0} | 0 |")?;
        writeln!(table, "| missing in drawn gaps | {:.0} | |", self.missed)?;
        let nodes = self.nodes;
        writeln!(table, "| DOM nodes | {nodes:.0} | {DOM_NODES_MAX:.0} |")?;
        let heap = self.heap_mb;
        writeln!(
            table,
            "| heap of the page | {heap:.0} MB | {HEAP_MAX_MB:.0} MB |"
        )?;
        let long = self.long_tasks();
        writeln!(
            table,
            "| tasks over 200 ms | {long:.0} (longest task {longest:.0} ms) | {LONG_TASKS_MAX:.0} |"
        )?;
        let recording = self.recording.as_secs_f64() * 1e6;
        writeln!(
            table,
            "| recording an accepted write, without a viewer | {recording:.2} µs | |"
        )?;
        let page = self.page_percent;
        writeln!(
            table,
            "| main thread of the page, of one core | {page:.1} % | |"
        )?;
        let processor = self.processor_percent;
        writeln!(
            table,
            "| server, of one core | {processor:.1} % | {PROCESSOR_MAX_PERCENT:.0} % |"
        )?;
        Ok(table)
    }

    /// The first limit that is exceeded.
    fn exceeded(&self) -> Option<String> {
        let silent = self.recorded - self.received - self.missed;
        [
            ("missing records", silent.abs(), 0.0),
            ("DOM nodes", self.nodes, DOM_NODES_MAX),
            ("heap", self.heap_mb, HEAP_MAX_MB),
            ("tasks over 200 ms", self.long_tasks(), LONG_TASKS_MAX),
            ("server", self.processor_percent, PROCESSOR_MAX_PERCENT),
        ]
        .into_iter()
        .find(|(_, value, limit)| value > limit)
        .map(|(name, value, limit)| format!("{name}: {value:.1}, limit {limit}"))
    }
}

/// A page on a separate thread.
struct ServedPage {
    url: String,
    /// The id of the thread, for its statistics.
    thread: i32,
    stop: CancellationToken,
    serving: Option<JoinHandle<()>>,
}

impl ServedPage {
    fn start(source: LiveSource) -> Result<Self, BenchError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let serving = thread::spawn(move || {
            runtime.block_on(async {
                let page = Page::bind(PageOptions {
                    address: ([127, 0, 0, 1], 0).into(),
                    source: Source::Live(source),
                    actor: None,
                    endpoint: None,
                    rng: Rng::from_os(),
                });
                let page = page.await.expect("a free port");
                let thread = rustix::thread::gettid().as_raw_nonzero().get();
                sender.send((page.url(), thread)).expect("the main thread");
                page.serve(stopped).await;
            });
        });
        let (url, thread) = receiver.recv()?;
        Ok(Self {
            url,
            thread,
            stop,
            serving: Some(serving),
        })
    }

    /// The processor time of its thread.
    fn processor_time(&self) -> Result<Duration, BenchError> {
        let path = format!("/proc/self/task/{}/schedstat", self.thread);
        let statistics = std::fs::read_to_string(path)?;
        let first = statistics.split_whitespace().next().ok_or("no number")?;
        Ok(Duration::from_nanos(first.parse()?))
    }
}

impl Drop for ServedPage {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(serving) = self.serving.take() {
            drop(serving.join());
        }
    }
}
