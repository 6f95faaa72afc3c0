use tokio::io::duplex;

use super::*;

/// Reads a response that arrives in pieces of this size, after which the server closes.
async fn fetched(text: &[u8], size: usize, most: usize) -> Result<Page, ResponseError> {
    let (near, mut far) = duplex(size);
    let text = text.to_vec();
    let serving = tokio::spawn(async move {
        // The reader may have stopped before the end.
        let _ = far.write_all(&text).await;
    });
    let page = match PageResponse::read_head(near).await {
        Ok(answer) => answer.read_page(most).await,
        Err(broken) => Err(broken),
    };
    serving.await.unwrap();
    page
}

fn page(status: u16, body: &str) -> Page {
    Page { status, content_type: None, body: body.as_bytes().to_vec(), truncated: false }
}

#[tokio::test]
async fn answers() {
    let early = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n".repeat(MAX_INTERIM_ANSWERS);
    let after_early = format!("{early}HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na");
    for (text, expected) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef", page(200, "abc")),
        ("HTTP/1.0 404 \r\n\r\nabc", page(404, "abc")),
        ("HTTP/1.1 500 no\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", page(500, "abc")),
        ("HTTP/1.1 204 No Content\r\n\r\nabc", page(204, "")),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", page(304, "")),
        (&after_early, page(200, "a")),
    ] {
        for size in [1, 5, 4096] {
            let read = fetched(text.as_bytes(), size, 100).await.unwrap();
            assert_eq!(read, expected, "{text:?}");
        }
    }
}

#[tokio::test]
async fn what_a_page_says_it_is() {
    let long = "x".repeat(MAX_CONTENT_TYPE_BYTES + 1);
    for (value, expected) in [
        ("text/html; charset=utf-8", Some("text/html; charset=utf-8")),
        ("", None),
        ("text/\u{fc}", None),
        (&long, None),
    ] {
        let text = format!("HTTP/1.1 200 OK\r\nContent-Type: {value}\r\n\r\n");
        let read = fetched(text.as_bytes(), 4096, 1).await.unwrap();
        assert_eq!(read.content_type.as_deref(), expected, "{value}");
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_no_page() {
    let interim = "HTTP/1.1 100 Continue\r\n\r\n".repeat(MAX_INTERIM_ANSWERS + 1);
    let huge = format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "x".repeat(1 << 20));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: x\r\n".repeat(100));
    for (text, expected) in [
        ("", ResponseError::Closed),
        ("HTTP/1.1 200 OK\r\n", ResponseError::Closed),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", ResponseError::Closed),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", ResponseError::Closed),
        ("SSH-2.0-OpenSSH\r\n\r\n", ResponseError::Head),
        ("HTTP/1.1 200 OK\n\n", ResponseError::Head),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", ResponseError::Head),
        ("HTTP/1.1 302 Found\r\nLocation: /a\r\nLocation: /b\r\n\r\n", ResponseError::Head),
        (&huge, ResponseError::LargeHead),
        (&many, ResponseError::LargeHead),
        (&interim, ResponseError::TooManyInterim),
        ("HTTP/1.1 101 Switching\r\n\r\n", ResponseError::ProtocolSwitch),
        ("HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\nx", ResponseError::Encoding),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            ResponseError::Body(InvalidBody("the size of a chunk cannot be read")),
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nplain",
            ResponseError::Body(InvalidBody("the body is not compressed as its head says")),
        ),
    ] {
        let read = fetched(text.as_bytes(), 512, 100).await;
        let words = read.unwrap_err().to_string();
        assert_eq!(words, expected.to_string(), "{:.80}", text);
    }
}

#[tokio::test]
async fn no_more_is_read_than_is_wanted() {
    for (most, expected, truncated) in [(2, "ab", true), (3, "abc", false), (0, "", true)] {
        let read = fetched(b"HTTP/1.1 200 OK\r\n\r\nabc", 4096, most).await.unwrap();
        assert_eq!(read, Page { truncated, ..page(200, expected) });
    }
}
