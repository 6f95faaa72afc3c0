//! The cost of a run: its tokens, by the operator's price table. A model without a price has no cost.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;
use sympozium_api::agent_run::{CostEstimate, CostSource, TokenUsage};

/// Maximum size of a price table.
pub const MAX_BYTES: usize = 1 << 20;
/// Maximum number of models in a price table.
pub const MAX_MODELS: usize = 10_000;
/// Maximum price of a million tokens. A higher number was written in another unit.
const MAX_PRICE: f64 = 1_000_000.0;
/// Maximum number of characters of a model's key: it is written to `status.costEstimate.priceKey`, whose schema accepts
/// no more.
const MAX_KEY_CHARS: usize = 256;
/// Maximum number of characters of a currency.
const MAX_CURRENCY_CHARS: usize = 8;
/// The number of tokens that a price is for, and the fraction of the currency's unit that a cost is counted in.
const MILLION: i128 = 1_000_000;

/// A price table: prices by model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prices {
    currency: String,
    models: BTreeMap<String, Price>,
}

/// Millionths of the currency's unit per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Price {
    input: i64,
    output: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PriceTableFile {
    currency: String,
    models: BTreeMap<String, PriceEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PriceEntry {
    input: f64,
    output: f64,
}

/// Why a text is not a price table.
#[derive(Debug, thiserror::Error)]
pub enum InvalidPrices {
    /// Larger than [`MAX_BYTES`].
    #[error("the table has {0} bytes; {MAX_BYTES} are read")]
    TooLarge(usize),
    /// More models than [`MAX_MODELS`].
    #[error("the table has {0} models; {MAX_MODELS} are read")]
    TooManyModels(usize),
    /// Not the expected JSON.
    #[error(
        "the table is not `{{\"currency\": …, \"models\": {{\"provider/model\": {{\"input\": …, \"output\": …}}}}}}`"
    )]
    Malformed(#[from] serde_json::Error),
    /// Not a currency.
    #[error("`{0}` is no currency such as `USD`")]
    Currency(String),
    /// The key of a model is too long.
    #[error("the key of a model has {0} characters; {MAX_KEY_CHARS} are read")]
    KeyTooLong(usize),
    /// A price is negative or too high.
    #[error("a million tokens of `{0}` cannot cost less than nothing or more than {MAX_PRICE}")]
    Price(String),
}

impl Prices {
    /// Parses a table: prices per million tokens, by `provider/model` or `model`; `*` at the end of a key matches any
    /// text.
    ///
    /// # Errors
    ///
    /// When the table is invalid. One invalid price makes the whole table invalid.
    pub fn parse(text: &str) -> Result<Self, InvalidPrices> {
        if text.len() > MAX_BYTES {
            return Err(InvalidPrices::TooLarge(text.len()));
        }
        let written: PriceTableFile = serde_json::from_str(text)?;
        if written.models.len() > MAX_MODELS {
            return Err(InvalidPrices::TooManyModels(written.models.len()));
        }
        let is_currency = (1..=MAX_CURRENCY_CHARS).contains(&written.currency.len())
            && written.currency.bytes().all(|byte| byte.is_ascii_alphabetic());
        if !is_currency {
            return Err(InvalidPrices::Currency(written.currency));
        }
        let mut models = BTreeMap::new();
        for (model, PriceEntry { input, output }) in written.models {
            let characters = model.chars().count();
            if characters > MAX_KEY_CHARS {
                return Err(InvalidPrices::KeyTooLong(characters));
            }
            let micro = |price: f64| {
                let fits = (0.0..=MAX_PRICE).contains(&price);
                // Within bounds that a whole number holds exactly.
                fits.then(|| (price * 1_000_000.0).round() as i64)
            };
            let (Some(input), Some(output)) = (micro(input), micro(output)) else {
                return Err(InvalidPrices::Price(model));
            };
            models.insert(model, Price { input, output });
        }
        Ok(Self { currency: written.currency, models })
    }

    /// The cost of this usage of a model; `None` where the table has no price.
    pub fn estimate(&self, provider: &str, model: &str, usage: &TokenUsage, now: Time) -> Option<CostEstimate> {
        let (key, price) = self.find_price(provider, model)?;
        let cost = |tokens: i64, price: i64| {
            let whole = i128::from(tokens.max(0)) * i128::from(price);
            // Rounded up: an estimate is never below the real cost.
            i64::try_from((whole + MILLION - 1) / MILLION).unwrap_or(i64::MAX)
        };
        let input = cost(usage.input_tokens, price.input);
        let output = cost(usage.output_tokens, price.output);
        Some(CostEstimate {
            amount_micro: input.saturating_add(output),
            input_amount_micro: Some(input),
            output_amount_micro: Some(output),
            currency: self.currency.clone(),
            source: CostSource::DefaultTable,
            price_key: Some(key.to_owned()),
            estimated_at: Some(now),
        })
    }

