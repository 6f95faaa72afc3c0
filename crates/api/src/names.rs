//! Names that are not interchangeable, each a type of its own, and other texts with a fixed syntax.
//!
//! Deserialisation never fails: a stored object must be readable, or one bad object stops every watch. The API server
//! enforces the syntax by the schema, and all other code by `check`.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

mod syntax;

/// A text that does not have the required syntax.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what}")]
pub struct InvalidText {
    /// The text, truncated to a length that can be printed.
    pub text: String,
    /// What it should have been, with its article.
    pub what: &'static str,
}

/// Characters of an invalid text that an error repeats.
const MAX_REPEATED_CHARS: usize = 64;

macro_rules! text_types {
    ($($(#[$doc:meta])* $name:ident, $what:literal, $most:literal, $pattern:literal, $form:path;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
            #[serde(transparent)]
            pub struct $name(String);

            impl $name {
                /// Maximum number of characters.
                pub const MOST: usize = $most;
                /// The syntax, as a regular expression for the schema.
                pub const PATTERN: &'static str = $pattern;

                /// Takes the text as it is; [`Self::check`] verifies the syntax.
                pub fn new(text: impl Into<String>) -> Self {
                    Self(text.into())
                }

                /// The text as it was written.
                pub fn as_str(&self) -> &str {
                    &self.0
                }

                /// Checks that the text has the syntax that the schema requires.
                ///
                /// # Errors
                ///
                /// When it has not.
                pub fn check(&self) -> Result<(), InvalidText> {
                    if self.0.chars().count() <= Self::MOST && $form(&self.0) {
                        return Ok(());
                    }
                    Err(InvalidText {
                        text: self.0.chars().take(MAX_REPEATED_CHARS).collect(),
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

                // Without a description: that of the field is more specific.
                fn json_schema(_: &mut SchemaGenerator) -> Schema {
                    json_schema!({ "type": "string", "maxLength": Self::MOST, "pattern": Self::PATTERN })
                }
            }
        )*

        #[cfg(test)]
        /// Name, pattern, maximum length and check of each type.
        const ALL: &[(&str, &str, usize, fn(&str) -> bool)] = &[
            $((stringify!($name), $pattern, $most, |text| $name::new(text).check().is_ok()),)*
        ];
    };
}

text_types! {
    /// The name of an `Agent` or a `SympoziumInstance`, which share one name space.
    AgentName, "a name of an agent", 253, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", syntax::is_subdomain;
    /// The name of an `AgentRun`.
    RunName, "a name of a run", 253, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", syntax::is_subdomain;
    /// The name of a `SkillPack`.
    SkillPackName, "a name of a skill pack", 253, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", syntax::is_subdomain;
    /// The name of a `SympoziumPolicy`.
    PolicyName, "a name of a policy", 253, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", syntax::is_subdomain;
    /// The name of a `Secret`.
    SecretName, "a name of a Secret", 253, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", syntax::is_subdomain;
    /// The name of a `Secret`, or empty where none is needed.
    OptionalSecretName, "a name of a Secret, or empty", 253, r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$", syntax::is_subdomain_or_empty;
    /// The name of any other Kubernetes object: a ConfigMap, a RuntimeClass, a StorageClass, a warm pool.
    ObjectName, "a name of an object", 253, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", syntax::is_subdomain;
    /// The name of a namespace.
    NamespaceName, "a name of a namespace", 63, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", syntax::is_label;
    /// The name of a volume, a port or a container.
    LabelName, "a name of at most 63 lower-case letters, digits and `-`", 63, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", syntax::is_label;
    /// A `Model` in the same namespace, or in another one as `namespace/name`.
    ModelRef, "a name of a model, or `namespace/name`", 317, r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", syntax::is_qualified_name;
    /// A `SkillPack` of the system namespace, or of another one as `namespace/name`.
    PackRef, "a name of a skill pack, or `namespace/name`", 317, r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", syntax::is_qualified_name;
    /// The name of one skill in a pack; its text is the file of this name below `/skills`.
    SkillName, "a name of a skill", 63, r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", syntax::is_skill_name;
    /// The path of a skill's file below the skill's directory. No component begins with `.` or `-`.
    SkillFilePath, "a path below the skill's directory", 255, r"^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$", syntax::is_skill_file_path;
    /// The name of a tool that a pack declares.
    ToolName, "a name of a tool", 64, r"^[a-z][a-z0-9_]*$", syntax::is_tool_name;
    /// The pattern of a rule about tools: `tool`, `pack/tool`, `pack/*`, `namespace/pack/tool` or `namespace/pack/*`;
    /// `*` for all.
    ToolPattern, "`tool`, `pack/tool`, `pack/*`, `namespace/pack/tool`, `namespace/pack/*` or `*`", 384, r"^(\*|[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?(/(\*|[A-Za-z0-9._-]+))?)$", syntax::is_tool_pattern;
    /// A container image as in a pod.
    ImageRef, "an image reference", 512, r"^[!-~]+$", syntax::is_printable_word;
    /// A host name, an IPv4 address, or `*.` and a domain for every host below it.
    HostPattern, "a host name", 253, r"^(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$", syntax::is_host_pattern;
    /// The name of an environment variable, as Kubernetes accepts it.
    EnvName, "a name of an environment variable", 256, r"^[-._A-Za-z][-._A-Za-z0-9]*$", syntax::is_env_name;
    /// An absolute path where something is mounted.
    MountPath, "a path from the root", 1024, r"^/[^:\x00-\x1f]*$", syntax::is_mount_path;
    /// The UID that the API server gave an object.
    Uid, "a UID", 64, r"^[A-Za-z0-9-]+$", syntax::is_uid;
    /// A SHA-256 sum.
    Digest, "`sha256:` and 64 hexadecimal digits", 71, r"^sha256:[0-9a-f]{64}$", syntax::is_digest;
}

impl Uid {
    /// Whether it is a UUID as the API server writes it: 32 lower-case digits with dashes at their positions. Other
    /// spellings of the same number are different texts.
    pub fn is_canonical_uuid(&self) -> bool {
        syntax::is_canonical_uuid(&self.0)
    }
}

#[cfg(test)]
mod tests;
