//! The body of a fuzz target: pages of any author.

use sympozium_api::text::is_prose;

use super::{FetchedPage, render_page};

/// The type in the first line, the page in the rest: what comes back is as short as was asked, and holds nothing that cannot
/// be seen.
pub fn page_text(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (kind, body) = data.split_at(end);
    let Ok(kind) = std::str::from_utf8(kind) else {
        return;
    };
    for (status, max_chars, max_bytes) in [(200, 50_000, 32 << 10), (200, 40, 600), (404, 1_000, 1_000), (200, 9, 9)] {
        let page = FetchedPage {
            status,
            url: "https://example.com/a/b?c=d",
            content_type: (!kind.is_empty()).then_some(kind),
            body,
            truncated: false,
        };
        let (rendered, wrong) = match render_page(&page, max_chars, max_bytes) {
            Ok(rendered) => (rendered, false),
            Err(error) => (error.0, true),
        };
        assert!(rendered.len() <= max_bytes, "{} bytes", rendered.len());
        assert!(wrong || rendered.chars().all(is_prose), "nothing that cannot be seen");
        assert!(status < 400 || wrong, "an error is reported as one");
    }
}
