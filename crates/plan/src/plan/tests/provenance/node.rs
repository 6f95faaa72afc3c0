//! Mounts, and access of parts to the node.

use serde_json::{Value, json};

use super::volumes::is_plain;
use super::walk::{Untraced, Walk, demand, list, text};

const PATHS: &str = "/spec/hostAccessPolicy/allowedHostPaths";
/// Access to the node that policies allow one by one.
const POWERS: &[&str] = &["hostNetwork", "hostPID", "privileged", "runAsRoot"];
/// Those that all containers of a pod share.
const NAMESPACES: &[&str] = &["hostNetwork", "hostPID"];
/// Tools of the agent that write files, and those that read them.
const WRITERS: &[&str] = &["edit_file", "write_file"];
const READERS: &[&str] = &["list_directory", "read_file"];

impl Walk<'_> {
    /// All mounts of a part.
    pub fn mounts(&mut self, part: &Value) -> Result<(), Untraced> {
        for mount in list(&part["mounts"]) {
            let name = text(&mount["volume"]);
            let mut volumes = list(&self.plan["volumes"]).iter();
            let volume = volumes.find(|volume| volume["name"] == name);
            let source = &volume.ok_or_else(|| format!("{mount} is no volume"))?["source"];
            let times = volumes.filter(|volume| volume["name"] == name).count();
            demand(times == 0, || format!("{mount} of two volumes"))?;
            let what = || format!("{mount} of {}: {source}", part["name"]);
            let pack = self.pack_of(part)?;
            let role = text(&part["role"]["kind"]);
            match (text(&source["kind"]), role, pack) {
                ("scratch" | "kept", ..) => {
                    let is_own = self.scratch(part, role, pack, name, text(&mount["path"]));
                    demand(is_own, what)?;
                    // The agent's access to the workspace is that of its file tools.
                    if role == "agent" && name == "workspace" {
                        demand(self.may_touch_files(mount), what)?;
                    }
                }
                ("texts", _, _) => {
                    let skills = list(self.get(self.run, "/spec/skills"));
                    let named = skills.iter().any(|skill| skill["skillPackRef"] == source["pack"]);
                    let is_own = role == "agent" || part["role"]["pack"] == source["pack"];
                    demand(named && is_own && mount["readOnly"] == true, what)?;
                    self.by(self.run, "/spec/skills");
                }
                ("input", ..) => demand(source["part"] == part["name"], what)?,
                ("token", ..) => {
                    let is_own = part["identity"].is_string() && source["identity"] == part["identity"];
                    demand(is_own, what)?;
                }
                ("secret", "bridge", _) => {
                    let field = "/spec/model/providerHeadersSecretRef";
                    demand(source["secret"] == *self.get(self.run, field), what)?;
                    self.foreign(&source["secret"])?;
                    self.by(self.run, field);
                }
                ("secret", _, Some(pack)) => {
                    let field = "/spec/sidecar/secretRef";
                    demand(source["secret"] == *self.get(pack, field), what)?;
                    self.foreign(&source["secret"])?;
                    self.not_of_model(&source["secret"])?;
                    self.by(pack, field);
                }
                ("configMap", "agent", _) => {
                    let skills = list(self.get(self.run, "/spec/skills"));
                    let named = skills.iter().any(|skill| skill["configMapRef"] == source["configMap"]);
                    demand(named, what)?;
                    self.foreign(&source["configMap"])?;
                    self.by(self.run, "/spec/skills");
                }
                ("configMap", "bridge", _) => {
                    let asked = self.get(self.run, "/spec/model");
                    let is = asked["provider"] == "scripted" && asked["model"] == source["configMap"];
                    demand(is, what)?;
                    self.foreign(&source["configMap"])?;
                }
                ("host", _, Some(pack)) => {
                    let field = "/spec/sidecar/hostAccess/mounts";
                    let mut asked = list(self.get(pack, field)).iter();
                    let is_it = |listed: &Value| {
                        listed["hostPath"] == source["path"]
                            && listed["mountPath"] == mount["path"]
                            && (listed["readOnly"] == false || mount["readOnly"] == true)
                    };
                    demand(asked.any(is_it), what)?;
                    self.by(pack, field);
                    self.directory(pack, text(&source["path"]), mount["readOnly"] != true)?;
                }
                ("declared", "agent", _) => {
                    demand(self.may_touch_files(mount), what)?;
                    self.volume(&source["volume"], true)?;
                    self.declared(self.run, "/spec", mount, source)?;
                }
                ("declared", _, Some(pack)) => {
                    self.volume(&source["volume"], false)?;
                    self.declared(pack, "/spec/sidecar", mount, source)?;
                    let path = &source["volume"]["hostPath"]["path"];
                    if !path.is_null() {
                        self.directory(pack, text(path), mount["readOnly"] != true)?;
                    }
                }
                _ => demand(false, what)?,
            }
        }
        Ok(())
    }

    /// Whether the agent has a tool that reads files, and one that writes them where a mount allows it.
    fn may_touch_files(&self, mount: &Value) -> bool {
        let writes = self.has_tool(WRITERS);
        writes || (mount["readOnly"] == true && self.has_tool(READERS))
    }

    /// Whether a directory of the run itself is for a part.
    fn scratch(&mut self, part: &Value, role: &str, pack: Option<usize>, volume: &str, path: &str) -> bool {
        let skills = list(self.get(self.run, "/spec/skills")).iter();
        let packs: Vec<&str> = skills.filter_map(|skill| skill["skillPackRef"].as_str()).collect();
        let number = |pack: &str| packs.iter().position(|other| *other == pack);
        match (volume, pack) {
            ("workspace", Some(pack)) => {
                let field = "/spec/sidecar/mountWorkspace";
                self.by(pack, field);
                *self.get(pack, field) == true
            }
            ("workspace", None) => role != "bridge",
            ("door", _) => role == "agent" || role == "bridge",
            _ if volume.ends_with("-ipc") && role == "bridge" => {
                let of = path.strip_prefix("/ipc/").unwrap_or_default();
                number(of).is_some_and(|number| volume == format!("skill-{number}-ipc"))
                    || (of == "sandbox" && volume == "sandbox-ipc")
            }
            _ if volume.ends_with("-ipc") => {
                let own = match role {
                    "sandbox" => Some("sandbox-ipc".to_owned()),
                    _ => number(text(&part["role"]["pack"])).map(|number| format!("skill-{number}-ipc")),
                };
                own.is_some_and(|own| own == volume) && path == "/ipc"
            }
            _ => {
                let parts = list(&self.plan["parts"]).iter();
                let mounts = parts.flat_map(|part| list(&part["mounts"]));
                let times = mounts.filter(|mount| mount["volume"] == volume).count();
                times == 1 && ["/tmp", "/dev/shm"].contains(&path)
            }
        }
    }

    /// A volume that its owner declares and mounts.
    fn declared(&mut self, object: usize, owner: &str, mount: &Value, source: &Value) -> Result<(), Untraced> {
        let (volumes, mounts) = (format!("{owner}/volumes"), format!("{owner}/volumeMounts"));
        let volume = &source["volume"];
        let of_name = list(self.get(object, &volumes)).iter();
        let of_name: Vec<&Value> = of_name.filter(|candidate| candidate["name"] == volume["name"]).collect();
        let is_declared = of_name == [volume];
        let sub_path = text(&mount["subPath"]);
        let is_below = sub_path.is_empty() || is_plain(&format!("/{sub_path}"));
        let is_mounted = list(self.get(object, &mounts)).iter().any(|listed| {
            listed["name"] == volume["name"]
                && listed["mountPath"] == mount["path"]
                && listed["subPath"] == mount["subPath"]
                && listed["subPathExpr"].is_null()
                && (listed["readOnly"] != true || mount["readOnly"] == true)
        });
        demand(is_declared && is_below && is_mounted, || format!("{mount} of {volume}"))?;
        self.by(object, volumes);
        self.by(object, mounts);
        Ok(())
    }

    /// Access of a part to the node besides directories.
    pub fn node(&mut self, part: &Value) -> Result<(), Untraced> {
        let access = &part["hostAccess"];
        if access.is_null() {
            return Ok(());
        }
        let what = || format!("{access} of {}", part["name"]);
        let pack = self.pack_of(part)?.ok_or_else(what)?;
        let enabled = "/spec/sidecar/hostAccess/enabled";
        demand(*self.get(pack, enabled) == true, what)?;
        self.by(pack, enabled);
        self.given(pack)?;
        for power in POWERS.iter().filter(|power| access[**power] == true) {
            let asked = format!("/spec/sidecar/hostAccess/{power}");
            demand(*self.get(pack, &asked) == true, what)?;
            self.by(pack, asked);
            let given = format!("/spec/hostAccessPolicy/{power}");
            for policy in self.minding() {
                demand(*self.get(policy, &given) == true, what)?;
                self.by(policy, given.clone());
            }
        }
        Ok(())
    }

    /// The policies that decide about the node: that of the agent, and the floor if it has the section.
    fn minding(&self) -> Vec<usize> {
        let floor = self.get(self.floor, "/spec/hostAccessPolicy");
        [Some(self.policy), (!floor.is_null()).then_some(self.floor)].into_iter().flatten().collect()
    }

    /// Policies allow a pack access to the node: by name, and by its namespace.
    fn given(&mut self, pack: usize) -> Result<(), Untraced> {
        let what = format!("the node for {}", self.qualified(pack));
        let policy = self.get(self.policy, "/spec/hostAccessPolicy");
        demand(!policy.is_null(), || what.clone())?;
        self.by(self.policy, "/spec/hostAccessPolicy");
        for policy in self.minding() {
            let field = "/spec/hostAccessPolicy/packs";
            let names = self.get(policy, field);
            if names.is_array() {
                demand(self.lists_pack(names, pack), || what.clone())?;
                self.by(policy, field);
            }
        }
        if !self.is_of_system(pack) {
            let field = "/spec/hostAccessPolicy/namespaces";
            let namespace = &self.objects[pack]["metadata"]["namespace"];
            demand(list(self.get(self.floor, field)).contains(namespace), || what)?;
            self.by(self.floor, field);
        }
        Ok(())
    }

    /// Policies allow a directory of the node.
    fn directory(&mut self, pack: usize, path: &str, writable: bool) -> Result<(), Untraced> {
        self.given(pack)?;
        let what = format!("{path} of the node");
        demand(is_plain(path), || what.clone())?;
        for policy in self.minding() {
            let mut paths = list(self.get(policy, PATHS)).iter();
            let has = |directory: &Value| {
                let prefix = text(&directory["pathPrefix"]);
                (path == prefix || path.starts_with(&format!("{prefix}/")))
                    && (!writable || directory["readOnly"] == false)
            };
            demand(paths.any(has), || what.clone())?;
            self.by(policy, PATHS);
        }
        for policy in [self.policy, self.floor] {
            let field = "/spec/sandboxPolicy/allowHostMounts";
            if policy == self.policy || !self.get(policy, "/spec/sandboxPolicy").is_null() {
                demand(*self.get(policy, field) == true, || what.clone())?;
                self.by(policy, field);
            }
        }
        Ok(())
    }

    /// A pod has its namespaces once: where one pack has the node's, every container must be allowed to.
    pub fn node_namespaces(&mut self) -> Result<(), Untraced> {
        let parts = list(&self.plan["parts"]);
        let has = |part: &Value| NAMESPACES.iter().any(|namespace| part["hostAccess"][*namespace] == true);
        if !parts.iter().any(has) {
            return Ok(());
        }
        for part in parts {
            match text(&part["role"]["kind"]) {
                "sandbox" | "preRun" => {
                    return Err(format!("{} shares the node's namespaces", part["name"]));
                }
                "skill" => {
                    let pack = self.pack(text(&part["role"]["pack"]))?;
                    self.given(pack)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A Secret as a volume, to be mounted.
pub fn secret_volume(name: &str) -> Value {
    json!({ "name": name, "source": { "kind": "secret", "secret": "stolen" } })
}
