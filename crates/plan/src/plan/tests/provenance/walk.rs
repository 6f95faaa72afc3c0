//! From every power of a plan to the field of a manifest that allows it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// The namespace whose objects are trusted.
pub const SYSTEM: &str = "sympozium-system";
/// The prefix of our own images.
const OURS: &str = "ghcr.io/sympozium-ai/sympozium/";

const DEFAULT_IMAGE: &str = "/spec/sandboxPolicy/defaultImage";

/// A field: the index of the object, and the JSON pointer.
pub type Field = (usize, String);

/// Why a power is not traced.
pub type Untraced = String;

/// Walks through a plan; returns all fields that allow something of it, or the first power that none allows.
pub fn trace(plan: &Value, objects: &[Value]) -> Result<BTreeSet<Field>, Untraced> {
    let mut walk = Walk::new(plan, objects)?;
    walk.packs()?;
    walk.destinations()?;
    walk.permissions()?;
    walk.model()?;
    walk.tools()?;
    walk.isolation()?;
    walk.bounds()?;
    for part in list(&plan["parts"]) {
        walk.image(part)?;
        walk.variables(part)?;
        walk.mounts(part)?;
        walk.places(part)?;
        walk.node(part)?;
    }
    walk.node_namespaces()?;
    walk.pull_secrets()?;
    Ok(walk.used)
}

/// The members of a list; none where there is no list.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A text; empty where there is none.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Fails with what is not traced, unless it is.
pub fn demand(is_allowed: bool, what: impl FnOnce() -> String) -> Result<(), Untraced> {
    if is_allowed { Ok(()) } else { Err(what()) }
}

pub struct Walk<'w> {
    pub plan: &'w Value,
    pub objects: &'w [Value],
    pub run: usize,
    pub agent: usize,
    pub policy: usize,
    pub floor: usize,
    pub used: BTreeSet<Field>,
}

impl<'w> Walk<'w> {
    fn new(plan: &'w Value, objects: &'w [Value]) -> Result<Self, Untraced> {
        let find = |is: &dyn Fn(&Value) -> bool| {
            let found = objects.iter().position(is);
            found.ok_or_else(|| "an object is missing".to_owned())
        };
        let is_agent = |object: &Value| object["kind"] == "Agent" || object["kind"] == "SympoziumInstance";
        let is_policy =
            |object: &Value, name: &Value| object["kind"] == "SympoziumPolicy" && object["metadata"]["name"] == *name;
        let agent = find(&is_agent)?;
        Ok(Self {
            plan,
            objects,
            run: find(&|object| object["kind"] == "AgentRun")?,
            agent,
            policy: find(&|object| is_policy(object, &objects[agent]["spec"]["policyRef"]))?,
            floor: find(&|object| is_policy(object, &json!("floor")))?,
            used: BTreeSet::new(),
        })
    }

