use proptest::prelude::*;

use super::*;

fn ring() -> KeyRing {
    KeyRing::single("k1", [7; KEY_BYTES]).unwrap()
}

fn claims() -> Claims {
    Claims { run: "0b9d2f1e-6f1c-4c57-9d0a-5a3a0f9f2a11".into(), name: "skill-k8s.ops".into(), expires: 2_000_000_000 }
}

#[test]
fn what_was_signed_is_verified_until_it_expires() {
    let signed = ring().sign(&claims()).unwrap();
    assert_eq!(signed.user, "k1.0b9d2f1e-6f1c-4c57-9d0a-5a3a0f9f2a11.skill-k8s.ops.2000000000");
    let verify = |now| ring().verify(&signed.user, &signed.password, now);
    assert_eq!(verify(0), Ok(claims()));
    assert_eq!(verify(1_999_999_999), Ok(claims()));
    assert_eq!(verify(2_000_000_000), Err(CredentialError::Expired));
    assert_eq!(verify(u64::MAX), Err(CredentialError::Expired));
}

#[test]
fn the_code_is_hmac_sha256_of_the_fields_with_their_lengths() {
    // Computed independently, with Python's hmac module.
    let signed = ring().sign(&claims()).unwrap();
    assert_eq!(*signed.password, include_str!("expected-code.txt").trim());
}

#[test]
fn every_changed_bit_of_name_or_password_is_noticed() {
    let signed = ring().sign(&claims()).unwrap();
    let flipped = |text: &str| -> Vec<String> {
        let bits = (0..text.len()).flat_map(|at| (0..8).map(move |bit| (at, bit)));
        let texts = bits.filter_map(|(at, bit)| {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] ^= 1 << bit;
            String::from_utf8(bytes).ok()
        });
        texts.collect()
    };
    for user in flipped(&signed.user) {
        ring().verify(&user, &signed.password, 0).unwrap_err();
    }
    for password in flipped(&signed.password) {
        assert_eq!(ring().verify(&signed.user, &password, 0), Err(CredentialError::Forged));
    }
}

#[test]
fn a_code_is_good_for_its_own_claims_and_key_only() {
    let signed = ring().sign(&claims()).unwrap();
    let others = [
        "k1.0b9d2f1e-6f1c-4c57-9d0a-5a3a0f9f2a12.skill-k8s.ops.2000000000",
        "k1.0b9d2f1e-6f1c-4c57-9d0a-5a3a0f9f2a11.skill-k8s.2000000000",
        "k1.0b9d2f1e-6f1c-4c57-9d0a-5a3a0f9f2a11.model.2000000000",
        "k1.0b9d2f1e-6f1c-4c57-9d0a-5a3a0f9f2a11.skill-k8s.ops.2000000001",
    ];
    for user in others {
        assert_eq!(ring().verify(user, &signed.password, 0), Err(CredentialError::Forged));
    }
    let other_key = KeyRing::single("k1", [8; KEY_BYTES]).unwrap();
    assert_eq!(other_key.verify(&signed.user, &signed.password, 0), Err(CredentialError::Forged));
    let other_id = KeyRing::single("k2", [7; KEY_BYTES]).unwrap();
    assert_eq!(other_id.verify(&signed.user, &signed.password, 0), Err(CredentialError::UnknownKey));
}

#[test]
fn keys_are_rotated_without_a_gap() {
    let old = format!("old {}\n", "07".repeat(32));
    let new = format!("# since today\nnew {}\n", "0a".repeat(32));
    let before = KeyRing::parse(&old).unwrap();
    let between = KeyRing::parse(&format!("{new}\n{old}")).unwrap();
    let after = KeyRing::parse(&new).unwrap();
    let first = before.sign(&claims()).unwrap();
    let second = between.sign(&claims()).unwrap();
    assert!(second.user.starts_with("new."));
    let good = |ring: &KeyRing, credential: &Credential| ring.verify(&credential.user, &credential.password, 0).is_ok();
    let all = [&before, &between, &after].map(|ring| (good(ring, &first), good(ring, &second)));
    assert_eq!(all, [(true, false), (true, true), (false, true)]);
}

