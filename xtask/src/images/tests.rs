//! The table of images, and the base image as a whole.

use std::collections::BTreeMap;

use super::*;

/// A static program of the least size: its header, and no segment.
fn program(machine: u8, tail: &str) -> Vec<u8> {
    let mut program = vec![0; 0x40];
    program[..6].copy_from_slice(b"\x7fELF\x02\x01");
    program[0x12] = machine;
    program.extend(tail.bytes());
    program
}

fn sidecar(binary: Vec<u8>) -> Result<Image> {
    image(&IMAGES[0], binary)
}

fn image(definition: &Definition, binary: Vec<u8>) -> Result<Image> {
    let parts = Parts { busybox: program(0x3e, "busybox"), certificates: b"certificates\n".to_vec() };
    let path = definition.binaries[0].path;
    let reference = format!("{}:1", definition.name);
    let tools = definition.tools.iter();
    let own = Own {
        programs: vec![(path, binary)],
        tools: tools.map(|tool| (format!("usr/bin/{}", tool.name()), program(0x3e, tool.name()))).collect(),
    };
    assemble(definition, reference, parts, own)
}

/// Mode, owner and path of everything in a layer, with a link's target.
fn listing(tree: &Tree) -> Vec<String> {
    let layer = tree.to_tar().unwrap();
    let mut archive = tar::Archive::new(layer.as_slice());
    let entries = archive.entries().unwrap().map(|entry| {
        let entry = entry.unwrap();
        let header = entry.header();
        let target = entry.link_name().unwrap().map(|target| format!(" -> {}", target.display()));
        format!(
            "{:o} {} {}{}",
            header.mode().unwrap(),
            header.uid().unwrap(),
            String::from_utf8(entry.path_bytes().into_owned()).unwrap(),
            target.unwrap_or_default()
        )
    });
    entries.collect()
}

#[test]
fn the_base_image_has_a_shell_certificates_a_user_and_an_empty_directory_for_skills() {
    let image = sidecar(program(0x3e, "skill-sidecar")).unwrap();
    let (links, rest): (Vec<_>, Vec<_>) =
        listing(&image.layers[0]).into_iter().partition(|line| line.contains(" -> busybox"));
    assert!(links.contains(&"777 0 bin/sh -> busybox".to_owned()));
    assert_eq!(
        rest,
        [
            "755 0 bin/",
            "755 0 bin/busybox",
            "755 0 etc/",
            "644 0 etc/group",
            "644 0 etc/passwd",
            "755 0 etc/ssl/",
            "755 0 etc/ssl/certs/",
            "644 0 etc/ssl/certs/ca-certificates.crt",
            "1777 0 tmp/",
            "755 0 usr/",
            "755 0 usr/bin/",
            "777 0 usr/bin/env -> ../../bin/busybox",
            "755 0 usr/local/",
            "755 0 usr/local/bin/",
            "755 1000 workspace/",
        ]
    );
    assert_eq!(
        listing(&image.layers[1]),
        [
            "755 0 opt/",
            "755 0 opt/sympozium/",
            "644 0 opt/sympozium/LICENSE",
            "755 0 opt/sympozium/bin/",
            "755 0 opt/sympozium/bin/skill-sidecar",
        ]
    );
    assert_eq!(image.user, "1000:1000");
    assert_eq!(image.working_directory, "/workspace");
    assert_eq!(image.entrypoint, ["/opt/sympozium/bin/skill-sidecar"]);
    let annotations: BTreeMap<_, _> = image.annotations.into_iter().collect();
    assert_eq!(annotations["org.opencontainers.image.title"], "skill-sidecar");
    assert_eq!(annotations.len(), 4);
}

/// Pods of runs name no command for the bridge, only arguments, and neither for the agent.
#[test]
fn every_image_starts_the_program_that_it_is_called_after() {
    let names: Vec<&str> = IMAGES.iter().map(|definition| definition.name).collect();
    assert_eq!(
        names,
        [
            "skill-sidecar",
            "agent-runner",
            "ipc-bridge",
            "sympozium-gateway",
            "sympozium-controller",
            "skill-k8s-ops",
            "skill-sre-observability",
            "skill-incident-response",
        ]
    );
    for definition in IMAGES {
        let image = image(definition, program(0x3e, definition.name)).unwrap();
        assert_eq!(image.reference, format!("{}:1", definition.name));
        assert_eq!(image.user, "1000:1000", "{}", definition.name);
        let name = match definition.tools {
            [] => definition.name,
            _ => "skill-sidecar",
        };
        let mut entrypoint = vec![format!("/opt/sympozium/bin/{name}")];
        if name == "agent-runner" {
            entrypoint.push("--image=/".to_owned());
        }
        assert_eq!(image.entrypoint, entrypoint);
        assert_eq!(
            listing(image.layers.last().unwrap()),
            [
                "755 0 opt/",
                "755 0 opt/sympozium/",
                "644 0 opt/sympozium/LICENSE",
                "755 0 opt/sympozium/bin/",
                &format!("755 0 opt/sympozium/bin/{name}"),
            ]
        );
    }
}

