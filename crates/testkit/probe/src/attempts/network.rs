//! Ways out over a socket.
//!
//! The probe sends to addresses that the test names, and those are on this machine. Whether the outside *could* be
//! reached is asked of the routing table, by connecting a datagram socket, which sends nothing.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram, UnixListener, UnixStream};
use std::time::Duration;

use crate::attempt::{Attempt, Input, Verdict, plain, with, with_default};
use crate::sys::{self, Arg, Errno, call};

pub const ATTEMPTS: &[Attempt] = &[
    with("tcp-connect", "ADDRESS:PORT", "connect to a TCP port", tcp_connect),
    with("tcp-connect-by-send", "ADDRESS:PORT", "connect to a TCP port by sending (TCP Fast Open)", |input| {
        connect_by(input, 0, Connecting::Send)
    }),
    with("tcp-connect-by-mptcp", "ADDRESS:PORT", "connect to a TCP port by Multipath TCP", |input| {
        connect_by(input, libc::IPPROTO_MPTCP, Connecting::Connect)
    }),
    with("udp-send", "ADDRESS:PORT", "send a datagram", udp_send),
    with_default("bind-tcp", "[PORT]", "0", "listen on a TCP port", |input| {
        let bound = TcpListener::bind(("127.0.0.1", input.number() as u16));
        Verdict::of(bound, "listening")
    }),
    with_default("bind-udp", "[PORT]", "0", "receive datagrams", |input| {
        Verdict::of(UdpSocket::bind(("127.0.0.1", input.number() as u16)), "bound")
    }),
    with("abstract-connect", "NAME", "talk to a service behind an abstract socket", abstract_connect),
    with("abstract-send", "NAME", "send a datagram to an abstract socket", abstract_send),
    plain("abstract-bind", "offer an abstract socket to others", |_| {
        let name = format!("probe-{}", std::process::id());
        Verdict::of(UnixAddress::from_abstract_name(name).and_then(|name| UnixListener::bind_addr(&name)), "bound")
    }),
    plain("route-outside", "reach the outside over IPv4 (route only, nothing is sent)", |_| route("192.0.2.1:9")),
    plain("route-outside-ipv6", "reach the outside over IPv6 (route only, nothing is sent)", |_| {
        route("[2001:db8::1]:9")
    }),
    plain("metadata-service", "reach the cloud's credential service (route only, nothing is sent)", |_| {
        route("169.254.169.254:80")
    }),
    plain("see-interfaces", "see a network interface other than loopback", |_| interfaces()),
    plain("tcp-socket", "make an IPv4 TCP socket", |_| socket(libc::AF_INET, libc::SOCK_STREAM, 0)),
    plain("udp-socket", "make an IPv4 UDP socket", |_| socket(libc::AF_INET, libc::SOCK_DGRAM, 0)),
    plain("ipv6-socket", "make an IPv6 TCP socket", |_| socket(libc::AF_INET6, libc::SOCK_STREAM, 0)),
    plain("mptcp-socket", "make a multipath TCP socket", |_| {
        socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP)
    }),
    plain("sctp-socket", "make an SCTP socket", |_| socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP)),
    plain("raw-socket", "make a raw IPv4 socket", |_| socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW)),
    plain("raw-ipv6-socket", "make a raw IPv6 socket", |_| socket(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_RAW)),
    plain("icmp-socket", "make a ping socket", |_| socket(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP)),
    plain("packet-socket", "make a packet socket (sniff the wire)", |_| {
        socket(libc::AF_PACKET, libc::SOCK_RAW, i32::from(3_u16.to_be()))
    }),
    plain("netlink-socket", "make a netlink socket", |_| socket(libc::AF_NETLINK, libc::SOCK_RAW, 0)),
    plain("netlink-audit-socket", "make a netlink audit socket", |_| socket(libc::AF_NETLINK, libc::SOCK_RAW, 9)),
    plain("vsock-socket", "make a socket to the hypervisor (vsock)", |_| socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)),
    plain("alg-socket", "make a kernel crypto socket", |_| socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)),
    plain("bluetooth-socket", "make a Bluetooth socket", |_| socket(libc::AF_BLUETOOTH, libc::SOCK_RAW, 1)),
    plain("tipc-socket", "make a TIPC socket", |_| socket(libc::AF_TIPC, libc::SOCK_SEQPACKET, 0)),
    plain("can-socket", "make a CAN socket", |_| socket(libc::AF_CAN, libc::SOCK_RAW, 1)),
    plain("key-socket", "make an IPsec key socket", |_| socket(libc::AF_KEY, libc::SOCK_RAW, 2)),
    plain("rds-socket", "make an RDS socket", |_| socket(libc::AF_RDS, libc::SOCK_SEQPACKET, 0)),
    plain("kcm-socket", "make a KCM socket", |_| socket(41, libc::SOCK_SEQPACKET, 0)),
    plain("smc-socket", "make an SMC socket", |_| socket(43, libc::SOCK_STREAM, 0)),
    plain("xdp-socket", "make an XDP socket", |_| socket(libc::AF_XDP, libc::SOCK_RAW, 0)),
    plain("unix-socket", "make a Unix socket", |_| socket(libc::AF_UNIX, libc::SOCK_STREAM, 0)),
    plain("unix-socket-pair", "make a pair of Unix sockets", |_| Verdict::of(UnixStream::pair(), "made a pair")),
    with("socket-family", "NUMBER", "make a socket of some family", |input| {
        socket(input.number() as i32, libc::SOCK_RAW, 0)
    }),
];

