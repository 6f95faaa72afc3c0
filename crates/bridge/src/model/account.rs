//! The limits of a run's model usage, and the usage so far.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sympozium_api::run_plan::{RunLimits, WireFormat};
use sympozium_ipc::door::{Refusal, RefusalCode};

use super::usage::{ReportedUsage, UsageCounter, estimate_tokens, min_tokens};
use super::{ExchangeStats, ModelUsage};
use crate::rate::{LimitExceeded, RateBounds, RateLimiter};

/// Maximum number of concurrent model requests.
pub const MAX_CONCURRENT: u32 = 4;

#[derive(Debug)]
pub struct Account {
    max_requests: u32,
    max_tokens: Option<u64>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rate_limiter: RateLimiter,
    used: ModelUsage,
    /// Estimated tokens of requests that are in flight.
    reserved: u64,
}

impl Account {
    pub fn new(limits: &RunLimits) -> Self {
        let bounds = RateBounds {
            concurrent: MAX_CONCURRENT,
            per_minute: limits.model_requests_per_minute,
            total: u64::from(limits.model_requests),
        };
        Self {
            max_requests: limits.model_requests,
            max_tokens: limits.model_tokens,
            state: Mutex::new(State {
                rate_limiter: RateLimiter::new(bounds),
                used: ModelUsage::default(),
                reserved: 0,
            }),
        }
    }

    pub fn usage(&self) -> ModelUsage {
        self.state.lock().used
    }

    /// Counts one more request, if the limits allow it.
    fn begin(&self, reserve: u64, now: Instant) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        let used = state.used;
        let spoken_for = used.tokens().saturating_add(state.reserved);
        if let Some(most) = self.max_tokens
            && spoken_for >= most
        {
            return Err(refusal(
                RefusalCode::Budget,
                format!("the run may use {most} tokens of its model, and {} are used or under way", spoken_for),
                None,
            ));
        }
        state.rate_limiter.check(now).map_err(|wait| match wait {
            LimitExceeded::Concurrent => {
                refusal(RefusalCode::Busy, format!("{MAX_CONCURRENT} requests to the model are under way"), None)
            }
            LimitExceeded::PerMinute(time) => {
                refusal(RefusalCode::Rate, "too many requests to the model in this minute".to_owned(), Some(time))
            }
            LimitExceeded::Total => refusal(
                RefusalCode::Budget,
                format!("the run may make {} requests to its model", self.max_requests),
                None,
            ),
        })?;
        state.rate_limiter.begin(now);
        state.used.requests += 1;
        state.reserved = state.reserved.saturating_add(reserve);
        Ok(())
    }

    fn end(&self, reserved: u64, spent: &ExchangeStats) {
        let mut state = self.state.lock();
        state.rate_limiter.end();
        state.reserved = state.reserved.saturating_sub(reserved);
        let used = &mut state.used;
        let add = |sum: &mut u64, more: Option<u64>| *sum = sum.saturating_add(more.unwrap_or(0));
        add(&mut used.input_tokens, spent.input_tokens);
        add(&mut used.output_tokens, spent.output_tokens);
        used.estimated |= spent.estimated;
    }
}

fn refusal(code: RefusalCode, message: String, wait: Option<Duration>) -> Refusal {
    // One millisecond more than needed, so that an agent that waits this long is admitted.
    let wait = wait.map(|wait| u64::try_from(wait.as_millis()).map_or(u64::MAX, |millis| millis + 1));
    Refusal { code, message, retry_after_ms: wait }
}

/// One request and its answer. However the exchange ends, its callback is called exactly once.
pub struct Exchange {
    account: Arc<Account>,
    wire: WireFormat,
    /// Reserved tokens; `None` before the request is counted.
    reserved: Option<u64>,
    sent: u64,
    /// Bytes of text in the request.
    text: u64,
    status: Option<u16>,
    received: u64,
    counter: Option<UsageCounter>,
    on_end: Option<Box<dyn FnOnce(ExchangeStats) + Send>>,
}

impl Exchange {
    /// `ended` gets the totals when the exchange ends.
    pub fn new(account: Arc<Account>, wire: WireFormat, ended: Box<dyn FnOnce(ExchangeStats) + Send>) -> Self {
        Self {
            account,
            wire,
            reserved: None,
            sent: 0,
            text: 0,
            status: None,
            received: 0,
            counter: None,
            on_end: Some(ended),
        }
    }

    /// Asks the account for a request with this many bytes of text.
    pub fn begin(&mut self, text: u64) -> Result<(), Refusal> {
        self.text = text;
        let reserve = estimate_tokens(text);
        self.account.begin(reserve, Instant::now())?;
        self.reserved = Some(reserve);
        Ok(())
    }

    /// Sets the number of sent bytes. From now on the provider may have read the request.
    pub fn set_sent(&mut self, bytes: u64) {
        self.sent = bytes;
    }

    /// Records the head of the answer.
    pub fn begin_answer(&mut self, status: u16, content_type: Option<&[u8]>) {
        self.status = Some(status);
        self.counter = Some(UsageCounter::new(self.wire, content_type));
    }

    /// Counts more of the answer, before redaction.
    pub fn count_received(&mut self, bytes: &[u8]) {
        self.received += bytes.len() as u64;
        if let Some(counter) = &mut self.counter {
            counter.count(bytes);
        }
    }

    /// Bytes of the answer so far.
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Ends the exchange, with an error if it was not completed. Only the first call has an effect.
    pub fn end(&mut self, error: Option<String>) {
        let Some(ended) = self.on_end.take() else {
            return;
        };
        let spent = self.stats(error);
        if let Some(reserved) = self.reserved {
            self.account.end(reserved, &spent);
        }
        ended(spent);
    }

    fn stats(&mut self, error: Option<String>) -> ExchangeStats {
        let reported = self.counter.as_mut().map(UsageCounter::finish).unwrap_or_default();
        let mut spent = ExchangeStats {
            status: self.status,
            sent_bytes: self.sent,
            received_bytes: self.received,
            input_tokens: reported.input,
            output_tokens: reported.output,
            estimated: false,
            error,
        };
        // A request that the provider rejects costs nothing. One that was cut off before it had a status may have been
        // read.
        let worked = self.status.is_none_or(|status| (200..300).contains(&status));
        if self.sent > 0 && worked {
            self.fill_estimates(&mut spent, reported);
        }
        spent
    }

    fn fill_estimates(&self, spent: &mut ExchangeStats, reported: ReportedUsage) {
        if reported.input.is_none() {
            spent.input_tokens = Some(estimate_tokens(self.text));
            spent.estimated = true;
        }
        let text = self.counter.as_ref().map_or(0, UsageCounter::text_bytes);
        // A reported output count is that of the moment when it was reported, also if the answer broke off later. It is
        // accepted if it is plausible for the text that arrived.
        let output = match reported.output {
            None => Some(estimate_tokens(text)),
            Some(count) if count < min_tokens(text) => Some(min_tokens(text)),
            Some(_) => None,
        };
        if output.is_some() {
            spent.output_tokens = output;
            spent.estimated = true;
        }
    }
}

/// The agent dropped the answer.
impl Drop for Exchange {
    fn drop(&mut self) {
        self.end(Some("the agent did not wait for the end of the answer".to_owned()));
    }
}
