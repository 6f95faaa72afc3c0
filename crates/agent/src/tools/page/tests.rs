use super::bounded_text::BoundedText;
use super::entities::{Replacement, reference};
use super::html::{HiddenElements, scan};
use super::{FetchedPage, fuzzing::page_text, render_page};

mod hostile;

fn html(body: &str) -> String {
    let page = FetchedPage {
        status: 200,
        url: "https://example.com/docs/start?x=1",
        content_type: Some("text/html"),
        body: body.as_bytes(),
        truncated: false,
    };
    let rendered = render_page(&page, 50_000, 100_000).expect("it is readable");
    let text = rendered.strip_prefix("(from https://example.com/docs/start?x=1)\n");
    text.expect("it says where it is from").to_owned()
}

fn fetched<'p>(content_type: Option<&'p str>, body: &'p [u8]) -> FetchedPage<'p> {
    FetchedPage { status: 200, url: "https://a.b/", content_type, body, truncated: false }
}

fn rendered(content_type: Option<&str>, body: &[u8]) -> Result<String, String> {
    render_page(&fetched(content_type, body), 50_000, 100_000).map_err(|error| error.0)
}

#[test]
fn a_page_reads_like_a_text() {
    let page = r#"<!DOCTYPE html><html><head><meta charset=utf-8><title>
      A  guide &amp; more</title><style>p { color: red }</style><script>if (a < b) { "</p>" }</script></head>
    <body><nav><a href="/">Home</a> <a href=#top>Top</a></nav>
    <h1 class="x">Getting&nbsp;started</h1>
    <p>Install <b>it</b> with <code>make install</code>,
       then read <a href="next.html">the <i>next</i> page</a>.</p>
    <ul><li>one<li><p>two</p><ol start=3><li>three</li><li>four</li></ol></li><li>five</li></ul>
    <blockquote><p>Said<br>by someone</p><p>twice</p></blockquote>
    <pre>
let x = &lt;y&gt;;

  indented
</pre>
    <table><tr><th>Name<th>Value<tr><td><p>a</p><td><p>1</p></tr><tr><td>b</td><td></td><td>3</td></tr></table>
    <p>After <img src=x.png alt="a chart"> it.<noscript>Turn it on</noscript><svg><title>no</title><text>no</text></svg></p>
    <div hidden>secret <div>deep</div></div><div style="display: none !important">ignore all</div>
    <!-- a comment --><template><p>not yet</p></template><p aria-hidden=true>unseen<p>kept</p>
    </body></html>"#;
    insta::assert_snapshot!(html(page));
}

#[test]
fn tag_soup_is_read_to_its_end() {
    for (soup, expected) in [
        ("a < b and c > d", "a < b and c > d"),
        ("a<b", "a"),
        ("</p></ul></table>x</blockquote>y", "x\n\ny"),
        ("<!-->x<!--->y<!-- -- > -->z", "xyz"),
        ("<!-- never ended <p>x", "(the page has no text; it may be one that only a browser can show)"),
        ("<?php x ?>a<!bogus>b</ c>d", "abd"),
        ("<p title='>'>x</p>", "x"),
        ("<p title=\"never ended>x</p>", "(the page has no text; it may be one that only a browser can show)"),
        ("<P>x</P><SCRIPT>y</Script >z", "x\n\nz"),
        ("<div hidden>never ended <p>x", "never ended\n\nx"),
        ("<p hidden>x</p>y", "y"),
        ("<ul><li hidden>x<li>y</ul>", "- y"),
        ("<ul><li hidden>x</ul>y", "y"),
        ("<br hidden>x<input hidden>y", "x y"),
        ("<div hidden>x<div>y</div>z</div>w", "w"),
        ("<span style='a:b; DISPLAY : none'>x</span>y", "y"),
        ("<span style='display:nonexistent' hidden=until-found>x</span>y", "xy"),
        ("<tr><td>a<td><ul><li>b<li>c</ul><tr><td>d", "a | b\n- c\nd"),
        ("a<ul><li><p>b</p></li><li><p>c</p><p>d</p></li></ul>e", "a\n\n- b\n- c\n\n  d\n\ne"),
        ("<ul><li>x<table><tr><td><ul><li>y", "- x\n  - y"),
        ("a<td><h1>x", "a\n# x"),
        ("<svg/>x<svg>y</svg>z", "xz"),
        ("x<script>y", "x"),
        ("<a href=/a>one<a href=/b>two", "[one](https://example.com/a)[two](https://example.com/b)"),
        ("<a href=/a><div>in a block</div></a>next", "[in a block](https://example.com/a)\nnext"),
        ("<a href=/a><img src=x></a>x", "x"),
        ("<h2></h2>x", "x"),
        ("x<h2><a href=/y>y</a></h2>z", "x\n\n## [y](https://example.com/y)\n\nz"),
        ("<li>alone", "- alone"),
        ("<ul><li><a href=/a>x</a></ul>", "- [x](https://example.com/a)"),
        ("<td>a<td>b", "a | b"),
        ("<a =b=c/d href=/x\u{e9}>x</a>", "[x](https://example.com/x\u{e9})"),
        ("a\u{200b}b\u{e0041}\u{202e}c\0d", "abcd"),
        ("<title>T</title>x<title>U</title>", "# T\n\nx"),
        ("<textarea><b>x</textarea>", "<b>x"),
        ("<\u{e9}>x", "<\u{e9}>x"),
    ] {
        assert_eq!(html(soup), expected, "{soup}");
    }
}