fn socket(family: i32, kind: i32, protocol: i32) -> Verdict {
    let made = sys::call(
        libc::SYS_socket,
        [Arg::Int(family.into()), Arg::Int((kind | libc::SOCK_CLOEXEC).into()), Arg::Int(protocol.into())],
    );
    Verdict::of(made.map(sys::owned), "made one")
}

fn tcp_connect(input: &Input<'_>) -> Verdict {
    let Ok(address) = input.argument.parse::<SocketAddr>() else {
        return Verdict::Refused(format!("`{}` is no address", input.argument));
    };
    Verdict::of(TcpStream::connect_timeout(&address, Duration::from_secs(3)), "connected")
}

#[derive(Clone, Copy)]
enum Connecting {
    Connect,
    Send,
}

fn connect_by(input: &Input<'_>, protocol: i32, how: Connecting) -> Verdict {
    let Ok(SocketAddr::V4(address)) = input.argument.parse::<SocketAddr>() else {
        return Verdict::Refused(format!("`{}` is no IPv4 address", input.argument));
    };
    // struct sockaddr_in: family, port, address, padding.
    let mut raw = [0; 16];
    raw[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    raw[2..4].copy_from_slice(&address.port().to_be_bytes());
    raw[4..8].copy_from_slice(&address.ip().octets());
    let connected = call(
        libc::SYS_socket,
        [Arg::Int(libc::AF_INET.into()), Arg::Int(libc::SOCK_STREAM.into()), Arg::Int(protocol.into())],
    )
    .and_then(|socket| {
        let socket = sys::owned(socket);
        let fd = Arg::Int(socket.as_raw_fd().into());
        let length = Arg::Int(raw.len() as i64);
        match how {
            Connecting::Connect => call(libc::SYS_connect, [fd, Arg::In(&raw), length]),
            Connecting::Send => call(
                libc::SYS_sendto,
                [fd, Arg::In(b"x"), Arg::Int(1), Arg::Int(libc::MSG_FASTOPEN.into()), Arg::In(&raw), length],
            ),
        }
    });
    Verdict::of(connected, "connected")
}

fn udp_send(input: &Input<'_>) -> Verdict {
    let any = if input.argument.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let sent = UdpSocket::bind(any).and_then(|socket| socket.send_to(b"probe", input.argument));
    Verdict::of(sent, "sent")
}

fn route(address: &str) -> Verdict {
    let any = if address.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let routed = UdpSocket::bind(any).and_then(|socket| socket.connect(address));
    Verdict::of(routed, "there is a route")
}

fn abstract_connect(input: &Input<'_>) -> Verdict {
    let connected = UnixAddress::from_abstract_name(input.argument).and_then(|name| UnixStream::connect_addr(&name));
    Verdict::of(connected, "connected")
}

fn abstract_send(input: &Input<'_>) -> Verdict {
    let sent = UnixAddress::from_abstract_name(input.argument)
        .and_then(|name| UnixDatagram::unbound()?.send_to_addr(b"probe", &name));
    Verdict::of(sent, "sent")
}

/// Asked by ioctl over a Unix socket: works without /proc, /sys and netlink.
fn interfaces() -> Verdict {
    let socket = match UnixDatagram::unbound() {
        Ok(socket) => socket,
        Err(error) => return Verdict::Refused(Errno::from(error).to_string()),
    };
    let mut names = Vec::new();
    for index in 1_i32..=64 {
        // struct ifreq: sixteen bytes of name, then a union that begins with the index.
        let mut request = [0_u8; 40];
        request[16..20].copy_from_slice(&index.to_ne_bytes());
        let asked = sys::call(
            libc::SYS_ioctl,
            [Arg::Int(socket.as_raw_fd().into()), Arg::Int(libc::SIOCGIFNAME as i64), Arg::Out(&mut request)],
        );
        if asked.is_ok() {
            let name: Vec<u8> = request[..16].iter().copied().take_while(|&byte| byte != 0).collect();
            names.push(String::from_utf8_lossy(&name).into_owned());
        }
    }
    let others = names.iter().any(|name| name != "lo");
    Verdict::from_condition(others, format!("interfaces: {}", names.join(", ")))
}
