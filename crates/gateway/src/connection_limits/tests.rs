use proptest::prelude::*;

use super::*;

const LIMITS: ConnectionLimits = ConnectionLimits { connections: 128, per_peer: 64, unauthenticated_per_peer: 4 };

fn address(last: u8) -> Option<IpAddr> {
    Some(IpAddr::from([10, 0, 0, last]))
}

/// As many connections without a credential as one address gets.
fn hold(admission: &Arc<ConnectionLimiter>, peer: Option<IpAddr>) -> Vec<ConnectionSlot> {
    std::iter::from_fn(|| admission.acquire(peer).ok()).collect()
}

/// As many connections as the runs of a namespace get, each from an address of its own.
fn flood(admission: &Arc<ConnectionLimiter>, namespace: &str, runs: u8) -> Vec<ConnectionSlot> {
    flood_from(100, admission, namespace, runs)
}

fn flood_from(first: u8, admission: &Arc<ConnectionLimiter>, namespace: &str, runs: u8) -> Vec<ConnectionSlot> {
    let mut held = Vec::new();
    for run in 0..runs {
        loop {
            let Ok(mut permit) = admission.acquire(address(first + run)) else {
                break;
            };
            if permit.authenticate(namespace, &run.to_string()).is_err() {
                break;
            }
            held.push(permit);
        }
    }
    held
}

#[test]
fn an_address_without_a_credential_has_few_connections() {
    let admission = ConnectionLimiter::new(LIMITS);
    let held = hold(&admission, address(1));
    assert_eq!(held.len(), 4);
    let mapped = "::ffff:10.0.0.1".parse().unwrap();
    assert_eq!(admission.acquire(Some(mapped)).map(drop), Err(Reason::UnauthenticatedOfPeer));
    // Another address has its own limit, and a closed connection makes room.
    assert_eq!(hold(&admission, address(2)).len(), 4);
    drop(held);
    assert_eq!(hold(&admission, address(1)).len(), 4);
    assert_eq!((admission.open(), admission.unauthenticated()), (0, 0));
    assert!(admission.state.lock().peers.is_empty());
}

#[test]
fn an_address_with_a_credential_has_more() {
    let admission = ConnectionLimiter::new(LIMITS);
    let mut bridge = admission.acquire(address(1)).unwrap();
    bridge.authenticate("team", "run").unwrap();
    let pending = hold(&admission, address(1));
    assert_eq!(pending.len(), 4 * KNOWN_PEER_FACTOR);
    drop(bridge);
    assert_eq!(admission.acquire(address(1)).map(drop), Err(Reason::UnauthenticatedOfPeer));
    drop(pending);
    assert_eq!(hold(&admission, address(1)).len(), 4);
}

#[test]
fn clients_without_a_credential_do_not_exhaust_the_limits_of_others() {
    let admission = ConnectionLimiter::new(LIMITS);
    let mut bridge = admission.acquire(address(1)).unwrap();
    bridge.authenticate("team", "run").unwrap();
    // A hundred addresses that hold as much as they can.
    let hostile: Vec<_> = (10..110).flat_map(|number| hold(&admission, address(number))).collect();
    assert_eq!(hostile.len(), LIMITS.connections / 2);
    assert_eq!(admission.acquire(address(200)).map(drop), Err(Reason::Unauthenticated));
    // A connected run can open further connections.
    for number in 0..16 {
        let mut permit = admission.acquire(address(1)).unwrap();
        assert_eq!(permit.authenticate("team", "run"), Ok(()), "{number}");
        drop(permit);
    }
    assert_eq!(admission.unauthenticated(), hostile.len());
}

#[test]
fn a_namespace_with_many_runs_leaves_room_for_others() {
    let admission = ConnectionLimiter::new(LIMITS);
    let greedy = flood(&admission, "greedy", 50);
    assert_eq!(greedy.len(), LIMITS.connections / 2);
    let mut one_more = admission.acquire(address(1)).unwrap();
    assert_eq!(one_more.authenticate("greedy", "another"), Err(Reason::ConnectionsOfNamespace));
    drop(one_more);
    let other = flood_from(200, &admission, "other", 1);
    assert!(other.len() >= LIMITS.connections / 8, "{}", other.len());
}