#[test]
fn keys_that_cannot_be_used_are_refused_without_repeating_them() {
    let key = "ab".repeat(32);
    for (text, error) in [
        (String::new(), KeyRingError::NoKey),
        ("# nothing\n".into(), KeyRingError::NoKey),
        (key.clone(), KeyRingError::InvalidLine(1)),
        (format!("k1 {key}0"), KeyRingError::InvalidLine(1)),
        (format!("k1 {key}\nK2 {key}"), KeyRingError::InvalidLine(2)),
        (format!("k.1 {key}"), KeyRingError::InvalidLine(1)),
        (format!("k1 {}", "zz".repeat(32)), KeyRingError::InvalidLine(1)),
        (format!("k1 {key}\n\nk1 {key}"), KeyRingError::DuplicateId(3)),
        ("#".repeat(16 * 1024 + 1), KeyRingError::TooLong),
        ((0..9).map(|number| format!("k{number} {key}\n")).collect(), KeyRingError::TooMany),
    ] {
        let found = KeyRing::parse(&text).unwrap_err();
        assert_eq!(found, error);
        assert!(!found.to_string().contains(&key));
    }
    assert_eq!(format!("{:?}", ring()), r#"["k1"]"#);
}

#[test]
fn secrets_are_not_printed() {
    let signed = ring().sign(&claims()).unwrap();
    assert!(!format!("{signed:?}").contains(signed.password.as_str()));
    let url = signed.proxy_url("127.0.0.1:3128");
    assert_eq!(*url, format!("http://{}:{}@127.0.0.1:3128", signed.user, *signed.password));
}

#[test]
fn claims_that_do_not_fit_are_not_signed() {
    let with = |run: &str, name: &str, expires| {
        let claims = Claims { run: run.into(), name: name.into(), expires };
        ring().sign(&claims).map(|_| ())
    };
    assert_eq!(with("a", "b", 99_999_999_999), Ok(()));
    assert_eq!(with("a", "b", 100_000_000_000), Err(ClaimsError::Expiry));
    assert_eq!(with("a.b", "b", 1), Err(ClaimsError::Run));
    assert_eq!(with("", "b", 1), Err(ClaimsError::Run));
    assert_eq!(with(&"a".repeat(65), "b", 1), Err(ClaimsError::Run));
    assert_eq!(with("a", "b:c", 1), Err(ClaimsError::Name));
    assert_eq!(with("a", &"b".repeat(273), 1), Err(ClaimsError::Name));
    let longest = Claims { run: "a".repeat(MAX_RUN_BYTES), name: "b".repeat(MAX_NAME_BYTES), expires: 99_999_999_999 };
    let ring = KeyRing::single(&"k".repeat(MAX_KEY_ID_BYTES), [1; KEY_BYTES]).unwrap();
    let signed = ring.sign(&longest).unwrap();
    assert_eq!(signed.user.len(), MAX_USER_BYTES);
    assert_eq!(ring.verify(&signed.user, &signed.password, 0), Ok(longest));
}

#[test]
fn malformed_names_are_refused_before_anything_is_computed() {
    let password = "0".repeat(PASSWORD_BYTES);
    let long = format!("k1.a.{}.1", "b".repeat(MAX_USER_BYTES));
    for user in [
        "",
        ".",
        "...",
        "k1",
        "k1.a.b",
        "k1.a.b.",
        "k1.a.b.01",
        "k1.a.b.-1",
        "k1.a.b.1x",
        ".a.b.1",
        "k1..b.1",
        "k1.a..1",
        "K1.a.b.1",
        "k1.a.b c.1",
        "k1.ä.b.1",
        "k1.a.b.111111111111",
        &long,
    ] {
        assert_eq!(ring().verify(user, &password, 0), Err(CredentialError::Malformed), "{user:?}");
    }
    for password in ["", "0", &"0".repeat(63), &"0".repeat(65)] {
        let refused = ring().verify("k1.a.b.1", password, 0);
        assert_eq!(refused, Err(CredentialError::Malformed));
    }
}

proptest! {
    #[test]
    fn claims_survive_the_way_and_no_other_claims_fit(
        run in "[a-z0-9-]{1,8}", name in "[a-z.-]{1,8}", expires in 1_u64..1000,
        other_run in "[a-z0-9-]{1,8}", other_name in "[a-z.-]{1,8}", other_expires in 1_u64..1000,
    ) {
        let one = Claims { run, name, expires };
        let other = Claims { run: other_run, name: other_name, expires: other_expires };
        let signed = ring().sign(&one)?;
        prop_assert_eq!(ring().verify(&signed.user, &signed.password, 0), Ok(one.clone()));
        let forged = ring().sign(&other)?.user;
        let verified = ring().verify(&forged, &signed.password, 0);
        prop_assert_eq!(verified.is_ok(), one == other);
    }
}