    /// The value of a field.
    pub fn get(&self, object: usize, pointer: &str) -> &'w Value {
        self.objects[object].pointer(pointer).unwrap_or(&Value::Null)
    }

    /// Records that a field allows something.
    pub fn by(&mut self, object: usize, pointer: impl Into<String>) {
        self.used.insert((object, pointer.into()));
    }

    pub fn namespace(&self) -> &'w str {
        text(&self.objects[self.run]["metadata"]["namespace"])
    }

    /// A pack of the run, by name: that of its namespace before that of the system namespace.
    pub fn pack(&self, name: &str) -> Result<usize, Untraced> {
        let found = self.pack_in(self.namespace(), name);
        let found = found.or_else(|| self.pack_in(SYSTEM, name));
        found.ok_or_else(|| format!("there is no pack {name}"))
    }

    fn pack_in(&self, namespace: &str, name: &str) -> Option<usize> {
        let is = |pack: &Value| {
            pack["kind"] == "SkillPack"
                && pack["metadata"]["name"] == name
                && pack["metadata"]["namespace"] == namespace
        };
        self.objects.iter().position(is)
    }

    /// Whether a policy disables a feature.
    pub fn is_closed(&self, feature: &str) -> bool {
        let gates = [self.policy, self.floor].map(|policy| self.get(policy, "/spec/featureGates"));
        gates.iter().any(|gate| gate[feature] == false)
    }

    /// An object that a manifest names is not one that was created for a run.
    pub fn foreign(&self, name: &Value) -> Result<(), Untraced> {
        let is_uid = |text: &str| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_of_run = text(name).split('-').skip(1).any(is_uid);
        demand(!is_of_run, || format!("{name}, which was made for a run"))
    }

    /// A Secret of a part other than the bridge is not one of the model's.
    pub fn not_of_model(&self, name: &Value) -> Result<(), Untraced> {
        let model = self.get(self.run, "/spec/model");
        let own = [&model["authSecretRef"], &model["providerHeadersSecretRef"]];
        let is = name.is_string() && own.contains(&name);
        demand(!is, || format!("{name}, which is the model's"))
    }

    /// `namespace/name` of a pack.
    pub fn qualified(&self, pack: usize) -> String {
        let metadata = &self.objects[pack]["metadata"];
        format!("{}/{}", text(&metadata["namespace"]), text(&metadata["name"]))
    }

    pub fn is_of_system(&self, pack: usize) -> bool {
        self.objects[pack]["metadata"]["namespace"] == SYSTEM
    }

    /// Whether a list of packs has one: a name alone means the system namespace.
    pub fn lists_pack(&self, names: &Value, pack: usize) -> bool {
        let names = list(names).iter().map(text);
        let mut qualified =
            names.map(|name| if name.contains('/') { name.to_owned() } else { format!("{SYSTEM}/{name}") });
        qualified.any(|name| name == self.qualified(pack))
    }

    /// The hooks: the run's own, or else the agent's.
    pub fn hooks(&self) -> (usize, &'static str) {
        match self.get(self.run, "/spec/lifecycle") {
            Value::Null => (self.agent, "/spec/agents/default/lifecycle"),
            _ => (self.run, "/spec/lifecycle"),
        }
    }

    /// The hook of a part, and its field.
    pub fn hook(&self, part: &Value) -> Result<(usize, String), Untraced> {
        let (object, lifecycle) = self.hooks();
        let field = match text(&part["role"]["kind"]) {
            "preRun" => format!("{lifecycle}/preRun"),
            _ => format!("{lifecycle}/postRun"),
        };
        let mut hooks = list(self.get(object, &field)).iter();
        let index = hooks.position(|hook| hook["name"] == part["role"]["hook"]);
        let index = index.ok_or_else(|| format!("no hook is {}", part["name"]))?;
        Ok((object, format!("{field}/{index}")))
    }

    /// The pack of a part.
    pub fn pack_of(&self, part: &Value) -> Result<Option<usize>, Untraced> {
        match text(&part["role"]["kind"]) {
            "skill" => self.pack(text(&part["role"]["pack"])).map(Some),
            _ => Ok(None),
        }
    }

    /// Every pack with a part: the run names it, and the policies allow it. No two parts are for the same pack.
    fn packs(&mut self) -> Result<(), Untraced> {
        let parts = list(&self.plan["parts"]);
        for (index, part) in parts.iter().enumerate() {
            let mut before = parts[..index].iter();
            let is_twin = before.any(|other| other["role"] == part["role"]);
            demand(!is_twin, || format!("another part for {}", part["role"]))?;
            let Some(pack) = self.pack_of(part)? else {
                continue;
            };
            let name = &self.objects[pack]["metadata"]["name"];
            let skills = list(self.get(self.run, "/spec/skills"));
            let named = skills.iter().any(|skill| skill["skillPackRef"] == *name);
            demand(named && name != "sandbox", || format!("pack {name} is not the run's"))?;
            self.by(self.run, "/spec/skills");
            self.origin(pack)?;
            let features = list(self.get(pack, "/spec/features"));
            let closed = features.iter().find(|feature| self.is_closed(text(feature)));
            demand(closed.is_none(), || format!("{closed:?} of pack {name}"))?;
            for policy in [self.policy, self.floor] {
                let field = "/spec/packPolicy/allowedPacks";
                let allowed = self.get(policy, field);
                if allowed.is_array() {
                    demand(self.lists_pack(allowed, pack), || format!("pack {name}"))?;
                    self.by(policy, field);
                }
            }
        }
        Ok(())
    }

    /// The policies allow packs of the pack's namespace.
    fn origin(&mut self, pack: usize) -> Result<(), Untraced> {
        let what = || format!("pack {}", self.qualified(pack));
        let name = text(&self.objects[pack]["metadata"]["name"]);
        if self.is_of_system(pack) {
            for policy in [self.policy, self.floor] {
                let allowed = self.get(policy, "/spec/packPolicy/allowSystemPacks");
                demand(*allowed != false, what)?;
            }
        } else if self.pack_in(SYSTEM, name).is_some() {
            let field = "/spec/packPolicy/allowShadowing";
            let is_silent = self.get(self.floor, "/spec/packPolicy").is_null();
            demand(*self.get(self.policy, field) == true, what)?;
            demand(is_silent || *self.get(self.floor, field) == true, what)?;
            self.by(self.policy, field);
            if !is_silent {
                self.by(self.floor, field);
            }
        }
        Ok(())
    }

    fn image(&mut self, part: &Value) -> Result<(), Untraced> {
        let image = text(&part["image"]);
        let executor = &part["start"]["executor"];
        let ours = executor.is_null() || text(executor).starts_with(OURS);
        demand(ours, || format!("the executor {executor}"))?;
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-/:@".contains(&byte);
        let is_reference = image.bytes().all(is_word) && !image.contains("..");
        demand(is_reference, || format!("the image {image}"))?;
        let (object, field) = match text(&part["role"]["kind"]) {
            "skill" => {
                let pack = self.pack(text(&part["role"]["pack"]))?;
                (pack, "/spec/sidecar/image".to_owned())
            }
            "sandbox" if self.get(self.run, "/spec/sandbox/image").is_string() => {
                (self.run, "/spec/sandbox/image".to_owned())
            }
            // A sandbox that names no image has the policy's, before the floor's.
            "sandbox" if self.default_image().is_some() => {
                let object = self.default_image().unwrap_or(self.policy);
                (object, DEFAULT_IMAGE.to_owned())
            }
            "preRun" | "postRun" => {
                let (object, field) = self.hook(part)?;
                (object, format!("{field}/image"))
            }
            _ => return demand(image.starts_with(OURS), || format!("the image {image}")),
        };
        demand(*self.get(object, &field) == image, || format!("the image {image}"))?;
        self.by(object, field);
        for policy in [self.policy, self.floor] {
            let field = "/spec/imagePolicy/allowedRegistries";
            let allowed = self.get(policy, field);
            if allowed.is_array() {
                let mut registries = list(allowed).iter().map(|registry| format!("{}/", text(registry)));
                demand(registries.any(|registry| image.starts_with(&registry)), || format!("the image {image}"))?;
                self.by(policy, field);
            }
        }
        Ok(())
    }

    fn default_image(&self) -> Option<usize> {
        let mut policies = [self.policy, self.floor].into_iter();
        policies.find(|policy| self.get(*policy, DEFAULT_IMAGE).is_string())
    }

    fn pull_secrets(&mut self) -> Result<(), Untraced> {
        let field = "/spec/imagePullSecrets";
        for secret in list(&self.plan["placement"]["imagePullSecrets"]) {
            let named = list(self.get(self.run, field)).contains(secret);
            demand(named, || format!("the Secret {secret} to pull with"))?;
            self.foreign(&secret["name"])?;
            self.by(self.run, field);
        }
        Ok(())
    }
}
