//! Names that are not interchangeable, each a type of its own, and other texts with a form.
//!
//! Reading one never fails: an object that is stored must be readable, or one bad object stops every watch. The form
//! is held by the schema in the API server, and by `check` everywhere else.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

mod forms;

/// A text that does not have the form that its place asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what}")]
pub struct InvalidText {
    /// The text, cut to a length that can be shown.
    pub text: String,
    /// What it should have been, with its article.
    pub what: &'static str,
}

/// Characters of a refused text that an error repeats.
const SHOWN: usize = 64;

macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident, $what:literal, $most:literal, $pattern:literal, $form:path;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
            #[serde(transparent)]
            pub struct $name(String);

            impl $name {
                /// Most characters that one has.
                pub const MOST: usize = $most;
                /// The form, as a regular expression for the schema.
                pub const PATTERN: &'static str = $pattern;

                /// Takes the text as it is; [`Self::check`] says whether it has the form.
                pub fn new(text: impl Into<String>) -> Self {
                    Self(text.into())
                }

                /// The text.
                pub fn as_str(&self) -> &str {
                    &self.0
                }

                /// Whether the text has the form that the schema asks for.
                ///
                /// # Errors
                ///
                /// When it has not.
                pub fn check(&self) -> Result<(), InvalidText> {
                    if self.0.chars().count() <= Self::MOST && $form(&self.0) {
                        return Ok(());
                    }
                    Err(InvalidText {
                        text: self.0.chars().take(SHOWN).collect(),
                        what: $what,
                    })
                }
            }

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.pad(&self.0)
                }
            }

            impl AsRef<str> for $name {
                fn as_ref(&self) -> &str {
                    &self.0
                }
            }

            impl From<&str> for $name {
                fn from(text: &str) -> Self {
                    Self(text.to_owned())
                }
            }

            impl From<String> for $name {
                fn from(text: String) -> Self {
                    Self(text)
                }
            }

            impl PartialEq<str> for $name {
                fn eq(&self, other: &str) -> bool {
                    self.0 == other
                }
            }

            impl PartialEq<&str> for $name {
                fn eq(&self, other: &&str) -> bool {
                    self.0 == *other
                }
            }

            impl JsonSchema for $name {
                fn schema_name() -> Cow<'static, str> {
                    stringify!($name).into()
                }

                fn inline_schema() -> bool {
                    true
                }

                // Without a description: the field's own says more.
                fn json_schema(_: &mut SchemaGenerator) -> Schema {
                    json_schema!({ "type": "string", "maxLength": Self::MOST, "pattern": Self::PATTERN })
                }
            }
        )*

        #[cfg(test)]
        /// Name, pattern, most characters and check of each type.
        const ALL: &[(&str, &str, usize, fn(&str) -> bool)] = &[
            $((stringify!($name), $pattern, $most, |text| $name::new(text).check().is_ok()),)*
        ];
    };
}

texts! {
    /// Of an `Agent` or a `SympoziumInstance`, which share one name space.
    AgentName, "a name of an agent", 253, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", forms::is_subdomain;
    /// Of an `AgentRun`.
    RunName, "a name of a run", 253, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", forms::is_subdomain;
    /// Of a `SkillPack`.
    SkillPackName, "a name of a skill pack", 253, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", forms::is_subdomain;
    /// Of a `SympoziumPolicy`.
    PolicyName, "a name of a policy", 253, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", forms::is_subdomain;
    /// Of a `Secret`.
    SecretName, "a name of a Secret", 253, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", forms::is_subdomain;
    /// Of a `Secret`, or empty where none is needed.
    OptionalSecretName, "a name of a Secret, or empty", 253, r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$", forms::is_subdomain_or_empty;
    /// Of any other object of Kubernetes: a ConfigMap, a RuntimeClass, a StorageClass, a warm pool.
    ObjectName, "a name of an object", 253, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", forms::is_subdomain;
    /// Of a namespace.
    NamespaceName, "a name of a namespace", 63, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", forms::is_label;
    /// Of a volume, a port or a container.
    LabelName, "a name of at most 63 lower-case letters, digits and `-`", 63, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", forms::is_label;
    /// A `Model` in the same namespace, or in another as `namespace/name`.
    ModelRef, "a name of a model, or `namespace/name`", 317, r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", forms::is_qualified_name;
    /// A `SkillPack` of the system namespace, or of another as `namespace/name`.
    PackRef, "a name of a skill pack, or `namespace/name`", 317, r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", forms::is_qualified_name;
    /// Of one skill in a pack; its text is the file of this name below `/skills`.
    SkillName, "a name of a skill", 63, r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", forms::is_skill_name;
    /// Where a file of a skill is, below the skill's directory. No component begins with `.` or `-`.
    SkillFilePath, "a path below the skill's directory", 255, r"^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$", forms::is_skill_file_path;
    /// Of a tool that a pack declares.
    ToolName, "a name of a tool", 64, r"^[a-z][a-z0-9_]*$", forms::is_tool_name;
    /// What a rule about tools names: `tool`, `pack/tool`, `pack/*`, `namespace/pack/tool` or `namespace/pack/*`; `*` for all.
    ToolPattern, "`tool`, `pack/tool`, `pack/*`, `namespace/pack/tool`, `namespace/pack/*` or `*`", 384, r"^(\*|[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?(/(\*|[A-Za-z0-9._-]+))?)$", forms::is_tool_pattern;
    /// A container image as one writes it in a pod.
    ImageRef, "an image reference", 512, r"^[!-~]+$", forms::is_printable_word;
    /// A host name, an IPv4 address, or `*.` and a domain for every host below it.
    HostPattern, "a host name", 253, r"^(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$", forms::is_host_pattern;
    /// Of an environment variable, as Kubernetes takes them.
    EnvName, "a name of an environment variable", 256, r"^[-._A-Za-z][-._A-Za-z0-9]*$", forms::is_env_name;
    /// A path from the root, as a place to mount something.
    MountPath, "a path from the root", 1024, r"^/[^:\x00-\x1f]*$", forms::is_mount_path;
    /// The UID that the API server gave an object.
    Uid, "a UID", 64, r"^[A-Za-z0-9-]+$", forms::is_uid;
    /// A SHA-256 sum.
    Digest, "`sha256:` and 64 hexadecimal digits", 71, r"^sha256:[0-9a-f]{64}$", forms::is_digest;
}

impl Uid {
    /// Whether it is a UUID as the API server writes them: 32 lower-case digits with dashes at their places. Other
    /// spellings of the same number are other texts.
    pub fn is_canonical_uuid(&self) -> bool {
        forms::is_canonical_uuid(&self.0)
    }
}

#[cfg(test)]
mod tests;