#[test]
fn a_run_leaves_room_for_others_of_its_namespace() {
    let admission = ConnectionLimiter::new(LIMITS);
    let greedy = flood(&admission, "team", 1);
    // A third: half of what its namespace could have together with it.
    assert_eq!(greedy.len(), LIMITS.connections.div_ceil(3));
    let mut one_more = admission.acquire(address(1)).unwrap();
    assert_eq!(one_more.authenticate("team", "0"), Err(Reason::ConnectionsOfRun));
    assert_eq!(one_more.authenticate("team", "1"), Ok(()));
}

/// Every pod of a namespace authenticates one connection and opens as many silent ones as it gets.
#[test]
fn silent_connections_of_known_addresses_are_charged_to_their_namespace() {
    let admission = ConnectionLimiter::new(LIMITS);
    let mut held = Vec::new();
    for pod in 100..150 {
        let mut bridge = admission.acquire(address(pod)).unwrap();
        if bridge.authenticate("greedy", &pod.to_string()).is_ok() {
            held.push(bridge);
            held.extend(hold(&admission, address(pod)));
        }
    }
    assert_eq!(held.len(), LIMITS.connections / 2);
    assert_eq!(admission.acquire(address(101)).map(drop), Err(Reason::ConnectionsOfNamespace));
    let mut other = admission.acquire(address(1)).unwrap();
    assert_eq!(other.authenticate("other", "run"), Ok(()));
    assert!(hold(&admission, address(1)).len() >= LIMITS.connections / 8);
}

#[test]
fn a_pending_connection_is_charged_once_and_to_the_run_it_shows() {
    let admission = ConnectionLimiter::new(LIMITS);
    let charged = |namespace: &str| admission.state.lock().shares.of_namespace(namespace);
    let mut bridge = admission.acquire(address(1)).unwrap();
    bridge.authenticate("a", "1").unwrap();
    let mut same = admission.acquire(address(1)).unwrap();
    let mut other = admission.acquire(address(1)).unwrap();
    assert_eq!((charged("a"), admission.unauthenticated()), (3, 2));
    assert_eq!(same.authenticate("a", "1"), Ok(()));
    assert_eq!((charged("a"), admission.unauthenticated()), (3, 1));
    assert_eq!(other.authenticate("b", "2"), Ok(()));
    assert_eq!((charged("a"), charged("b")), (2, 1));
    // The address belongs to the last run.
    let pending = admission.acquire(address(1)).unwrap();
    assert_eq!((charged("a"), charged("b")), (2, 2));
    // If no authenticated connection is left, the next one is anonymous.
    drop((bridge, same, other));
    assert_eq!((charged("a"), charged("b")), (0, 1));
    let stranger = admission.acquire(address(1)).unwrap();
    assert_eq!(stranger.state, SlotState::Anonymous);
    drop((pending, stranger));
    assert_eq!(admission.state.lock().shares.held(), 0);
}