#[test]
fn references_mean_characters() {
    for (text, expected) in [
        ("amp;", Some((Replacement::Text("&"), 4))),
        ("nbsp; x", Some((Replacement::Text(" "), 5))),
        ("#8364;", Some((Replacement::Character('€'), 6))),
        ("#x20AC;", Some((Replacement::Character('€'), 7))),
        ("#X41x", Some((Replacement::Character('A'), 4))),
        ("#0;", Some((Replacement::Character('\0'), 3))),
        ("#xd800;", Some((Replacement::Character('\u{fffd}'), 7))),
        ("#99999999999;", Some((Replacement::Character('\u{fffd}'), 13))),
        ("#150;", Some((Replacement::Character('–'), 5))),
        ("amp", None),
        ("lt=1", None),
        ("nosuch;", None),
        ("#;", None),
        ("#x;", None),
        ("", None),
        (";", None),
    ] {
        assert_eq!(reference(text), expected, "{text}");
    }
    assert_eq!(html("&lt;b&gt; &amp;lt; &copy;&nosuch; a&b"), "<b> &lt; ©&nosuch; a&b");
}

#[test]
fn links_lead_to_addresses_that_can_be_fetched() {
    let long = "x".repeat(400);
    for (href, expected) in [
        ("https://other.org/a?b=c&amp;d=e#f", Some("https://other.org/a?b=c&d=e")),
        ("HTTP://OTHER.org", Some("HTTP://OTHER.org")),
        ("//cdn.org/x", Some("https://cdn.org/x")),
        ("/root", Some("https://example.com/root")),
        ("near", Some("https://example.com/docs/near")),
        ("./near", Some("https://example.com/docs/near")),
        ("../up", Some("https://example.com/up")),
        ("../../../up", Some("https://example.com/up")),
        ("?page=2", Some("https://example.com/docs/start?page=2")),
        (" a b(c) ", Some("https://example.com/docs/a%20b%28c%29")),
        ("mailto:me@a.b", Some("mailto:me@a.b")),
        ("#place", None),
        ("", None),
        ("javascript:alert(1)", None),
        ("data:text/html,x", None),
        (&long, None),
    ] {
        let expected = expected.map_or("x".to_owned(), |target| format!("[x]({target})"));
        assert_eq!(html(&format!("<a href=\"{href}\">x</a>")), expected);
    }
    let many = "<a href=a>x</a>".repeat(3_000);
    let many = render_page(&fetched(Some("text/html"), many.as_bytes()), usize::MAX, 1 << 20).expect("it is readable");
    assert_eq!(many.matches("[x](https://a.b/a)").count(), 2_000);
    assert_eq!(many.matches('x').count(), 3_000);
}

#[test]
fn types_decide_how_a_page_is_read() {
    let html = b"<p>x</p>";
    for kind in ["text/html", "TEXT/HTML; charset=utf-8", "application/xhtml+xml"] {
        assert_eq!(rendered(Some(kind), html), Ok("(from https://a.b/)\nx".to_owned()), "{kind}");
    }
    let push_plain = Ok("(from https://a.b/)\n<p>x</p>".to_owned());
    for kind in [
        "text/plain",
        "text/markdown",
        "application/json",
        "application/problem+json",
        "application/xml",
        "image/svg+xml",
        "application/yaml",
        "application/x-yaml; charset=utf-8",
    ] {
        assert_eq!(rendered(Some(kind), html), push_plain, "{kind}");
    }
    for kind in ["image/png", "application/pdf", "application/zip", "application/octet-stream", "nonsense"] {
        let expected = format!("https://a.b/ is not text and cannot be read here: {kind}, 8 bytes");
        assert_eq!(rendered(Some(kind), html), Err(expected));
    }
    let binary = b"abc\0def";
    let no_type = "https://a.b/ is not text and cannot be read here: no type, not text, 7 bytes";
    assert_eq!(rendered(None, binary), Err(no_type.to_owned()));
    let no_text = "https://a.b/ is not text and cannot be read here: text/plain, 7 bytes";
    assert_eq!(rendered(Some("text/plain"), binary), Err(no_text.to_owned()));
    let read = Ok("(from https://a.b/)\nx".to_owned());
    assert_eq!(rendered(None, b" \n<!DocType HTML><p>x"), read);
    assert_eq!(rendered(Some(""), b"<HTML><p>x"), read);
    assert_eq!(rendered(None, b"x"), read);
    assert_eq!(rendered(None, b"\xff\xfex\0"), read);
    assert_eq!(rendered(Some("text/html"), b""), Ok("(from https://a.b/)\n(the page is empty)".to_owned()));
}

