//! Volumes of manifests, and the paths where they are mounted.

use serde_json::Value;

use super::walk::{Untraced, Walk, demand, list, text};

/// The types of volumes, and the keys of each.
const TYPES: &[(&str, &str)] = &[
    ("configMap", "defaultMode items name optional"),
    ("downwardAPI", "defaultMode items"),
    ("emptyDir", "medium sizeLimit"),
    ("hostPath", "path type"),
    ("persistentVolumeClaim", "claimName readOnly"),
    ("projected", "defaultMode sources"),
    ("secret", "defaultMode items name optional secretName"),
];
/// Types that only a pack may have.
const OF_PACKS: &[&str] = &["hostPath", "secret"];
/// Sources of a projected volume.
const PROJECTED: &[&str] = &["configMap", "downwardAPI", "secret"];
/// Paths that belong to us or to the kernel, in every container.
const RESERVED: &[&str] = &["/dev", "/ipc", "/proc", "/run", "/skills", "/sys", "/tmp", "/var/run", "/workspace"];
/// Paths of the programs of our own images.
const PROGRAMS: &[&str] = &["/bin", "/etc", "/lib", "/sbin", "/usr"];

/// Whether a path is unambiguous.
pub fn is_plain(path: &str) -> bool {
    let mut words = path.split('/').skip(1);
    path.starts_with('/') && words.all(|word| !matches!(word, "" | "." | ".."))
}

/// Whether two paths are equal, or one lies below the other.
fn overlap(one: &str, other: &str) -> bool {
    let is_below =
        |path: &str, of: &str| path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    is_below(one, other) || is_below(other, one)
}

impl Walk<'_> {
    /// A volume of a manifest has a type that its owner may have, and names nothing of another part.
    pub fn volume(&self, volume: &Value, is_agent: bool) -> Result<(), Untraced> {
        let what = || format!("the volume {volume}");
        let sources = volume.as_object().into_iter().flatten();
        let mut sources = sources.filter(|(key, _)| *key != "name");
        let (kind, source) = sources.next().ok_or_else(what)?;
        demand(sources.next().is_none(), what)?;
        self.source(kind, source, is_agent).map_err(|error| format!("{error} of {volume}"))?;
        for source in list(&source["sources"]) {
            for (kind, source) in source.as_object().into_iter().flatten() {
                demand(PROJECTED.contains(&kind.as_str()), what)?;
                self.source(kind, source, is_agent).map_err(|error| format!("{error} of {volume}"))?;
            }
        }
        Ok(())
    }

    fn source(&self, kind: &str, source: &Value, is_agent: bool) -> Result<(), Untraced> {
        let what = || format!("{kind} {source}");
        let known = TYPES.iter().find(|(name, _)| *name == kind);
        let (_, keys) = known.filter(|_| !is_agent || !OF_PACKS.contains(&kind)).ok_or_else(what)?;
        let mut written = source.as_object().into_iter().flatten();
        demand(written.all(|(key, _)| keys.split(' ').any(|word| word == key)), what)?;
        for item in list(&source["items"]) {
            demand(is_plain(&format!("/{}", text(&item["path"]))), what)?;
        }
        for name in ["name", "secretName", "claimName"] {
            self.foreign(&source[name])?;
            if kind == "secret" {
                self.not_of_model(&source[name])?;
            }
        }
        Ok(())
    }

    /// No mount of a part covers another, and no mount of a manifest covers our paths or the kernel's.
    pub fn places(&self, part: &Value) -> Result<(), Untraced> {
        let mounts = list(&part["mounts"]);
        for (index, mount) in mounts.iter().enumerate() {
            let path = text(&mount["path"]);
            let what = || format!("{path} of {}", part["name"]);
            let mut before = mounts[..index].iter();
            let is_twice = before.any(|other| overlap(text(&other["path"]), path));
            demand(is_plain(path) && !is_twice, what)?;
            let mut volumes = list(&self.plan["volumes"]).iter();
            let volume = volumes.find(|volume| volume["name"] == mount["volume"]);
            let kind = volume.map_or("", |volume| text(&volume["source"]["kind"]));
            let is_of_manifest = matches!(kind, "declared" | "host" | "secret");
            let role = text(&part["role"]["kind"]);
            if is_of_manifest && role != "bridge" {
                let programs = PROGRAMS.iter().filter(|_| role == "agent");
                let mut reserved = RESERVED.iter().chain(programs);
                demand(!reserved.any(|reserved| overlap(reserved, path)), what)?;
            }
        }
        Ok(())
    }
}
