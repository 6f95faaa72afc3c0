use proptest::prelude::*;

use super::*;

fn full(text: &str) -> String {
    match Image::parse(text) {
        Ok(image) => image.to_string(),
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn references_in_full() {
    let sum = "0123456789abcdef".repeat(4);
    for (text, expected) in [
        ("alpine", "docker.io/library/alpine"),
        ("alpine:3.20", "docker.io/library/alpine:3.20"),
        ("library/alpine", "docker.io/library/alpine"),
        ("docker.io/alpine", "docker.io/library/alpine"),
        ("docker.io/library/alpine", "docker.io/library/alpine"),
        ("index.docker.io/alpine", "docker.io/library/alpine"),
        ("index.docker.io/org/x", "docker.io/org/x"),
        ("org/x", "docker.io/org/x"),
        ("ghcr.io/org/x:v1", "ghcr.io/org/x:v1"),
        ("ghcr.io/org/a/b/c", "ghcr.io/org/a/b/c"),
        ("localhost/x", "localhost/x"),
        ("localhost:5000/x:latest", "localhost:5000/x:latest"),
        ("registry:5000/x", "registry:5000/x"),
        ("10.0.0.1:5000/x", "10.0.0.1:5000/x"),
        ("[::1]:5000/x", "[::1]:5000/x"),
        ("[0:0:0:0:0:0:0:1]/x:v1", "[::1]/x:v1"),
        ("a__b/c-----d/e.f:_T-A.g", "docker.io/a__b/c-----d/e.f:_T-A.g"),
        ("ghcr.io.evil.example/org/x", "ghcr.io.evil.example/org/x"),
        ("x.yz/r", "x.yz/r"),
        ("docker.io:443/alpine", "docker.io:443/alpine"),
    ] {
        assert_eq!(full(text), expected, "{text}");
    }
    let pinned = format!("ghcr.io/org/x:v1@sha256:{sum}");
    assert_eq!(full(&pinned), pinned);
}

#[test]
fn what_is_no_reference() {
    let long = "a/".repeat(140);
    for (text, expected) in [
        ("", "it is empty"),
        ("Alpine", "it has upper case letters"),
        ("GHCR.io/org/x", "it has upper case letters"),
        ("ghcr.io./x", "`ghcr.io.` is not a registry's host"),
        ("ghcr..io/x", "`ghcr..io` is not a registry's host"),
        ("-ghcr.io/x", "`-ghcr.io` is not a registry's host"),
        ("ghcr.io:/x", "`ghcr.io:` is not a registry's host"),
        ("ghcr.io:05000/x", "`ghcr.io:05000` is not a registry's host"),
        ("ghcr.io:65536/x", "`ghcr.io:65536` is not a registry's host"),
        ("ghcr.io:+1/x", "`ghcr.io:+1` is not a registry's host"),
        ("[::1/x", "`[::1` is not a registry's host"),
        ("[::1]x/y", "`[::1]x` is not a registry's host"),
        ("gһcr.io/x", "`gһcr.io` is not a registry's host"),
        ("https://ghcr.io/x", "`https:` is not a registry's host"),
        ("alpine:", "`` is not a tag"),
        ("alpine:-x", "`-x` is not a tag"),
        (
            "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "64 hexadecimal digits are an identifier on one node, not a reference",
        ),
        ("alpine@sha256:abc", "`sha256:abc` is not a digest such as `sha256:` and 64 hexadecimal digits"),
        ("ghcr.io@evil.example/x", "`evil.example/x` is not a digest such as `sha256:` and 64 hexadecimal digits"),
    ] {
        assert_eq!(full(text), format!("error: {expected}"), "{text}");
    }
    for component in ["", ".", "..", "a..b", "a___b", "-a", "a-", "a b", "a\n", "a%2fb", "*"] {
        let expected = InvalidImage::Component(component.to_owned());
        let text = format!("ghcr.io/{component}");
        assert_eq!(Image::parse(&text), Err(expected), "{text:?}");
    }
    assert_eq!(Image::parse(&format!("{long}a")), Err(InvalidImage::TooLong(MAX_NAME_BYTES)));
    assert_eq!(Image::parse(&"a".repeat(MAX_REFERENCE_BYTES + 1)), Err(InvalidImage::TooLong(MAX_REFERENCE_BYTES)));
    assert_eq!(
        Image::parse(&format!("a:{}", "t".repeat(MAX_TAG_BYTES))).map(|image| image.tag),
        Ok(Some("t".repeat(MAX_TAG_BYTES)))
    );
}

/// Found by fuzzing: nothing is below a name of the maximum length, so an entry for that is rejected by its length
/// alone.
#[test]
fn an_entry_may_be_as_long_as_a_name_and_no_longer() {
    let host = "registry.example/";
    let longest = format!("{host}{}", "a".repeat(MAX_NAME_BYTES - host.len()));
    let image = Image::parse(&longest).unwrap();
    assert!(RegistryPattern::parse(&longest).unwrap().allows(&image));
    for longer in [format!("{longest}/*"), format!("{longest}x")] {
        assert_eq!(
            RegistryPattern::parse(&longer),
            Err(InvalidRegistryPattern::Malformed(InvalidImage::TooLong(MAX_NAME_BYTES)))
        );
    }
}

#[test]
fn entries_allow_by_whole_components() {
    for (entry, image, allowed) in [
        ("ghcr.io", "ghcr.io/org/x", true),
        ("ghcr.io/", "ghcr.io/org/x", true),
        ("ghcr.io/*", "ghcr.io/org/x", true),
        ("ghcr.io", "ghcr.io.evil.example/org/x", false),
        ("ghcr.io", "ghcr.io:443/org/x", false),
        ("ghcr.io", "evil.example/ghcr.io/x", false),
        ("ghcr.io/acme", "ghcr.io/acme/x", true),
        ("ghcr.io/acme", "ghcr.io/acme/x/y:v1", true),
        ("ghcr.io/acme/", "ghcr.io/acme/x", true),
        ("ghcr.io/acme", "ghcr.io/acme-evil/x", false),
        ("ghcr.io/acme/x", "ghcr.io/acme/x:v1", true),
        ("ghcr.io/acme/x", "ghcr.io/acme/xy", false),
        ("ghcr.io/acme/*", "ghcr.io/acme/x", true),
        ("ghcr.io/acme/*", "ghcr.io/acme", false),
        ("docker.io/library/", "busybox", true),
        ("docker.io/library", "org/busybox", false),
        ("index.docker.io/library", "docker.io/library/busybox", true),
        ("docker.io", "registry-1.docker.io/library/x", false),
        ("localhost:5000", "localhost:5000/x", true),
        ("localhost:5000", "localhost/x", false),
        ("[::1]:5000", "[0:0::1]:5000/x", true),
    ] {
        let registry = RegistryPattern::parse(entry).expect("an entry");
        let image = Image::parse(image).expect("an image");
        assert_eq!(registry.allows(&image), allowed, "{entry} {image}");
    }
    for entry in
        ["", "*", "acme", "library/alpine", "*.io/x", "ghcr.io/*/x", "ghcr.io/Acme", "ghcr.io//x", "https://ghcr.io"]
    {
        assert!(RegistryPattern::parse(entry).is_err(), "{entry}");
    }
}

/// Texts that are often valid references.
fn reference() -> impl Strategy<Value = String> {
    (
        prop::option::of("(([a-z0-9-]{1,6}\\.){1,2}[a-z]{1,3}|localhost|\\[::1\\])(:[0-9]{1,5})?"),
        "[a-z0-9]{1,8}([._-]{1,2}[a-z0-9]{1,4})?(/[a-z0-9]{1,5}){0,3}",
        prop::option::of("[A-Za-z0-9_][A-Za-z0-9_.-]{0,8}"),
        prop::option::of("sha256:[0-9a-f]{64}"),
    )
        .prop_map(|(host, path, tag, digest)| {
            let host = host.map(|host| host + "/").unwrap_or_default();
            let tag = tag.map(|tag| format!(":{tag}")).unwrap_or_default();
            let digest = digest.map(|sum| format!("@{sum}")).unwrap_or_default();
            format!("{host}{path}{tag}{digest}")
        })
}

proptest! {
    #[test]
    fn the_full_form_means_the_same(text in prop_oneof![reference(), "\\PC{0,40}", any::<String>()]) {
        if let Ok(image) = Image::parse(&text) {
            prop_assert_eq!(Image::parse(&image.to_string()), Ok(image));
        }
    }

    #[test]
    fn an_entry_reads_back(text in prop_oneof![reference(), "\\PC{0,40}"]) {
        if let Ok(registry) = RegistryPattern::parse(&text) {
            prop_assert_eq!(RegistryPattern::parse(&registry.to_string()), Ok(registry));
        }
    }

    #[test]
    fn what_covers_allows_at_least_as_much(
        image in "(a\\.io|b\\.io)/[ab](/[ab]){0,2}",
        wide in "(a\\.io|b\\.io)(/[ab]){0,2}(/\\*)?",
        narrow in "(a\\.io|b\\.io)(/[ab]){0,2}(/\\*)?",
    ) {
        let image = Image::parse(&image)?;
        let (wide, narrow) = (RegistryPattern::parse(&wide)?, RegistryPattern::parse(&narrow)?);
        if wide.covers(&narrow) && narrow.allows(&image) {
            prop_assert!(wide.allows(&image));
        }
        if wide.covers(&narrow) && narrow.covers(&wide) {
            prop_assert_eq!(wide, narrow);
        }
    }
}
