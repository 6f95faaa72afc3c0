use std::net::IpAddr;

use proptest::prelude::*;
use sympozium_api::run_plan::{AllowedHosts, Destination, PartName};
use sympozium_plan::host::{AddressRange, Host};

use super::*;
use crate::settings::Loopback;

fn credential(name: &str, public: bool, hosts: &[&str]) -> GatewayCredential {
    let destination = |text: &&str| {
        let (host, port) = match text.split_once(' ') {
            Some((host, port)) => (host, Some(port.parse().unwrap())),
            None => (*text, None),
        };
        Destination { host: host.to_owned(), port }
    };
    GatewayCredential {
        name: name.to_owned(),
        part: PartName(format!("part-of-{name}")),
        reach: AllowedHosts { public, destinations: hosts.iter().map(destination).collect() },
    }
}

fn rules(public: bool, hosts: &[&str]) -> AllowList {
    AllowList::from_credential(&credential("c", public, hosts)).unwrap()
}

fn permitted(rules: &AllowList, host: &str, port: u16) -> Result<(String, AddressScope), Reason> {
    let host = Host::parse(host).unwrap();
    rules.check_target(&host, port).map(|matched| (matched.rule, matched.scope))
}

#[test]
fn hosts_and_ports_are_those_of_the_plan() {
    let listed =
        rules(false, &["api.example.com 443", "*.cdn.example.com", "10.0.0.7 5432", "db.team.svc", "localhost 11434"]);
    let yes = |rule: &str, scope| Ok((rule.to_owned(), scope));
    for (host, port, expected) in [
        ("api.example.com", 443, yes("api.example.com:443", AddressScope::Public)),
        ("API.example.com", 443, yes("api.example.com:443", AddressScope::Public)),
        ("api.example.com", 80, Err(Reason::NotInPlan)),
        ("x.api.example.com", 443, Err(Reason::NotInPlan)),
        ("a.b.cdn.example.com", 1, yes("*.cdn.example.com", AddressScope::Public)),
        ("cdn.example.com", 1, Err(Reason::NotInPlan)),
        ("10.0.0.7", 5432, yes("10.0.0.7:5432", AddressScope::Public)),
        ("10.0.0.8", 5432, Err(Reason::NotInPlan)),
        ("[::ffff:10.0.0.7]", 5432, Err(Reason::NotInPlan)),
        ("db.team.svc", 5432, yes("db.team.svc", AddressScope::Site)),
        ("localhost", 11434, yes("localhost:11434", AddressScope::Machine)),
        ("127.0.0.1", 11434, Err(Reason::NotInPlan)),
        ("8.8.8.8", 443, Err(Reason::NotInPlan)),
    ] {
        assert_eq!(permitted(&listed, host, port), expected, "{host}:{port}");
    }
}

#[test]
fn public_means_public_and_metadata_never_opens() {
    let public = rules(true, &["169.254.169.254", "metadata.google.internal", "*.internal"]);
    for (host, expected) in [
        ("example.org", Ok(("public".to_owned(), AddressScope::Public))),
        ("8.8.8.8", Ok(("public".to_owned(), AddressScope::Public))),
        ("10.0.0.1", Err(Reason::NotInPlan)),
        ("localhost", Err(Reason::NotInPlan)),
        ("intranet", Err(Reason::NotInPlan)),
        ("x.internal", Ok(("*.internal".to_owned(), AddressScope::Public))),
        ("169.254.169.254", Err(Reason::Metadata)),
        ("[::ffff:169.254.169.254]", Err(Reason::Metadata)),
        ("[fd00:ec2::254]", Err(Reason::Metadata)),
        ("metadata.google.internal", Err(Reason::Metadata)),
    ] {
        assert_eq!(permitted(&public, host, 80), expected, "{host}");
    }
}

#[test]
fn addresses_are_checked_whole_and_by_scope() {
    let list = rules(false, &["10.0.0.7 443", "git.example.com"]);
    let check = |scope, texts: &[&str], loopback| {
        let addresses: Vec<IpAddr> = texts.iter().map(|text| text.parse().unwrap()).collect();
        list.check_addresses(scope, 443, &addresses, loopback)
            .map_err(|(reason, address)| (reason, address.to_string()))
    };
    let no = |address: &str| Err((Reason::AddressNotAllowed, address.to_owned()));
    let refused = Loopback::Refused;
    assert_eq!(check(AddressScope::Public, &["8.8.8.8", "2606:4700::1"], refused), Ok(()));
    assert_eq!(check(AddressScope::Public, &["8.8.8.8", "10.0.0.8"], refused), no("10.0.0.8"));
    // A private address that the plan itself lists, at this port.
    assert_eq!(check(AddressScope::Public, &["10.0.0.7"], refused), Ok(()));
    assert_eq!(check(AddressScope::Site, &["10.0.0.8", "fd00::1", "100.64.0.1"], refused), Ok(()));
    for never in ["0.0.0.0", "224.0.0.1", "255.255.255.255", "240.0.0.1", "::", "ff02::1"] {
        for scope in [AddressScope::Public, AddressScope::Site, AddressScope::Machine] {
            assert_eq!(check(scope, &[never], Loopback::AsPlanned), no(never), "{never}");
        }
    }
    for metadata in ["169.254.169.254", "100.100.100.200", "fe80::1", "64:ff9b::a9fe:a9fe"] {
        let expected = Err((Reason::Metadata, metadata.to_owned()));
        assert_eq!(check(AddressScope::Site, &[metadata], refused), expected);
    }
    assert_eq!(check(AddressScope::Site, &["127.0.0.1"], Loopback::AsPlanned), no("127.0.0.1"));
    assert_eq!(check(AddressScope::Machine, &["127.0.0.1", "::1"], Loopback::AsPlanned), Ok(()));
    assert_eq!(check(AddressScope::Machine, &["127.0.0.1"], refused), no("127.0.0.1"));
    assert_eq!(check(AddressScope::Machine, &["10.0.0.8"], Loopback::AsPlanned), no("10.0.0.8"));
}