#[test]
fn a_connection_is_the_run_s_that_it_last_showed() {
    let admission = ConnectionLimiter::new(LIMITS);
    let mut permit = admission.acquire(None).unwrap();
    for (namespace, run) in [("a", "1"), ("a", "1"), ("b", "2")] {
        assert_eq!(permit.authenticate(namespace, run), Ok(()));
        assert_eq!(admission.state.lock().shares.of_namespace(namespace), 1);
        assert_eq!((admission.open(), admission.unauthenticated()), (1, 0));
    }
    assert_eq!(admission.state.lock().shares.of_namespace("a"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_burst_waits_for_its_first_to_show_credentials() {
    let admission = ConnectionLimiter::new(LIMITS);
    let mut burst = hold(&admission, address(1));
    let patience = Duration::from_secs(1);
    let waiting = admission.acquire_within(address(1), patience);
    let (waited, ()) = tokio::join!(waiting, async {
        tokio::time::sleep(patience / 2).await;
        burst[0].authenticate("team", "run").unwrap();
    });
    assert!(waited.is_ok());
    // Connections without a credential are not waited for longer than that.
    let hostile = hold(&admission, address(2));
    let refused = admission.acquire_within(address(2), patience).await;
    assert_eq!(refused.map(drop), Err(Reason::UnauthenticatedOfPeer));
    drop(hostile);
}

#[derive(Debug, Clone)]
enum Act {
    Connect { peer: u8 },
    Show { which: usize, namespace: u8, run: u8 },
    Close { which: usize },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0..6_u8).prop_map(|peer| Act::Connect { peer }),
        2 => (any::<usize>(), 0..4_u8, 0..3_u8)
            .prop_map(|(which, namespace, run)| Act::Show { which, namespace, run }),
        1 => any::<usize>().prop_map(|which| Act::Close { which }),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_the_bounds_hold_and_everything_is_given_back(
        acts in proptest::collection::vec(act(), 0..400),
        connections in 1..64_usize,
    ) {
        let limits = ConnectionLimits { connections, per_peer: 24, unauthenticated_per_peer: 4 };
        let admission = ConnectionLimiter::new(limits);
        let mut held: Vec<ConnectionSlot> = Vec::new();
        for act in acts {
            match act {
                Act::Connect { peer } => {
                    let before = (admission.open(), admission.state.lock().anonymous);
                    let known = held.iter().any(|slot| {
                        slot.peer == address(peer) && matches!(slot.state, SlotState::Authenticated(_))
                    });
                    let of_peer = held.iter().filter(|slot| slot.peer == address(peer)).count();
                    let of_namespace = {
                        let state = admission.state.lock();
                        let known = address(peer).and_then(|address| state.peers.get(&address));
                        let charged = known.and_then(|peer| peer.charged_run.as_ref());
                        charged.map_or(0, |charged_run| state.shares.of_namespace(&charged_run.namespace))
                    };
                    match admission.acquire(address(peer)) {
                        Ok(permit) => {
                            let free = connections - before.0;
                            prop_assert!(known || before.1 < free.max(MINIMUM_SHARE));
                            held.push(permit);
                        }
                        // A known address below its own limit is refused only if everything is taken, or the share of
                        // its namespace.
                        Err(reason) if known && of_peer < 4 => match reason {
                            Reason::Connections => prop_assert_eq!(before.0, connections),
                            Reason::ConnectionsOfNamespace | Reason::ConnectionsOfRun => {
                                prop_assert!(of_namespace >= MINIMUM_SHARE, "{}", of_namespace);
                            }
                            other => prop_assert!(false, "{other:?}"),
                        },
                        Err(_) => {}
                    }
                }
                Act::Show { which, namespace, run } if !held.is_empty() => {
                    let index = which % held.len();
                    let namespace = namespace.to_string();
                    let before = admission.state.lock().shares.of_namespace(&namespace);
                    let shown = held[index].authenticate(&namespace, &run.to_string());
                    // A holder of next to nothing always gets something.
                    prop_assert!(shown.is_ok() || before >= MINIMUM_SHARE);
                }
                Act::Close { which } if !held.is_empty() => {
                    drop(held.swap_remove(which % held.len()));
                }
                Act::Show { .. } | Act::Close { .. } => {}
            }
            prop_assert!(admission.open() <= connections);
            prop_assert_eq!(admission.open(), held.len());
            let shown = |slot: &&ConnectionSlot| matches!(slot.state, SlotState::Authenticated(_));
            let authenticated = held.iter().filter(shown).count();
            prop_assert_eq!(admission.unauthenticated(), held.len() - authenticated);
            let strangers = held.iter().filter(|slot| slot.state == SlotState::Anonymous).count();
            prop_assert_eq!(admission.state.lock().shares.held(), held.len() - strangers);
            for peer in 0..6 {
                let of_peer = held.iter().filter(|slot| slot.peer == address(peer));
                prop_assert!(of_peer.count() <= limits.per_peer);
                let unknown = held.iter().filter(|slot| {
                    slot.peer == address(peer) && slot.state == SlotState::Anonymous
                });
                prop_assert!(unknown.count() <= limits.unauthenticated_per_peer);
            }
        }
        held.clear();
        let state = admission.state.lock();
        prop_assert_eq!((state.open, state.anonymous, state.authenticated, state.shares.held()), (0, 0, 0, 0));
        prop_assert!(state.peers.is_empty());
    }
}
