//! The files of the page, embedded in the binary.
//!
//! Guarantees: at most [`ASSETS_MAX_BYTES`] in total; no file refers to another host.

/// The size of all files.
#[cfg(test)]
const ASSETS_MAX_BYTES: usize = 250 << 10;

/// A file.
pub(super) struct Asset {
    path: &'static str,
    pub(super) media_type: &'static str,
    pub(super) bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A file of `assets/`.
macro_rules! asset {
    ($path:literal, $file:literal, $media_type:expr) => {
        Asset {
            path: $path,
            media_type: $media_type,
            bytes: include_bytes!(concat!("../assets/", $file)),
        }
    };
}

const ASSETS: &[Asset] = &[
    asset!("/", "index.html", HTML),
    asset!("/icon.svg", "icon.svg", SVG),
    asset!("/tokens.css", "tokens.css", CSS),
    asset!("/page.css", "page.css", CSS),
    asset!("/views.css", "views.css", CSS),
    asset!("/theme.js", "theme.js", JS),
    asset!("/main.js", "main.js", JS),
    asset!("/act.js", "act.js", JS),
    asset!("/chain.js", "chain.js", JS),
    asset!("/charts.js", "charts.js", JS),
    asset!("/detectors.js", "detectors.js", JS),
    asset!("/dom.js", "dom.js", JS),
    asset!("/findings.js", "findings.js", JS),
    asset!("/format.js", "format.js", JS),
    asset!("/lanes.js", "lanes.js", JS),
    asset!("/model.js", "model.js", JS),
    asset!("/names.js", "names.js", JS),
    asset!("/objects.js", "objects.js", JS),
    asset!("/operators.js", "operators.js", JS),
    asset!("/palette.js", "palette.js", JS),
    asset!("/panel.js", "panel.js", JS),
    asset!("/parts.js", "parts.js", JS),
    asset!("/perfetto.js", "perfetto.js", JS),
    asset!("/queues.js", "queues.js", JS),
    asset!("/stream.js", "stream.js", JS),
    asset!("/timebar.js", "timebar.js", JS),
    asset!("/timeline.js", "timeline.js", JS),
    asset!("/why.js", "why.js", JS),
];

/// The file at a path.
pub(super) fn find(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_small_and_name_no_other_host() {
        let total: usize = ASSETS.iter().map(|asset| asset.bytes.len()).sum();
        assert!(total <= ASSETS_MAX_BYTES, "{total} bytes");
        for asset in ASSETS {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            for scheme in ["http://", "https://", "//cdn", "ws://", "wss://"] {
                let foreign = text.match_indices(scheme).map(|(at, _)| &text[at..]);
                // The namespace of SVG is a name and not an address.
                let foreign: Vec<_> = foreign
                    .filter(|rest| !rest.starts_with("http://www.w3.org/2000/svg"))
                    .map(|rest| rest.chars().take(40).collect::<String>())
                    .collect();
                assert!(foreign.is_empty(), "{}: {foreign:?}", asset.path);
            }
        }
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/assets");
        for file in std::fs::read_dir(folder).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            let path = match name.as_str() {
                "index.html" => "/".to_owned(),
                name => format!("/{name}"),
            };
            assert!(find(&path).is_some(), "{name} is not in the table");
        }
    }

    #[test]
    fn markup_has_no_inline_script_or_style() {
        let html = std::str::from_utf8(find("/").unwrap().bytes).unwrap();
        for inline in ["<style", "style=", "onclick", "<script>"] {
            assert!(!html.contains(inline), "{inline}");
        }
    }
}