/// A pack's skills say which programs they need; the image of the pack has those that the base has not.
#[test]
fn images_of_packs_have_the_programs_that_their_skills_name() {
    let packs: Vec<_> = (IMAGES.iter()).filter(|image| !image.tools.is_empty()).collect();
    assert_eq!(packs.len(), 3);
    for definition in packs {
        let pack = definition.name.strip_prefix("skill-").unwrap();
        let file = workspace_root().join(format!("config/skillpacks/{pack}.yaml"));
        let pack: serde_json::Value = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let image = pack["spec"]["sidecar"]["image"].as_str().unwrap();
        assert!(image.contains(&format!("/{}:", definition.name)), "{image}");
        let mut needed: Vec<&str> = Vec::new();
        for skill in pack["spec"]["skills"].as_array().unwrap() {
            let names = skill["requires"]["bins"].as_array().into_iter().flatten();
            needed.extend(names.map(|name| name.as_str().unwrap()));
        }
        needed.retain(|name| base::TOOLS.binary_search(name).is_err());
        needed.sort_unstable();
        needed.dedup();
        let tools: Vec<_> = definition.tools.iter().map(|tool| tool.name()).collect();
        assert_eq!(tools, needed, "{}", definition.name);
        assert_eq!(
            listing(&self::image(definition, program(0x3e, "x")).unwrap().layers[1]),
            ["755 0 usr/".to_owned(), "755 0 usr/bin/".to_owned()]
                .into_iter()
                .chain(tools.iter().map(|name| format!("755 0 usr/bin/{name}")))
                .collect::<Vec<_>>()
        );
    }
}

/// An image built with Docker has the same tools, from the distribution, and the same user and entrypoint.
#[test]
fn images_of_packs_have_dockerfiles_that_stand_on_the_base_image() {
    for definition in IMAGES.iter().filter(|image| !image.tools.is_empty()) {
        let file = format!("images/Dockerfile.{}", definition.name);
        let text = fs::read_to_string(workspace_root().join(&file)).unwrap();
        let tools: Vec<_> = definition.tools.iter().map(|tool| tool.name()).collect();
        for line in [
            format!("ARG BASE=skill-sidecar:{}", env!("CARGO_PKG_VERSION")),
            format!("RUN apk add --no-cache ca-certificates {} \\", tools.join(" ")),
            "COPY --from=base /opt/sympozium/ /opt/sympozium/".to_owned(),
            format!("ENTRYPOINT {:?}", definition.entrypoint),
            "USER 1000:1000".to_owned(),
        ] {
            assert!(text.lines().any(|other| other == line), "{file}: no `{line}`");
        }
    }
}

/// An image built with Docker has the same program at the same path.
#[test]
fn every_image_has_a_dockerfile_that_agrees_with_the_table() {
    for definition in IMAGES.iter().filter(|image| image.tools.is_empty()) {
        let file = format!("images/Dockerfile.{}", definition.name);
        let text = fs::read_to_string(workspace_root().join(&file)).unwrap();
        let binary = &definition.binaries[0];
        for line in [
            format!("        --package {} --bin {} \\", binary.package, binary.name),
            format!("COPY --from=build /{} /{}", binary.name, binary.path),
            format!("COPY {} /{}", definition.files[0].0, definition.files[0].1),
            format!("ENTRYPOINT {:?}", definition.entrypoint),
            "USER 1000:1000".to_owned(),
        ] {
            assert!(text.lines().any(|other| other == line), "{file}: no `{line}`");
        }
    }
}

#[test]
fn an_image_is_the_same_each_time_and_follows_its_program() {
    let archive = |tail| sidecar(program(0x3e, tail)).unwrap().to_archive().unwrap();
    assert_eq!(archive("one"), archive("one"));
    assert_ne!(archive("one").digest, archive("two").digest);
}

