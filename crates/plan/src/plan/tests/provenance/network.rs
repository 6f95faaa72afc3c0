//! Destinations, and the model with its key.

use serde_json::{Value, json};

use super::walk::{Field, SYSTEM, Untraced, Walk, demand, list, text};

/// Addresses that are their providers' own.
const PROVIDERS: &[(&str, &str, u64)] = &[
    ("openai", "api.openai.com", 443),
    ("anthropic", "api.anthropic.com", 443),
    ("groq", "api.groq.com", 443),
    ("ollama", "ollama.default.svc", 11434),
];
/// Prefixes of hosts that serve the credentials of the machine.
const METADATA: &[&str] = &["169.254.", "metadata.", "[fe80:", "fe80:"];
/// Headers that decide where a request ends and which server it is for.
const FRAMING: &[&str] = &["connection", "content-length", "host", "transfer-encoding"];

const EGRESS: &str = "/spec/networkPolicy/allowedEgress";

fn is_public(host: &str) -> bool {
    !host.ends_with(".svc") && host.contains('.')
}

/// Whether a pattern covers a host and port.
fn covers(pattern: &Value, host: &str, port: u64) -> bool {
    let hosts = text(&pattern["host"]);
    let of_domain = hosts.strip_prefix('*').is_some_and(|domain| host.ends_with(domain));
    (hosts == host || of_domain) && pattern["port"].as_u64().unwrap_or(443) == port
}

