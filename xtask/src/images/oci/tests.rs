//! Archives read back with nothing but a tar reader and a JSON parser.

use std::collections::BTreeMap;
use std::io::Read as _;

use super::*;

fn image() -> Image {
    let mut base = Tree::default();
    base.add_file("bin/sh", 0o755, "a shell").unwrap();
    base.add_link("bin/ls", "sh").unwrap();
    base.add_directory("usr/local/bin", 0o755, 0).unwrap();
    base.add_directory("tmp", 0o1777, 0).unwrap();
    base.add_directory("workspace", 0o755, 1000).unwrap();
    let mut top = Tree::default();
    top.add_file("opt/sympozium/bin/program", 0o755, "a program").unwrap();
    Image {
        reference: "example:1.2".to_owned(),
        architecture: "amd64",
        user: "1000:1000".to_owned(),
        working_directory: "/workspace".to_owned(),
        entrypoint: vec!["/opt/sympozium/bin/program".to_owned()],
        environment: vec!["PATH=/bin".to_owned()],
        annotations: vec![("org.opencontainers.image.title".to_owned(), "example".to_owned())],
        layers: vec![base, top],
    }
}

/// The files of an archive by their names.
fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(archive).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let name = entry.path().unwrap().display().to_string();
        assert!(files.insert(name, content).is_none());
    }
    files
}

fn parse(content: &[u8]) -> Value {
    serde_json::from_slice(content).unwrap()
}

/// What a descriptor names, with its digest and size checked.
fn blob<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
    let name = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    let content = &files[&format!("blobs/sha256/{name}")];
    assert_eq!(digest(content), name);
    assert_eq!(descriptor["size"], content.len());
    content
}

/// One line per entry of a layer, as `ls` would show it.
fn listing(layer: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in tar::Archive::new(layer).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        let header = entry.header();
        assert_eq!(header.mtime().unwrap(), 0);
        let (uid, gid, mode) = (header.uid().unwrap(), header.gid().unwrap(), header.mode().unwrap());
        let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        let target = entry.link_name().unwrap().map(|target| format!(" -> {}", target.display()));
        lines
            .push(format!("{mode:o} {uid}:{gid} {path}{} {content}", target.unwrap_or_default()).trim_end().to_owned());
    }
    lines
}

#[test]
fn an_archive_holds_what_the_image_says() {
    let archive = image().to_archive().unwrap();
    let files = files(&archive.bytes);
    assert_eq!(parse(&files["oci-layout"]), json!({"imageLayoutVersion": "1.0.0"}));

    let index = parse(&files["index.json"]);
    let entry = &index["manifests"][0];
    assert_eq!(index["manifests"].as_array().unwrap().len(), 1);
    assert_eq!(entry["digest"], archive.digest.as_str());
    assert_eq!(
        entry["annotations"],
        json!({"io.containerd.image.name": "docker.io/library/example:1.2", "org.opencontainers.image.ref.name": "1.2"})
    );
    assert_eq!(entry["platform"], json!({"architecture": "amd64", "os": "linux"}));

    let manifest = parse(blob(&files, entry));
    assert_eq!(manifest["annotations"], json!({"org.opencontainers.image.title": "example"}));
    let config_bytes = blob(&files, &manifest["config"]);
    let layers: Vec<&[u8]> = manifest["layers"].as_array().unwrap().iter().map(|layer| blob(&files, layer)).collect();
    let diff_ids: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", digest(layer))).collect();
    assert_eq!(
        parse(config_bytes),
        json!({
            "architecture": "amd64",
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {
                "User": "1000:1000",
                "WorkingDir": "/workspace",
                "Entrypoint": ["/opt/sympozium/bin/program"],
                "Env": ["PATH=/bin"],
                "Labels": {"org.opencontainers.image.title": "example"},
            },
            "history": [
                {"created": "1970-01-01T00:00:00Z", "created_by": "cargo xtask images"},
                {"created": "1970-01-01T00:00:00Z", "created_by": "cargo xtask images"},
            ],
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        })
    );
    assert_eq!(
        listing(layers[0]),
        [
            "755 0:0 bin/",
            "777 0:0 bin/ls -> sh",
            "755 0:0 bin/sh a shell",
            "1777 0:0 tmp/",
            "755 0:0 usr/",
            "755 0:0 usr/local/",
            "755 0:0 usr/local/bin/",
            "755 1000:1000 workspace/",
        ]
    );
    assert_eq!(
        listing(layers[1]),
        [
            "755 0:0 opt/",
            "755 0:0 opt/sympozium/",
            "755 0:0 opt/sympozium/bin/",
            "755 0:0 opt/sympozium/bin/program a program"
        ]
    );

    // Docker's own file names the same blobs, and there is nothing besides.
    let blob_of = |content: &[u8]| format!("blobs/sha256/{}", digest(content));
    assert_eq!(
        parse(&files["manifest.json"]),
        json!([{
            "Config": blob_of(config_bytes),
            "Layers": layers.iter().map(|layer| blob_of(layer)).collect::<Vec<_>>(),
            "RepoTags": ["example:1.2"],
        }])
    );
    assert_eq!(files.len(), 3 + 4);
}

#[test]
fn the_same_image_is_the_same_bytes_and_one_other_byte_is_another_digest() {
    let archive = image().to_archive().unwrap();
    assert_eq!(image().to_archive().unwrap(), archive);

    let mut changes: Vec<Image> = vec![image(); 4];
    let mut top = Tree::default();
    top.add_file("opt/sympozium/bin/program", 0o755, "b program").unwrap();
    changes[0].layers[1] = top;
    let mut top = Tree::default();
    top.add_file("opt/sympozium/bin/program", 0o555, "a program").unwrap();
    changes[1].layers[1] = top;
    changes[2].user = "1001:1000".to_owned();
    changes[3].annotations[0].1.push('s');
    for change in changes {
        assert_ne!(change.to_archive().unwrap().digest, archive.digest);
    }

    // Another name is the same image.
    let renamed = Image { reference: "other:1".to_owned(), ..image() };
    assert_eq!(renamed.to_archive().unwrap().digest, archive.digest);
}

#[test]
fn equal_layers_are_one_blob() {
    let mut twice = image();
    twice.layers[1] = twice.layers[0].clone();
    let files = files(&twice.to_archive().unwrap().bytes);
    assert_eq!(files.len(), 3 + 3);
}

#[test]
fn a_reference_without_a_registry_gets_the_usual_one() {
    for (short, full) in [
        ("a:1", "docker.io/library/a:1"),
        ("team/a:1", "docker.io/team/a:1"),
        ("example.test/a:1", "example.test/a:1"),
        ("localhost/a:1", "localhost/a:1"),
        ("host:5000/a:1", "host:5000/a:1"),
    ] {
        assert_eq!(full_reference(short), full);
    }
}