#[test]
fn character_sets_are_found_in_their_order() {
    let meta = b"<head><meta http-equiv=x><META content='text/html; charset=iso-8859-1'></head>\xe9".as_slice();
    let short = b"<meta charset = \"windows-1252\" /><p>\x80".as_slice();
    for (kind, body, expected) in [
        ("text/html", meta, "é"),
        ("text/html", short, "€"),
        ("text/html; charset=\"koi8-r\"", b"<meta charset=latin1>\xc1".as_slice(), "а"),
        ("text/html; charset=latin1", b"\xef\xbb\xbf\xc3\xa9".as_slice(), "é"),
        ("text/html; charset=nonsense", b"\xc3\xa9".as_slice(), "é"),
        ("text/html", b"<meta charset=utf-16>\xc3\xa9".as_slice(), "é"),
        ("text/html", b"\xff\xfeh\0i\0".as_slice(), "hi"),
        ("text/plain; charset=utf-16le", b"h\0i\0".as_slice(), "hi"),
        ("text/plain; charset=shift_jis", b"\x93\xfa\x96\x7b".as_slice(), "日本"),
        ("text/plain", b"a\xff\xc3b".as_slice(), "a\u{fffd}\u{fffd}b"),
    ] {
        assert_eq!(rendered(Some(kind), body), Ok(format!("(from https://a.b/)\n{expected}")), "{kind}");
    }
}

#[test]
fn error_pages_are_errors_with_their_text() {
    let page = |body| FetchedPage { status: 404, ..fetched(Some("text/html"), body) };
    let rendered = |page: &FetchedPage<'_>, bytes| render_page(page, 50_000, bytes).expect_err("it is an error").0;
    assert_eq!(rendered(&page(b"<h1>Not here</h1>"), 9_000), "HTTP 404 from https://a.b/\n# Not here");
    assert_eq!(rendered(&page(b""), 9_000), "HTTP 404 from https://a.b/");
    let image = FetchedPage { content_type: Some("image/png"), ..page(b"\0") };
    assert_eq!(rendered(&image, 9_000), "HTTP 404 from https://a.b/");
    let long = "word ".repeat(5_000);
    let long = rendered(&page(long.as_bytes()), 9_000);
    assert!((1_900..=2_030).contains(&long.len()), "{}", long.len());
    assert!(rendered(&page(b"x"), 10).len() <= 10);
}

#[test]
fn a_cut_says_where_it_is_and_what_to_do() {
    let text = "word ".repeat(1_000);
    let page = fetched(Some("text/plain"), text.as_bytes());
    let by_characters = render_page(&page, 12, 10_000).expect("it is readable");
    assert_eq!(
        by_characters,
        "(from https://a.b/)\nword word\n(cut at 9 characters of 5000; ask for a more specific address, or raise maxChars)"
    );
    let by_bytes = render_page(&page, 50_000, 300).expect("it is readable");
    assert_eq!(
        by_bytes,
        "(from https://a.b/)\nword word word word\n(cut at 19 characters of 5000; ask for a more specific address)"
    );
    let more = FetchedPage { truncated: true, ..fetched(Some("text/plain"), b"x") };
    assert_eq!(
        render_page(&more, 100, 1_000).expect("it is readable"),
        "(from https://a.b/)\nx\n(the page is longer than what is fetched; its end is missing)"
    );
    let wide = "é€漢🦀".repeat(100);
    let page = fetched(Some("text/plain"), wide.as_bytes());
    for max_bytes in 0..900 {
        let rendered = render_page(&page, 50_000, max_bytes).expect("it is readable");
        assert!(rendered.len() <= max_bytes, "{max_bytes}");
    }
}
