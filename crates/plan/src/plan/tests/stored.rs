//! Plans as earlier releases stored them. They never change: later releases read them, and serialise them to the same
//! bytes.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::value::Error;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde_json::{Value, json};
use sympozium_api::agent_run::{Cleanup, ParentRun, ResolvedObject, RunMode};
use sympozium_api::run_plan::*;
use sympozium_api::skill_pack::{HostAccess, InputMode};
use sympozium_api::{Guarantee, RunPlan};

/// Of an ordinary run, of one that has everything that a plan of the first release can have, of one with its own kernel,
/// of one whose gate is open without a verdict, and of one whose provider differs from its wire format.
pub const STORED: [&[u8]; 5] = [
    include_bytes!("fixtures/plan-v1.json"),
    include_bytes!("fixtures/plan-v1-everything.json"),
    include_bytes!("fixtures/plan-v1-kernel.json"),
    include_bytes!("fixtures/plan-v1-gated.json"),
    include_bytes!("fixtures/plan-v1-key-header.json"),
];

#[test]
fn plans_of_an_earlier_release_are_read() {
    let names = ["why-is-checkout-slow", "everything", "own-kernel", "gated", "a-key-in-another-header"];
    for (stored, name) in STORED.iter().zip(names) {
        let plan = RunPlan::read(stored).expect("a plan");
        assert_eq!(plan.run.name, name);
        assert_eq!(plan.to_bytes().expect("JSON"), *stored);
    }
}

/// A field or a variant that is in no stored plan could be renamed without a failing test.
#[test]
fn the_stored_plans_have_every_field_and_every_variant() {
    let stored: Vec<Value> = STORED.iter().map(|stored| serde_json::from_slice(stored).expect("JSON")).collect();
    let structs = [
        ("", fields::<RunPlan>()),
        ("run", fields::<RunIdentity>()),
        ("run/parent", fields::<ParentRun>()),
        ("resolved/*", fields::<ResolvedObject>()),
        ("task", fields::<TaskPlan>()),
        ("model", fields::<ModelPlan>()),
        ("model/endpoint", fields::<ModelEndpoint>()),
        ("model/keys/*", fields::<ModelKey>()),
        ("isolation", fields::<IsolationPlan>()),
        ("isolation/kernel", fields::<KernelPlan>()),
        ("parts/*", fields::<Part>()),
        ("parts/*/amounts", fields::<ResourcesPlan>()),
        ("parts/*/mounts/*", fields::<Mount>()),
        ("parts/*/hostAccess", fields::<HostAccess>()),
        ("volumes/*", fields::<PlanVolume>()),
        ("identities/*", fields::<Identity>()),
        ("credentials/*", fields::<GatewayCredential>()),
        ("credentials/*/reach", fields::<AllowedHosts>()),
        ("credentials/*/reach/destinations/*", fields::<Destination>()),
        ("tools/*", fields::<ToolPlan>()),
        ("tools/*/limits", fields::<ToolLimits>()),
        ("skills/*", fields::<SkillPlan>()),
        ("skills/*/files/*", fields::<SkillFilePlan>()),
        ("approval", fields::<ApprovalPlan>()),
        ("subagents", fields::<SubagentPlan>()),
        ("limits", fields::<RunLimits>()),
        ("deadlines", fields::<Deadlines>()),
        ("placement", fields::<PlacementPlan>()),
        // The fields of variants, which cannot be obtained from their types.
        ("workload", names(&["kind", "warmPool"])),
        ("parts/*/start", names(&["kind", "command", "args", "executor"])),
        ("parts/*/role", names(&["kind", "pack", "hook", "gate", "gateDefault"])),
        ("tools/*/acts", names(&["by", "part", "exec", "inputMode", "positionalArgs"])),
    ];
    for (place, expected) in structs {
        let found = at(&stored, place);
        let found = found.iter().filter_map(|value| value.as_object());
        let found: BTreeSet<String> = found.flat_map(|key| key.keys().cloned()).collect();
        assert_eq!(found, expected, "fields of `{place}`");
    }
    let enums = [
        ("parts/*/role/kind", variants::<Role>(Some("kind"))),
        ("parts/*/start/kind", variants::<Start>(Some("kind"))),
        ("volumes/*/source/kind", variants::<VolumeSource>(Some("kind"))),
        ("volumes/*/source/medium", variants::<Medium>(None)),
        ("parts/*/mounts/*/recursiveReadOnly", variants::<RecursiveReadOnly>(None)),
        ("workload/kind", variants::<Workload>(Some("kind"))),
        ("skills/*/source/kind", variants::<SkillSource>(Some("kind"))),
        ("tools/*/acts/by", variants::<ToolHandler>(Some("by"))),
        ("tools/*/acts/inputMode", variants::<InputMode>(None)),
        ("tools/*/gate", variants::<Gate>(None)),
        ("model/wire", variants::<WireFormat>(None)),
        ("task/mode", variants::<RunMode>(None)),
        ("cleanup", variants::<Cleanup>(None)),
        ("isolation/floor/*", variants::<Guarantee>(None)),
    ];
    for (place, expected) in enums {
        let found = at(&stored, place);
        let found = found.iter().filter_map(|value| value.as_str());
        let found: BTreeSet<String> = found.map(str::to_owned).collect();
        assert_eq!(found, expected, "variants of `{place}`");
    }
}

/// Every value at a path, with `*` for each member of a list.
fn at<'v>(values: &'v [Value], place: &str) -> Vec<&'v Value> {
    let mut found: Vec<&Value> = values.iter().collect();
    for step in place.split('/').filter(|part| !part.is_empty()) {
        found = match step {
            "*" => found.iter().filter_map(|value| value.as_array()).flatten().collect(),
            key => found.iter().filter_map(|value| value.get(key)).collect(),
        };
    }
    found
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The fields of a type, as it requests them from a deserialiser.
fn fields<T: DeserializeOwned>() -> BTreeSet<String> {
    struct Asked<'c>(&'c Cell<&'static [&'static str]>);

    impl<'de> Deserializer<'de> for Asked<'_> {
        type Error = Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(Error::custom("nothing is here"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Error> {
            self.0.set(fields);
            self.deserialize_any(visitor)
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let asked = Cell::new(&[][..]);
    assert!(T::deserialize(Asked(&asked)).is_err());
    names(asked.get())
}

/// The variants of a type, as it names them in the error for an unknown one.
fn variants<T: DeserializeOwned + fmt::Debug>(tag: Option<&str>) -> BTreeSet<String> {
    let other = match tag {
        Some(tag) => json!({ tag: "another" }),
        None => json!("another"),
    };
    let error = T::deserialize(other).expect_err("there is no such variant");
    let error = error.to_string();
    let (_, known) = error.split_once("expected").expect("a list");
    let known = known.split('`').skip(1).step_by(2);
    known.map(str::to_owned).collect()
}
