//! Pages that were written to break a reader: deep, wide, without an end.

use std::thread;

use proptest::prelude::*;

use super::{BoundedText, FetchedPage, HiddenElements, page_text, render_page, scan};

/// What the bridge fetches at most.
const PAGE: usize = 2 << 20;

/// Enough of a unit that has nothing to do with depth.
const SOME: usize = 64 << 10;

/// Those of the units that a reader which builds a tree would go down into.
const DEEP: &[&str] = &["<div>", "<b>", "<table><tr><td>", "<blockquote>", "<ul>"];

/// The stack of a thread that may block.
const STACK: usize = 2 << 20;

/// Most work for each byte of a page: looked at twice or so, and written with the marks around it.
const WORK_PER_BYTE: usize = 40;

const UNITS: &[&str] = &[
    "<div>",
    "<b>",
    "<table>",
    "<table><tr><td>",
    "<blockquote>",
    "<blockquote>x",
    "<ul>",
    "<ul><li>x",
    "<ol><li>",
    "<pre>x\n",
    "<a href=x>y",
    "<a href=/x>y</a>",
    "<a href=\"",
    "<td>x",
    "<tr><td>",
    "<td colspan=1000000 rowspan=65534>x",
    "<td>",
    "<svg>",
    "<template>",
    "<div hidden>",
    "<div hidden>x</div>",
    "<p hidden>",
    "<span style='display:none'>",
    "<!--",
    "<!-- --",
    "<!",
    "<",
    "</",
    "</a",
    "</div>",
    "<a ",
    "<a =",
    "<a b='",
    "<script>",
    "<script></scrip",
    "<script><",
    "<title>",
    "<title>x</title>",
    "&",
    "&amp;",
    "&#x",
    "&#99999999;",
    "&aaaaaaaaaaaaaaaaaaaaaaaa",
    "\0",
    "\u{e0041}",
    "x",
    "x ",
    "漢",
    "<h1>",
    "<h1>x</h1>",
    "<code>",
    "<img alt=x>",
    "<br>x",
    "<li>x",
    "<option>x",
];

fn page(unit: &str, bytes: usize) -> String {
    unit.repeat(bytes / unit.len())
}

/// Bytes that were looked at and written, of a page that is read as often as it has to be.
fn work(html: &str) -> usize {
    let first = scan(html, "https://a.b/c/d", BoundedText::new(50_000, 32 << 10), HiddenElements::Skip);
    let mut work = first.examined + first.text.bytes_pushed();
    if !first.is_complete {
        let second = scan(html, "https://a.b/c/d", BoundedText::new(50_000, 32 << 10), HiddenElements::Show);
        work += second.examined + second.text.bytes_pushed();
    }
    work
}

#[test]
fn every_unit_costs_the_same_in_a_large_page() {
    for unit in UNITS {
        let small = work(&page(unit, 16 << 10));
        let large = work(&page(unit, 128 << 10));
        assert!(large <= 9 * small, "{unit:?}: {small} and {large}");
        assert!(large <= WORK_PER_BYTE * (128 << 10), "{unit:?}: {large}");
    }
}

#[test]
fn whole_pages_are_read_on_a_small_stack() {
    let reader = thread::Builder::new().stack_size(STACK).spawn(|| {
        for unit in UNITS {
            let body = page(unit, if DEEP.contains(unit) { PAGE } else { SOME });
            let page = FetchedPage {
                status: 200,
                url: "https://a.b/c/d",
                content_type: Some("text/html"),
                body: body.as_bytes(),
                truncated: true,
            };
            let rendered = render_page(&page, 50_000, 32 << 10).expect("it is readable");
            assert!(rendered.len() <= 32 << 10, "{unit:?}: {}", rendered.len());
        }
    });
    let read = reader.expect("a thread starts").join();
    assert!(read.is_ok(), "a page broke its reader");
}

proptest! {
    #[test]
    fn pages_of_any_pieces_are_read(
        parts in proptest::collection::vec(proptest::sample::select(UNITS), 0..60),
        kind in proptest::sample::select(["text/html", "text/plain", ""].as_slice()),
    ) {
        page_text(format!("{kind}\n{}", parts.concat()).as_bytes());
    }

    #[test]
    fn any_bytes_are_read(body in proptest::collection::vec(any::<u8>(), 0..400)) {
        page_text(&[b"text/html\n".as_slice(), &body].concat());
        page_text(&[b"\n".as_slice(), &body].concat());
    }
}
