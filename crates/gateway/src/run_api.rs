//! The run API: reports, questions to approvers, and requests of a run, on the same address as the proxy.
//!
//! The messages are in [`sympozium_ipc::run_api`]. [`RunApi`] has one handler for each task: one authenticates tokens,
//! one stores reports, one asks approvers, and one schedules; their traits are in `traits`. [`local`] implements them
//! for one machine. [`crate::Gateway::serve_run_api`] starts to serve it.
//!
//! The order is the point, as it is for egress: authenticate the token before looking at anything else of the request;
//! acquire a slot; read the body within its bounds; then check everything that can be checked here: that a report and
//! each receipt follows from those before, that a question is the one that was asked with its ID, that the plan allows
//! what is requested. Only then a handler is called. A connection belongs to one run: it ends with the run, or if no
//! valid token arrives in time.
//!
//! Start reading at `Service::answer`.

mod body_budget;
mod connection;
mod credentials;
pub mod local;
mod questions;
pub(crate) mod reports;
mod request;
mod state;
mod tasks;
mod traits;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use serde::Serialize;
use sympozium_ipc::run_api::{ApiRefusal, ApiRefusalCode, MAX_ANSWER, MAX_REQUEST, RUN_CREDENTIAL};
use tokio::time::timeout;

use crate::events::{EventKind, EventLog, Reason, Requester};
use crate::plans::{Plans, Run};
use body_budget::{BodyBudget, BodyReservation};
use connection::ConnectionOwner;
use request::{refuse, too_large};
use state::RequestSlot;

pub use credentials::CredentialTokens;
pub use request::{
    MAX_APPROVAL_NAME, MAX_CHANNEL_NAME, MAX_MESSAGE, MAX_TASK, MAX_TASK_NAME, MAX_TIMEOUT, MAX_TOOL_NAME,
};
pub use traits::{
    AuthenticateError, HandlerError, Question, QuestionHandler, ReportCursor, ReportStore, Scheduler,
    TokenAuthenticator,
};

pub(crate) use connection::{PREFACE, PrefixedStream, serve};
pub(crate) use request::{RequestKind, RunRequest};
pub(crate) use state::RunState;

/// Maximum number of connections of one run. A bridge has one, and a second one when the first is lost.
pub const MAX_CONNECTIONS_OF_RUN: usize = 8;
/// Maximum number of streams of one connection: the requests of a run, and some more that are refused with a message.
pub const MAX_STREAMS: u32 = sympozium_ipc::run_api::MAX_REQUESTS + 8;
/// Maximum number of bytes of a request head, as HTTP/2 counts them: the longest token, and the rest.
pub const MAX_HEAD: u32 = sympozium_ipc::run_api::MAX_TOKEN as u32 + (8 << 10);
/// Maximum number of bodies of one run in memory: while they are read, and reports until they are stored. Further ones
/// wait.
pub const MAX_BODIES_OF_RUN: usize = 2;
/// Bytes of the bodies of all runs that are read at a time, reports until they are stored; a body of unknown length counts
/// as one of the maximum length. A report is in memory about four times while it is stored, and the gateway's pod has
/// 256 MiB. A namespace has no more of them than it leaves to others, so its runs that send slowly delay only each other.
pub const MAX_BODY_BYTES: usize = 24 << 20;
/// How long a body may take to arrive.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request may wait for memory for its body: longer than a body may take.
pub const ROOM_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for the authentication of a token.
pub const AUTHENTICATE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for storing a report, a schedule or a message. After it, the bridge is told to try again.
pub const HANDLER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of questions of a run in total.
pub const MAX_QUESTIONS: usize = 1000;
/// Maximum number of seconds that a question waits, whatever the plan says.
pub const MAX_WAIT_SECONDS: u64 = sympozium_api::limits::MAX_APPROVAL_SECONDS as u64;
/// Maximum number of unanswered questions of a run, whether or not a request still waits for them.
pub const MAX_OPEN_QUESTIONS: usize = sympozium_ipc::run_api::MAX_REQUESTS as usize;

/// One text for every defect of a token, as for credentials of the proxy.
const UNAUTHORISED: &str = "the gateway wants the token of a run that is not over\nhint: it ends with the run";

/// The handlers of the run API.
#[derive(Debug)]
pub struct RunApi<I, D, R, S> {
    pub authenticator: I,
    pub question_handler: D,
    pub report_store: R,
    pub scheduler: S,
}

/// The run API with the state of the gateway.
#[derive(Debug)]
pub(crate) struct Service<I, D, R, S> {
    api: RunApi<I, D, R, S>,
    plans: Arc<Plans>,
    events: Arc<EventLog>,
    rooms: Arc<BodyBudget>,
}

pub(crate) type ApiResponse = Response<Full<Bytes>>;