#[test]
fn a_run_that_is_over_stays_over() {
    let plans = Plans::default();
    let web = [credential("web", true, &[])];
    let reason = |run: &str, name: &str| plans.find_credential(run, name).err();
    assert_eq!(reason("r1", "web"), Some(Reason::RunUnknown));
    assert_eq!(plans.add_credentials("r1", &web), Ok(()));
    assert_eq!(plans.add_credentials("r1", &web), Ok(()));
    assert_eq!(reason("r1", "web"), None);
    assert_eq!(reason("r1", "model"), Some(Reason::CredentialNotPlanned));
    let other = [credential("web", true, &["a.example"])];
    assert_eq!(plans.add_credentials("r1", &other), Err(PlanError::Changed("r1".into())));
    let holder = plans.find_credential("r1", "web").unwrap();
    assert!(!holder.has_ended());
    assert!(plans.end("r1") && holder.has_ended());
    assert!(!plans.end("r1"));
    assert_eq!(reason("r1", "web"), Some(Reason::RunOver));
    assert_eq!(plans.add_credentials("r1", &web), Err(PlanError::Ended("r1".into())));
    // Also a run that ended before it was known.
    assert!(!plans.end("r2"));
    assert_eq!(plans.add_credentials("r2", &web), Err(PlanError::Ended("r2".into())));
}

#[test]
fn plans_that_cannot_be_held_to_are_refused() {
    let plans = Plans::default();
    let add = |credentials: &[GatewayCredential]| plans.add_credentials("r", credentials);
    let twice = [credential("a", false, &[]), credential("a", true, &[])];
    assert_eq!(add(&twice), Err(PlanError::DuplicateCredential("a".into())));
    let many: Vec<String> = (0..=MAX_RULES).map(|number| format!("h{number}.example")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(add(&[credential("a", false, &many)]), Err(PlanError::TooManyRules("a".into())));
    for host in ["127.1", "*", "a/b", "fe80::1%eth0", "0x7f000001"] {
        let refused = add(&[credential("a", false, &[host])]);
        assert!(matches!(refused, Err(PlanError::Destination { .. })), "{host}: {refused:?}");
    }
    assert_eq!(plans.active_uids(), Vec::<String>::new());
}

#[test]
fn a_directory_is_read_whatever_lies_in_it() {
    const PLAN: &str = include_str!("../../../plan/src/plan/tests/fixtures/plan-v1.json");
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let plans = Plans::default();
    assert!(load_directory(&plans, &at("none")).is_err());
    std::fs::write(at("good.json"), PLAN).unwrap();
    std::fs::write(at("half.json"), &PLAN[..100]).unwrap();
    std::fs::write(at("large.json"), " ".repeat(600 << 10)).unwrap();
    std::fs::write(at("changed.json"), PLAN.replace("tickets.example.com", "other.example.com")).unwrap();
    std::fs::write(at("notes.txt"), "not a plan").unwrap();
    std::fs::create_dir(at("directory.json")).unwrap();
    // A FIFO without a writer.
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe.json"), kind, mode, 0).unwrap();
    let loaded = load_directory(&plans, directory.path()).unwrap();
    assert_eq!((loaded.active, loaded.ended), (1, Vec::<String>::new()));
    let unusable = loaded.invalid.iter();
    let unusable: Vec<_> = unusable.filter_map(|(path, _)| path.file_name()?.to_str()).collect();
    // The first file by name is the plan; another one for the same run is refused.
    assert_eq!(unusable, ["directory.json", "good.json", "half.json", "large.json", "pipe.json"]);
    let active = plans.active_uids();
    std::fs::remove_file(at("changed.json")).unwrap();
    let loaded = load_directory(&plans, directory.path()).unwrap();
    assert_eq!((loaded.active, loaded.ended), (0, active));
}

proptest! {
    #[test]
    fn no_list_without_private_hosts_opens_a_private_address(
        public: bool,
        hosts in prop::collection::vec(prop_oneof![Just("*.example.com"), Just("a.example.com 443"), Just("*.internal"), Just("8.8.8.8")], 0..4),
        bits: u128, v4: u32, either: bool,
    ) {
        let rules = rules(public, &hosts);
        let address: IpAddr = if either { std::net::Ipv4Addr::from_bits(v4).into() } else { std::net::Ipv6Addr::from_bits(bits).into() };
        let checked = rules.check_addresses(AddressScope::Public, 443, &[address], Loopback::AsPlanned);
        prop_assert_eq!(checked.is_ok(), AddressRange::from_address(address) == AddressRange::Public);
    }
}
