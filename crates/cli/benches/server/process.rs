//! Measurements of the server without requests.

use std::time::Duration;

use bellerophon_apiserver::ApiServer;
use http_body_util::Full;
use tower::ServiceExt;

use crate::common::{
    BenchError,
    process::{Server, now},
};

/// The processor time of all threads of a server.
pub(crate) fn processor_time(server: &Server) -> Result<Duration, BenchError> {
    let mut nanoseconds = 0;
    for thread in std::fs::read_dir(server.proc_path("task"))? {
        let statistics = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let first = statistics.split_whitespace().next().ok_or("no number")?;
        nanoseconds += first.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// The median time from `start()` to the first response, in this process.
pub(crate) async fn in_process() -> Result<Duration, BenchError> {
    let mut times = Vec::new();
    for _ in 0..25 {
        let start = now();
        let server = ApiServer::builder().start().await?;
        let request = http::Request::get("/api/v1/namespaces/default")
            .body(Full::<bytes::Bytes>::default())?;
        let response = server.service().oneshot(request).await?;
        times.push(start.elapsed());
        assert_eq!(response.status(), 200);
    }
    times.sort();
    Ok(times[times.len() / 2])
}