/// The run API without the types of its handlers: this is all that the gateway knows of it.
pub(crate) trait RunApiService: Send + Sync + 'static {
    fn answer(
        self: Arc<Self>,
        request: http::Request<Incoming>,
        whose: Arc<ConnectionOwner>,
    ) -> Pin<Box<dyn Future<Output = ApiResponse> + Send>>;
}

impl<I, D, R, S> RunApiService for Service<I, D, R, S>
where
    I: TokenAuthenticator,
    D: QuestionHandler,
    R: ReportStore,
    S: Scheduler,
{
    fn answer(
        self: Arc<Self>,
        request: http::Request<Incoming>,
        whose: Arc<ConnectionOwner>,
    ) -> Pin<Box<dyn Future<Output = ApiResponse> + Send>> {
        Box::pin(async move { Self::answer(&self, request, &whose).await })
    }
}

impl<I, D, R, S> Service<I, D, R, S> {
    pub(crate) fn new(api: RunApi<I, D, R, S>, plans: Arc<Plans>, events: Arc<EventLog>) -> Self {
        Self { api, plans, events, rooms: Arc::default() }
    }

    fn emit(&self, connection: u64, run: &str, outcome: EventKind) {
        let who = Requester { run: run.to_owned(), credential: RUN_CREDENTIAL.to_owned(), part: None };
        self.events.emit(connection, Some(who), None, outcome);
    }
}

impl<I, D, R, S> Service<I, D, R, S>
where
    I: TokenAuthenticator,
    D: QuestionHandler,
    R: ReportStore,
    S: Scheduler,
{
    /// Handles one request, from its head to its answer.
    async fn answer(self: &Arc<Self>, request: http::Request<Incoming>, whose: &Arc<ConnectionOwner>) -> ApiResponse {
        let run = match self.authenticate(&request, whose).await {
            Ok(run) => run,
            Err(refusal) => return to_response(Err::<(), _>(refusal)),
        };
        let target = request.uri().path_and_query().map_or("", |path_and_query| path_and_query.as_str());
        let kind = RequestKind::from_path(request.method(), target);
        let word = kind.as_ref().ok().map(|kind| kind.as_str());
        let answered = match kind {
            Ok(kind) => self.serve(kind, request.into_body(), &run, whose).await,
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = &answered {
            self.emit(
                whose.connection,
                run.uid(),
                EventKind::RequestRefused {
                    request: word,
                    code: refusal.code,
                    // This message may repeat what was sent.
                    detail: (refusal.code != ApiRefusalCode::Request).then(|| refusal.message.clone()),
                },
            );
        }
        match answered {
            Ok(answer) => answer,
            Err(refusal) => to_response(Err::<(), _>(refusal)),
        }
    }

    /// Authenticates a request. Until then, nothing but its token is looked at.
    async fn authenticate(
        &self,
        request: &http::Request<Incoming>,
        whose: &Arc<ConnectionOwner>,
    ) -> Result<Arc<Run>, ApiRefusal> {
        let unauthorized = |who: Option<&str>, reason, detail| {
            let who =
                who.map(|run| Requester { run: run.to_owned(), credential: RUN_CREDENTIAL.to_owned(), part: None });
            let outcome = EventKind::Refused { reason, detail };
            self.events.emit(whose.connection, who, None, outcome);
            run_ended_refusal()
        };
        let Some(token) = request::bearer_token(request.headers()) else {
            return Err(unauthorized(None, Reason::CredentialMissing, None));
        };
        let identifying = self.api.authenticator.authenticate(token);
        let uid = match timeout(AUTHENTICATE_TIMEOUT, identifying).await {
            Ok(Ok(uid)) => uid,
            Ok(Err(AuthenticateError::Invalid(why))) => {
                return Err(unauthorized(None, Reason::CredentialForged, Some(why)));
            }
            Ok(Err(AuthenticateError::Unavailable(why))) => {
                tracing::warn!(why, "a token could not be checked");
                return Err(unavailable_refusal());
            }
            Err(_) => return Err(unavailable_refusal()),
        };
        let run = self.plans.find_run(&uid);
        let run = run.map_err(|reason| unauthorized(Some(&uid), reason, None))?;
        match whose.claim(&run) {
            ClaimResult::Claimed => Ok(run),
            ClaimResult::OtherRun => {
                let why = "the connection is another run's".to_owned();
                Err(unauthorized(Some(&uid), Reason::RunUnknown, Some(why)))
            }
            ClaimResult::TooManyConnections => Err(refuse(
                ApiRefusalCode::Busy,
                format!("a run has at most {MAX_CONNECTIONS_OF_RUN} connections here"),
            )),
            ClaimResult::NoShare(reason) => {
                let _ = unauthorized(Some(&uid), reason, None);
                Err(refuse(ApiRefusalCode::Busy, reason.text()))
            }
        }
    }

    /// Reads the body and handles the request, unless the run ends first.
    async fn serve(
        self: &Arc<Self>,
        kind: RequestKind,
        body: Incoming,
        run: &Arc<Run>,
        whose: &ConnectionOwner,
    ) -> Result<ApiResponse, ApiRefusal> {
        let Some(seat) = RequestSlot::acquire(run) else {
            let message = "too many requests of this run are under way";
            return Err(refuse(ApiRefusalCode::Busy, message));
        };
        let connection = whose.connection;
        let (wish, room) = until_run_end(run, self.read_body(kind, body, run)).await?;
        // A question may wait for a day, and is small: its reservation is released here.
        let room = matches!(wish, RunRequest::Report(_)).then_some(room);
        match wish {
            // The last report may be what ends the run: it is answered all the same.
            RunRequest::Report(report) => {
                let taking = self.handle_report(connection, run, *report, (seat, room));
                Ok(to_response(Ok(taking.await?)))
            }
            RunRequest::Approval(request) => {
                let asking = self.handle_question(connection, run, request);
                Ok(to_response(Ok(until_run_end(run, asking).await?)))
            }
            RunRequest::Schedule(request) => {
                let doing = self.handle_schedule(run, request);
                Ok(to_response(Ok(until_run_end(run, doing).await?)))
            }
            RunRequest::Message(request) => {
                let doing = self.handle_message(run, request);
                Ok(to_response(Ok(until_run_end(run, doing).await?)))
            }
            RunRequest::Subruns(request) => {
                let doing = self.handle_subruns(run, request);
                Ok(to_response(Ok(until_run_end(run, doing).await?)))
            }
        }
    }

    /// Reads and parses the body. Returns the memory reservation with it.
    async fn read_body(
        &self,
        kind: RequestKind,
        body: Incoming,
        run: &Run,
    ) -> Result<(RunRequest, BodyReservation), ApiRefusal> {
        if body.size_hint().lower() > MAX_REQUEST as u64 {
            return Err(too_large());
        }
        let room = self.rooms.take(run, body.size_hint().exact());
        let room = timeout(ROOM_TIMEOUT, room).await.map_err(no_room_refusal)?;
        let room = room.map_err(no_room_refusal)?;
        let reading = timeout(BODY_TIMEOUT, Limited::new(body, MAX_REQUEST).collect());
        let broken = |message: &str| Err(refuse(ApiRefusalCode::Request, message));
        let bytes = match reading.await {
            Ok(Ok(read)) => read.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large()),
            Ok(Err(_)) => return broken("the request broke off"),
            Err(_) => return broken("the request did not arrive in time"),
        };
        Ok((kind.parse_body(&bytes)?, room))
    }
}

