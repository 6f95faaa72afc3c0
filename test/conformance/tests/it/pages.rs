//! Web pages for cases that fetch one: a real server on this machine, at an address that the backend reaches.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;

/// How long a client may take for one read or write.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pages, by path.
const PAGES: [(&str, &str, &str); 2] = [
    (
        "/tea.html",
        "text/html; charset=utf-8",
        "<!doctype html><html><head><title>Tea</title><style>p { color: red }</style>\
         <script>steal()</script></head><body><h1>Prices</h1>\
         <p>Tea is <b>2&nbsp;&euro;</b> &amp; cake is free.</p><ul><li>green</li><li>black</li></ul></body></html>",
    ),
    ("/tea.txt", "text/plain", "Tea is <b>not bold</b> here.\n"),
];

/// The server at this address of the machine, started by the first caller. It ends with this process.
///
/// # Errors
///
/// When nothing can listen there.
pub fn at(host: Ipv4Addr) -> anyhow::Result<SocketAddr> {
    static SERVERS: LazyLock<Mutex<HashMap<Ipv4Addr, SocketAddr>>> = LazyLock::new(Mutex::default);
    let mut servers = SERVERS.lock();
    if let Some(address) = servers.get(&host) {
        return Ok(*address);
    }
    let listener = TcpListener::bind((host, 0)).context("no server for pages")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            // A client that goes away is seen by its case.
            std::thread::spawn(move || drop(answer(&connection)));
        }
    });
    servers.insert(host, address);
    Ok(address)
}

/// Answers one request, of which only the path counts.
fn answer(connection: &TcpStream) -> anyhow::Result<()> {
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(connection).lines();
    let request = lines.next().context("no request")??;
    while lines.next().transpose()?.is_some_and(|it| !it.is_empty()) {}
    let path = request.split(' ').nth(1).unwrap_or_default();
    let page = PAGES.iter().find(|(at, ..)| *at == path);
    let (status, kind, body) = match page {
        Some((_, kind, body)) => ("200 OK", *kind, *body),
        None => ("404 Not Found", "text/plain", "no such page\n"),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    let mut connection = connection;
    connection.write_all(head.as_bytes())?;
    connection.write_all(body.as_bytes())?;
    Ok(())
}
