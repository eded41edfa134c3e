//! The warnings of a response.
//! Guarantees: error responses carry them too; each is sent once; their number and size are
//! bounded, as in the recorder of kube-apiserver's `WithWarningRecorder`.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

/// When the warnings of a request have more characters than this together, each is cut.
const TOTAL_MAX_CHARS: usize = 4 * 1024;

/// The length that warnings are cut to.
const CUT_MAX_CHARS: usize = 256;

/// The warnings of one request, in order. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warnings {
    recorded: Arc<Mutex<Recorded>>,
}

#[derive(Debug, Default)]
struct Recorded {
    /// In order, truncated if `cutting`.
    texts: Vec<String>,
    /// Every text so far, not truncated.
    known: HashSet<String>,
    /// Characters of `texts`.
    chars: usize,
    /// Whether the bound was met: warnings are cut from then on, and left out when it is met again.
    cutting: bool,
}

impl Recorded {
    fn add(&mut self, text: String) {
        if self.cutting && self.chars >= TOTAL_MAX_CHARS {
            return;
        }
        if text.is_empty() || !self.known.insert(text.clone()) {
            return;
        }
        self.chars += text.chars().count();
        self.texts.push(text);
        if self.chars > TOTAL_MAX_CHARS || self.cutting {
            self.cutting = true;
            self.texts.iter_mut().for_each(cut);
            self.chars = self.texts.iter().map(|text| text.chars().count()).sum();
        }
    }
}

fn cut(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(CUT_MAX_CHARS) {
        text.truncate(end);
    }
}

impl Warnings {
    /// Adds warnings that were not given yet.
    pub(crate) fn add(&self, warnings: impl IntoIterator<Item = String>) {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        warnings.into_iter().for_each(|text| recorded.add(text));
    }

    /// All of them, once.
    pub(crate) fn take(&self) -> Vec<String> {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *recorded).texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_given_once_and_in_order() {
        let warnings = Warnings::default();
        warnings.add(["b", "a", "b", ""].map(str::to_owned));
        warnings.add(["a", "c"].map(str::to_owned));
        assert_eq!(warnings.take(), ["b", "a", "c"]);
        assert_eq!(warnings.take(), Vec::<String>::new());
    }

    #[test]
    fn many_warnings_are_cut_and_then_left_out() {
        let warnings = Warnings::default();
        let long = |number: usize| format!("{number:05}{}", "\u{e9}".repeat(995));
        warnings.add((0..4).map(long));
        warnings.add((4..33_000).map(long));
        let given = warnings.take();
        assert_eq!(given.len(), 16);
        for (number, text) in given.iter().enumerate() {
            assert!(text.starts_with(&format!("{number:05}")), "{text}");
            assert_eq!(text.chars().count(), CUT_MAX_CHARS);
        }
    }

    #[test]
    fn warnings_within_the_bound_are_whole() {
        let warnings = Warnings::default();
        let text = "x".repeat(TOTAL_MAX_CHARS);
        warnings.add([text.clone()]);
        assert_eq!(warnings.take(), [text]);
    }
}