impl Walk<'_> {
    fn is_listed(&self, policy: usize, host: &str, port: u64) -> bool {
        list(self.get(policy, EGRESS)).iter().any(|rule| covers(rule, host, port))
    }

    /// Whether both policies let a run reach a host, and which fields allow it.
    fn reach(&mut self, host: &str, port: u64) -> Result<(), Untraced> {
        for policy in [self.policy, self.floor] {
            let network = self.get(policy, "/spec/networkPolicy");
            if network.is_null() {
                let is_open = policy == self.floor || is_public(host);
                demand(is_open, || format!("{host}:{port}, which no policy opens"))?;
                continue;
            }
            let is_open = network["denyAll"] == false && is_public(host);
            let is_listed = self.is_listed(policy, host, port);
            demand(is_open || is_listed, || format!("{host}:{port}"))?;
            match (is_open, is_listed) {
                (true, false) => self.by(policy, "/spec/networkPolicy/denyAll"),
                (false, true) => self.by(policy, EGRESS),
                _ => {}
            }
        }
        Ok(())
    }

    /// Every destination of every part.
    pub fn destinations(&mut self) -> Result<(), Untraced> {
        for credential in list(&self.plan["credentials"]) {
            let (name, part) = (text(&credential["name"]), text(&credential["part"]));
            let reach = &credential["reach"];
            match name {
                "model" => {
                    let endpoint = &self.plan["model"]["endpoint"];
                    let only = json!([{ "host": endpoint["host"], "port": endpoint["port"] }]);
                    let is = part == "ipc-bridge" && reach["public"] == false;
                    demand(is && reach["destinations"] == only, || format!("{credential}"))?;
                }
                "web" => {
                    demand(part == "ipc-bridge", || format!("{credential}"))?;
                    self.web(reach)?;
                }
                _ => self.skill(name, part, reach)?,
            }
        }
        Ok(())
    }

    fn web(&mut self, reach: &Value) -> Result<(), Untraced> {
        let is_fetch = |tool: &&Value| tool["name"] == "fetch_url" && tool["gate"] != "deny";
        let fetches = list(&self.plan["tools"]).iter().any(|tool| is_fetch(&tool));
        demand(fetches, || "the web, which no tool reaches".to_owned())?;
        if reach["public"] == true {
            // The whole web is allowed where any host of it is.
            self.reach("any.example.net", 443)?;
        }
        for destination in list(&reach["destinations"]) {
            let port = destination["port"].as_u64().unwrap_or_default();
            self.reach(text(&destination["host"]), port)?;
        }
        Ok(())
    }

    fn skill(&mut self, name: &str, part: &str, reach: &Value) -> Result<(), Untraced> {
        let mut parts = list(&self.plan["parts"]).iter();
        let found = parts.find(|candidate| candidate["name"] == name && name == part);
        let pack = found.map_or(Ok(None), |found| self.pack_of(found))?;
        let pack = pack.ok_or_else(|| format!("the credential {name} of {part}"))?;
        demand(reach["public"] == false, || format!("all hosts for {part}"))?;
        for destination in list(&reach["destinations"]) {
            let host = text(&destination["host"]);
            let port = destination["port"].as_u64().unwrap_or_default();
            let field = "/spec/sidecar/egress";
            let mut egress = list(self.get(pack, field)).iter();
            let is = |destination: &Value| {
                destination["host"] == host && destination["port"].as_u64().unwrap_or(443) == port
            };
            demand(egress.any(is), || format!("{host}:{port} of {part}"))?;
            self.by(pack, field);
            self.reach(host, port)?;
        }
        Ok(())
    }

    /// The model, its address, and what is sent there.
    pub fn model(&mut self) -> Result<(), Untraced> {
        let asked = self.get(self.run, "/spec/model");
        let model = &self.plan["model"];
        demand(model["model"] == asked["model"], || format!("the model {model}"))?;
        let reference = asked["modelRef"].as_str();
        if let Some(reference) = reference {
            let named = reference.split_once('/').map(|(namespace, _)| namespace);
            let namespace = json!(named.unwrap_or(self.namespace()));
            for policy in [self.policy, self.floor] {
                let field = "/spec/modelPolicy/allowedNamespaces";
                let allowed = self.get(policy, field);
                if allowed.is_array() {
                    demand(list(allowed).contains(&namespace), || format!("a Model of {namespace}"))?;
                    self.by(policy, field);
                }
            }
        }
        for policy in [self.policy, self.floor] {
            let field = "/spec/modelPolicy/allowedModels";
            let allowed = self.get(policy, field);
            if allowed.is_array() {
                let mut names = [asked["model"].as_str(), reference].into_iter().flatten();
                let all = names.all(|name| list(allowed).contains(&json!(name)));
                demand(all, || format!("the model {model}"))?;
                self.by(policy, field);
            }
        }
        let headers = model["headers"].as_object().into_iter().flatten();
        for (name, value) in headers {
            let is = asked["providerHeaders"][name] == *value;
            let is_framing = FRAMING.contains(&name.to_lowercase().as_str());
            demand(is && !is_framing, || format!("the header {name}"))?;
        }
        for key in list(&model["keys"]) {
            let field = "/spec/model/authSecretRef";
            let is = key["secret"] == *self.get(self.run, field);
            demand(is, || format!("the key {key}"))?;
            self.foreign(&key["secret"])?;
            self.by(self.run, field);
        }
        if !model["headersSecret"].is_null() {
            let field = "/spec/model/providerHeadersSecretRef";
            let is = model["headersSecret"] == *self.get(self.run, field);
            demand(is, || "the Secret with headers".to_owned())?;
            self.foreign(&model["headersSecret"])?;
            self.by(self.run, field);
        }
        let endpoint = &model["endpoint"];
        if endpoint.is_null() {
            return demand(asked["provider"] == "scripted", || "no address".to_owned());
        }
        let host = text(&endpoint["host"]);
        let port = endpoint["port"].as_u64().unwrap_or_default();
        let is_metadata = METADATA.iter().any(|prefix| host.starts_with(prefix));
        demand(!is_metadata, || format!("the metadata service {host}"))?;
        let ways = self.ways_to_model(asked, host, port)?;
        demand(!ways.is_empty(), || format!("the model's address {host}:{port}"))?;
        let has_key = !list(&model["keys"]).is_empty() || !model["headersSecret"].is_null();
        let is_opened = ways.iter().any(|way| !way.is_empty()) && host.ends_with(".svc");
        let is_plain = endpoint["encrypted"] == false && host != "localhost";
        demand(!is_plain || !has_key || is_opened, || format!("a key for {host}:{port} in plain"))?;
        if let [fields] = ways.as_slice() {
            for (object, field) in fields {
                self.by(*object, field.clone());
            }
        }
        Ok(())
    }

    /// The ways in which an address is allowed, each with the fields that it needs.
    fn ways_to_model(&self, asked: &Value, host: &str, port: u64) -> Result<Vec<Vec<Field>>, Untraced> {
        let mut ways = Vec::new();
        let own = (text(&asked["provider"]), host, port);
        if PROVIDERS.contains(&own) {
            ways.push(Vec::new());
        }
        let policy = self.policy;
        let floor = self.get(self.floor, "/spec/networkPolicy");
        let floor_lists = self.is_listed(self.floor, host, port);
        // A floor that allows public hosts leaves it to the policy to list them.
        let floor_opens = floor.is_null() || (floor["denyAll"] == false && is_public(host));
        if self.is_listed(policy, host, port) && (floor_opens || floor_lists) {
            let mut fields = vec![(policy, EGRESS.to_owned())];
            match (floor_opens, floor_lists) {
                (false, true) => fields.push((self.floor, EGRESS.to_owned())),
                (true, false) if !floor.is_null() => {
                    fields.push((self.floor, "/spec/networkPolicy/denyAll".to_owned()));
                }
                _ => {}
            }
            ways.push(fields);
        }
        let Some(reference) = asked["modelRef"].as_str() else {
            return Ok(ways);
        };
        let (namespace, name) = reference.split_once('/').unwrap_or((self.namespace(), reference));
        let is = |object: &Value| {
            object["kind"] == "Model"
                && object["metadata"]["name"] == name
                && object["metadata"]["namespace"] == namespace
        };
        let found = self.objects.iter().position(is);
        let found = found.ok_or_else(|| format!("there is no Model {reference}"))?;
        let own_port = self.get(found, "/spec/inference/port").as_u64().unwrap_or(8080);
        let is_service = host == format!("model-{name}.{namespace}.svc") && port == own_port;
        let field = "/spec/modelPolicy/allowedNamespaces";
        let lists = |policy| list(self.get(policy, field)).contains(&json!(namespace));
        let floor_minds = self.get(self.floor, field).is_array() || floor["denyAll"] == true;
        let is_opened = lists(policy) && (!floor_minds || lists(self.floor));
        if is_service && (namespace == SYSTEM || is_opened) {
            let mut fields = vec![(self.run, "/spec/model/modelRef".to_owned()), (policy, field.to_owned())];
            if floor_minds {
                fields.push((self.floor, field.to_owned()));
            }
            ways.push(fields);
        }
        Ok(ways)
    }
}
