//! What goes in at one end of a tunnel comes out at the other, all of it and nothing else.

use sympozium_gateway::events::EventKind;
use sympozium_harness::plan::Public;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::dns::everybody;
use crate::harness::{Behavior, Catcher, NetworkHarness, read_all, run};

/// Bytes without a pattern that a wrong place of a buffer would keep.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(count).collect()
}

#[test]
fn much_comes_back_as_it_was_sent() {
    run(much_comes_back_as_it_was_sent, async || {
        let harness = NetworkHarness::new(Public::Closed, &["api.example.com 8080"], everybody).await;
        let _catcher = Catcher::at(8080, &Behavior::Echo);
        let tunnel = harness.tunnel("api.example.com:8080").await.expect("allowed");
        let sent = noise(8 << 20);
        let (mut reader, mut writer) = tunnel.into_split();
        let writing = {
            let sent = sent.clone();
            tokio::spawn(async move {
                writer.write_all(&sent).await.expect("it reads");
                writer.shutdown().await.expect("it can be closed");
                writer
            })
        };
        let mut back = Vec::new();
        reader.read_to_end(&mut back).await.expect("all of it");
        drop(writing.await.expect("it wrote"));
        assert!(back == sent, "{} of {} bytes", back.len(), sent.len());
        harness.wait_for("ended closed").await;
        let mut watcher = harness.gateway.events().subscribe(2);
        let ended = watcher.next().await.expect("it is kept");
        let EventKind::Ended { bytes_sent, bytes_received, .. } = ended.outcome else {
            panic!("{ended:?}");
        };
        assert_eq!((bytes_sent, bytes_received), (8 << 20, 8 << 20));
    });
}

#[test]
fn one_side_may_end_before_the_other() {
    run(one_side_may_end_before_the_other, async || {
        let harness = NetworkHarness::new(Public::Closed, &["api.example.com 8080"], everybody).await;
        let listener = TcpListener::bind("0.0.0.0:8080").await.expect("a listener");
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a tunnel");
            let heard = read_all(&mut stream).await;
            // The client has ended; the answer still gets there.
            stream.write_all(&heard.repeat(3)).await.expect("it reads");
        });
        let mut tunnel = harness.tunnel("api.example.com:8080").await.expect("allowed");
        tunnel.write_all(b"question ").await.expect("it reads");
        tunnel.shutdown().await.expect("it can be closed");
        assert_eq!(read_all(&mut tunnel).await, b"question question question ");
        server.await.expect("it answered");
    });
}

#[test]
fn a_server_that_breaks_off_is_noticed() {
    run(a_server_that_breaks_off_is_noticed, async || {
        let harness = NetworkHarness::new(Public::Closed, &["api.example.com 8080"], everybody).await;
        let listener = TcpListener::bind("0.0.0.0:8080").await.expect("a listener");
        let mut tunnel = harness.tunnel("api.example.com:8080").await.expect("allowed");
        let (mut server, _) = listener.accept().await.expect("a tunnel");
        tunnel.write_all(b"this is not read").await.expect("it reads");
        assert_eq!(server.read_u8().await.ok(), Some(b't'));
        // With unread bytes this is a reset.
        drop(server);
        assert_eq!(read_all(&mut tunnel).await, b"");
        harness.wait_for("ended broken").await;
    });
}