#[test]
fn a_program_that_would_not_start_is_refused() {
    let chain = |binary| format!("{:#}", sidecar(binary).unwrap_err());
    assert_eq!(chain(program(0xb7, "")), "opt/sympozium/bin/skill-sidecar is for arm64, busybox for amd64");
    assert_eq!(chain(b"#!/bin/sh\n".to_vec()), "opt/sympozium/bin/skill-sidecar: no ELF program");
}

#[test]
fn names_are_checked_before_anything_is_built() {
    assert_eq!(select(&[]).unwrap().len(), IMAGES.len());
    assert_eq!(select(&["skill-sidecar".to_owned()]).unwrap().len(), 1);
    assert_eq!(select(&["sidecar".to_owned()]).unwrap_err().to_string(), "no image is called `sidecar`");
    assert!(check_reference("tag", "1.2_a-b", ".-_").is_ok());
    assert!(check_reference("tag", "1 2", ".-_").is_err());
    assert!(check_reference("tag", "../x", ".-_").is_err());
}

#[test]
fn what_images_are_made_of_is_well_formed() {
    for definition in IMAGES {
        for binary in definition.binaries {
            assert!(!binary.path.starts_with("usr/local/bin"), "{}: it ships empty", definition.name);
        }
        let entrypoint = definition.entrypoint[0].strip_prefix('/').unwrap();
        assert!(definition.binaries.iter().any(|binary| binary.path == entrypoint), "{}", definition.name);
        for (source, _) in definition.files {
            assert!(workspace_root().join(source).is_file(), "{source}");
        }
    }
}

/// The whole command, with busybox in the place of our own program, because it is static and there.
#[test]
fn the_command_writes_an_archive_whose_root_has_a_working_shell() {
    let (Ok(busybox), Ok(_)) = (busybox(), Parts::find()) else {
        sympozium_testkit::skip!("no busybox or no certificates");
    };
    let folder = tempfile::tempdir().unwrap();
    let make = |out: &str| {
        let out = folder.path().join(out);
        run(&Arguments {
            names: Vec::new(),
            out: Some(out.clone()),
            prefix: "registry.example.com/team/".to_owned(),
            tag: "1".to_owned(),
            binaries: (IMAGES.iter().map(|image| image.name))
                .chain([Tool::Curl, Tool::Jq, Tool::Kubectl].map(Tool::name))
                .map(|name| (name.to_owned(), busybox.clone()))
                .collect(),
            output: Output::Json,
        })
        .unwrap();
        fs::read(out.join("skill-sidecar.tar")).unwrap()
    };
    let archive = make("first");
    assert!(archive == make("second"), "the same input gave other bytes");

    // By Docker's file, and so the other way than the tests of `oci`.
    let unpacked = folder.path().join("unpacked");
    tar::Archive::new(archive.as_slice()).unpack(&unpacked).unwrap();
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(unpacked.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest[0]["RepoTags"], json!(["registry.example.com/team/skill-sidecar:1"]));
    let root = folder.path().join("root");
    for layer in manifest[0]["Layers"].as_array().unwrap() {
        let layer = fs::read(unpacked.join(layer.as_str().unwrap())).unwrap();
        tar::Archive::new(layer.as_slice()).unpack(&root).unwrap();
    }
    let inside = |script: &str| {
        let mut unshare = sympozium_testkit::command("unshare");
        unshare.args(["--user", "--map-root-user", "chroot"]).arg(&root);
        unshare.args(["/bin/sh", "-c", script]).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        unshare.output()
    };
    let probe = sympozium_testkit::command("unshare").args(["--user", "--map-root-user", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        sympozium_testkit::skip!("no user namespaces");
    }
    // A process that another test starts may have the shell open for writing from its fork to its exec: then it cannot be
    // executed.
    let starts = || inside("true").is_ok_and(|output| output.status.success());
    assert!(sympozium_testkit::wait_until(std::time::Duration::from_secs(60), starts));
    let output = inside(
        "ls -A /usr/local/bin; grep agent /etc/passwd; /usr/bin/env printf '%s\n' words; \
         grep -c 'BEGIN CERTIFICATE' /etc/ssl/certs/ca-certificates.crt | grep -q '^[1-9][0-9]'; echo $?",
    )
    .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "agent:x:1000:1000:agent:/tmp:/bin/sh\nwords\n0\n",
        "{output:?}"
    );
}
