//! What the server complains of while it is attacked.
//! Guarantees: panics are known to have happened wherever they did, also in tasks that nobody waits
//! for.

use std::sync::{Mutex, Once, PoisonError};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

static COMPLAINTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Starts to listen; once is enough for all tests of the program.
pub(crate) fn listen() {
    static LISTENING: Once = Once::new();
    LISTENING
        .call_once(|| tracing::subscriber::set_global_default(Ear).expect("nobody else listens"));
}

/// Errors that were logged so far, by any test.
pub(crate) fn complaints() -> Vec<String> {
    COMPLAINTS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// Keeps what is logged as an error.
struct Ear;

impl Subscriber for Ear {
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
        COMPLAINTS
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
