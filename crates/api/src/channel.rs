//! Chat connections of an agent.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::agent::CredentialRef;
use crate::limits;
use crate::open::{Volume, VolumeMount};
use crate::schema;

/// One chat connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct Channel {
    /// Where the chat is: `telegram`, `slack`, `discord` or `whatsapp`.
    #[serde(rename = "type")]
    pub type_: ChannelType,
    /// The Secret with the connection's keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_ref: Option<CredentialRef>,
    /// Whose messages reach the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_control: Option<AccessControl>,
    /// Words that silence the agent and wake it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub triggers: Option<Triggers>,
    /// What only Slack has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slack: Option<SlackOptions>,
    /// Volumes of the connection's pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::VOLUMES))]
    pub volumes: Vec<Volume>,
    /// Where it sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::VOLUMES))]
    pub volume_mounts: Vec<VolumeMount>,
}

/// Where a chat is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(transform = schema::drop_description)]
pub enum ChannelType {
    /// Telegram.
    Telegram,
    /// Slack.
    Slack,
    /// Discord.
    Discord,
    /// WhatsApp.
    Whatsapp,
}

/// Whose messages reach the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct AccessControl {
    /// Senders whose messages do; every sender's when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NAMES), inner(length(max = limits::WORD)))]
    pub allowed_senders: Vec<String>,
    /// Senders whose messages do not, even if they are in `allowedSenders`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NAMES), inner(length(max = limits::WORD)))]
    pub denied_senders: Vec<String>,
    /// Chats whose messages do; every chat's when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NAMES), inner(length(max = limits::WORD)))]
    pub allowed_chats: Vec<String>,
    /// The answer to the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::SHORT_TEXT))]
    pub deny_message: Option<String>,
}

/// Words that silence an agent and wake it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct Triggers {
    /// Words after which the agent is silent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NAMES), inner(length(max = limits::WORD)))]
    pub stop_keywords: Vec<String>,
    /// Words after which it answers again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NAMES), inner(length(max = limits::WORD)))]
    pub start_keywords: Vec<String>,
}

/// What only Slack has. An emoji `none` means no reaction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct SlackOptions {
    /// The reaction to a message that starts a run; `eyes` when absent, `none` for no reaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::WORD))]
    pub emoji_on_trigger: Option<String>,
    /// The reaction to a stop word; `mute` when absent, `none` for no reaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::WORD))]
    pub emoji_on_stop: Option<String>,
    /// The reaction to a start word; `loud_sound` when absent, `none` for no reaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::WORD))]
    pub emoji_on_start: Option<String>,
    /// Whether answers go into a thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threading: Option<bool>,
    /// What starts a run: `mention`, `dm`, `channel`; all of them when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub allowed_triggers: Vec<SlackTrigger>,
    /// Whether a thread that the agent has answered in stays its own, without mention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_stickiness: Option<bool>,
}

/// What starts a run from Slack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(transform = schema::drop_description)]
pub enum SlackTrigger {
    /// The agent's name in a message.
    Mention,
    /// A direct message.
    Dm,
    /// Any message in a channel that it is in.
    Channel,
}

/// How a chat connection is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct ChannelStatus {
    /// Which one.
    #[serde(rename = "type")]
    pub type_: ChannelType,
    /// In a word.
    #[schemars(length(max = limits::WORD))]
    pub status: String,
    /// When it last worked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_health_check: Option<Time>,
    /// More about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::SHORT_TEXT))]
    pub message: Option<String>,
}