/// The result of claiming a connection for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClaimResult {
    Claimed,
    OtherRun,
    TooManyConnections,
    /// Its namespace has as many connections as it may have now.
    NoShare(Reason),
}

/// Runs `work` unless the run ends first. If both are ready, the result of `work` counts.
async fn until_run_end<T>(run: &Run, work: impl Future<Output = Result<T, ApiRefusal>>) -> Result<T, ApiRefusal> {
    tokio::select! {
        biased;
        done = work => done,
        () = run.wait_end() => Err(run_ended_refusal()),
    }
}

fn no_room_refusal<T>(_: T) -> ApiRefusal {
    refuse(ApiRefusalCode::Busy, "there is no room for another request")
}

fn run_ended_refusal() -> ApiRefusal {
    refuse(ApiRefusalCode::Token, UNAUTHORISED)
}

fn unavailable_refusal() -> ApiRefusal {
    let message = "whose token this is cannot be found out now";
    refuse(ApiRefusalCode::Failed, message)
}

fn to_response(answered: Result<impl Serialize, ApiRefusal>) -> ApiResponse {
    let status = match &answered {
        Ok(_) => StatusCode::OK,
        Err(refusal) => StatusCode::from_u16(refusal.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
    };
    let bytes = match &answered {
        Ok(answer) => serde_json::to_vec(answer),
        Err(refusal) => serde_json::to_vec(refusal),
    };
    match bytes {
        Ok(bytes) if bytes.len() <= MAX_ANSWER => {
            let length = bytes.len();
            let mut response = Response::new(Full::new(Bytes::from(bytes)));
            *response.status_mut() = status;
            let headers = response.headers_mut();
            headers.insert(CONTENT_LENGTH, length.into());
            headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
            response
        }
        // Our refusals are short, so this ends.
        _ => to_response(Err::<(), _>(refuse(
            ApiRefusalCode::Failed,
            format!("the answer has more than {MAX_ANSWER} bytes"),
        ))),
    }
}