    /// The most specific entry: with the provider before without, and of those with `*` the longest.
    fn find_price(&self, provider: &str, model: &str) -> Option<(&str, Price)> {
        let qualified = format!("{provider}/{model}");
        for name in [qualified.as_str(), model] {
            if let Some((key, price)) = self.models.get_key_value(name) {
                return Some((key, *price));
            }
        }
        for name in [qualified.as_str(), model] {
            let fits = |key: &str| key.strip_suffix('*').is_some_and(|prefix| name.starts_with(prefix));
            let fitting = self.models.iter().filter(|(key, _)| fits(key));
            if let Some((key, price)) = fitting.max_by_key(|(key, _)| key.len()) {
                return Some((key, *price));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"{"currency": "USD", "models": {
        "openai/gpt-4o-mini": {"input": 0.15, "output": 0.6},
        "gpt-4o-mini": {"input": 1, "output": 1},
        "claude-*": {"input": 3, "output": 15},
        "claude-haiku-*": {"input": 0.8, "output": 4},
        "free": {"input": 0, "output": 0}
    }}"#;

    fn usage(input: i64, output: i64) -> TokenUsage {
        TokenUsage { input_tokens: input, output_tokens: output, ..TokenUsage::default() }
    }

    #[test]
    fn tokens_cost_what_the_table_says() {
        let prices = Prices::parse(TABLE).expect("a table");
        let cost = |provider: &str, model: &str, input, output| {
            let now: Time = serde_json::from_str("\"2026-01-01T00:00:00Z\"").expect("a time");
            let estimate = prices.estimate(provider, model, &usage(input, output), now)?;
            assert_eq!(estimate.currency, "USD");
            let parts = [estimate.input_amount_micro, estimate.output_amount_micro];
            Some((estimate.amount_micro, parts, estimate.price_key?))
        };
        assert_eq!(
            cost("openai", "gpt-4o-mini", 1_000_000, 500_000),
            Some((450_000, [Some(150_000), Some(300_000)], "openai/gpt-4o-mini".to_owned()))
        );
        // A fraction of a millionth is rounded up.
        let key = |found: Option<(i64, _, String)>| found.map(|price| (price.0, price.2));
        let found = key(cost("openai", "gpt-4o-mini", 1, 0));
        assert_eq!(found, Some((1, "openai/gpt-4o-mini".to_owned())));
        let found = key(cost("azure", "gpt-4o-mini", 1_000_000, 0));
        assert_eq!(found, Some((1_000_000, "gpt-4o-mini".to_owned())));
        let found = key(cost("anthropic", "claude-haiku-4", 1_000_000, 0));
        assert_eq!(found, Some((800_000, "claude-haiku-*".to_owned())));
        let found = key(cost("anthropic", "claude-opus-4", 0, 1_000_000));
        assert_eq!(found, Some((15_000_000, "claude-*".to_owned())));
        assert_eq!(key(cost("x", "free", 5, 5)), Some((0, "free".to_owned())));
        assert_eq!(cost("openai", "gpt-5", 1, 1), None);
        // No price table and no token count overflows.
        let found = key(cost("anthropic", "claude-x", i64::MAX, i64::MAX));
        assert_eq!(found.map(|price| price.0), Some(i64::MAX));
        assert_eq!(key(cost("x", "free", -5, -5)).map(|price| price.0), Some(0));
    }

    #[test]
    fn what_is_no_table_is_none() {
        for text in [
            "",
            "[]",
            r#"{"models": {}}"#,
            r#"{"currency": "", "models": {}}"#,
            r#"{"currency": "US Dollar", "models": {}}"#,
            r#"{"currency": "USD", "models": {"m": {"input": -1, "output": 1}}}"#,
            r#"{"currency": "USD", "models": {"m": {"input": 1e7, "output": 1}}}"#,
            r#"{"currency": "USD", "models": {"m": {"input": 1}}}"#,
            r#"{"currency": "USD", "models": {"m": {"input": 1, "output": 1, "cached": 1}}}"#,
        ] {
            assert!(Prices::parse(text).is_err(), "{text}");
        }
        // As the schema of the status counts: characters, not bytes.
        let of_key = |key: &str| {
            let price = r#"{"input": 1, "output": 1}"#;
            Prices::parse(&format!(r#"{{"currency": "USD", "models": {{"{key}": {price}}}}}"#))
        };
        assert!(of_key(&"ä".repeat(MAX_KEY_CHARS)).is_ok());
        assert!(of_key(&"m".repeat(MAX_KEY_CHARS + 1)).is_err());
        assert!(Prices::parse(&" ".repeat(MAX_BYTES + 1)).is_err());
        assert!(Prices::parse(r#"{"currency": "EUR", "models": {}}"#).is_ok());
    }
}
