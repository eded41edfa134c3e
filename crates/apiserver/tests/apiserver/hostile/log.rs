//! Errors that the server logs while it is attacked.
//! Guarantees: panics are recorded wherever they happen, also in detached tasks.

use std::sync::{Mutex, Once, PoisonError};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

static ERRORS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Installs the subscriber; once is enough for all tests of the program.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        tracing::subscriber::set_global_default(ErrorRecorder).expect("no other subscriber is set")
    });
}

/// Errors that were logged so far, by any test.
pub(crate) fn logged_errors() -> Vec<String> {
    ERRORS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// Records errors that are logged.
struct ErrorRecorder;

impl Subscriber for ErrorRecorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Clients of other tests in this program log their own failed requests.
        let is_of_server = metadata.target().starts_with("bellerophon_apiserver");
        metadata.is_event() && *metadata.level() == Level::ERROR && is_of_server
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        ERRORS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}
