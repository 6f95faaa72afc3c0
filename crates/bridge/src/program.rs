//! The process: what it reads, how it restricts itself, and in which order.

mod gateway;
mod plan_wait;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use clap::Parser as _;
use sympozium_api::guarantee::Guarantee;
use sympozium_exec::features::is_gvisor;
use sympozium_exec::lockdown::{Lockdown, LockdownReport};
use sympozium_program::{Failure, start_logging};
use tokio::runtime::Runtime;

use crate::arguments::{Arguments, Command, ServeArguments};
use crate::egress_client::GatewayAddress;
use crate::inputs::{self, Directories, InputError, Inputs, TokenRequirement};
use crate::key::ProviderKey;
use crate::{bridge, check_network};

pub use gateway::{GatewayTarget, MAX_ADDRESSES};

/// Everything that a run is served with. From here on the process can access nothing else.
pub struct ServeContext {
    pub inputs: Inputs,
    /// The model key, if the plan has one and it was set.
    pub key: Option<ProviderKey>,
    pub gateway: GatewayAddress,
    pub lockdown: LockdownReport,
    /// The directories of the door and the skills.
    pub directories: Directories,
    /// Certificates of CAs that are trusted for servers besides the public ones, as PEM.
    pub roots: Option<Vec<u8>>,
    /// Guarantees that the platform around the skills holds.
    pub platform: Vec<Guarantee>,
    /// Packs whose executor the backend has replaced with ours, which verifies requests.
    pub verifying: BTreeSet<String>,
}

/// The whole program. The first argument is the program's name.
pub fn main(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        // `--help` and `--version` end up here too, and are not failures.
        Err(error) => error.exit(),
    };
    let outcome = match &arguments.command {
        Some(Command::CheckNetwork(arguments)) => check_network::main(arguments),
        None => serve(&arguments.serve),
    };
    outcome.unwrap_or_else(|failure| failure.print())
}

fn serve(arguments: &ServeArguments) -> Result<ExitCode, Failure> {
    start_logging(&arguments.log);
    let started = start(arguments)?;
    let runtime = build_runtime()?;
    Ok(runtime.block_on(bridge::run(started)))
}

/// One straight sequence. Before the lockdown, only the gateway's address and the plan are read, and the digest of the
/// plan is checked before a byte of it is parsed.
fn start(arguments: &ServeArguments) -> Result<ServeContext, Failure> {
    let (Some(digest), Some(target)) = (&arguments.plan_digest, &arguments.gateway) else {
        let error = anyhow!("there is no run to serve");
        return Err(Failure::new(error, "name it with --plan-digest and --gateway"));
    };
    let places = arguments.directories();
    // While names can still be resolved: /etc/hosts is out of reach afterwards.
    let gateway = target.resolve().map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("the gateway {target} cannot be found"));
        let hint = "pods know it by their hostAliases; elsewhere name an address, or unix:PATH";
        Failure::new(error, hint)
    })?;
    // The plan names the variables that hold a key.
    let plan = plan_wait::wait_for_plan(&places.input, digest, arguments.input_timeout())?;
    // Before the lockdown, which closes /proc, and before anything else is read: after this, no key is left in the
    // environment.
    let key = ProviderKey::take(&plan.model.keys).map_err(|error| {
        let hint = "put the provider's key, and nothing else, into the Secret that the model names";
        Failure::new(error, hint)
    })?;
    if key.is_none() && !plan.model.keys.is_empty() {
        let variables: Vec<&str> = (plan.model.keys.iter()).map(|key| key.variable.as_str()).collect();
        tracing::warn!(?variables, "none of the variables for the model's key is set");
    }
    // Out of reach afterwards, wherever it is.
    let roots = match &arguments.certificates {
        Some(path) => Some(inputs::read_certificates(path).map_err(input_failure)?),
        None => None,
    };
    // While the kernel can still be asked. The result is cached.
    let gvisor = is_gvisor();
    let lockdown = lock_down(&places, &gateway)?;
    let token_need = match gateway {
        GatewayAddress::Tcp { .. } => TokenRequirement::Required,
        GatewayAddress::Unix(_) => TokenRequirement::Optional,
    };
    let inputs = Inputs::read(plan, digest.clone(), &places, token_need).map_err(input_failure)?;
    tracing::info!(
        run = %inputs.plan.run.uid,
        plan = %inputs.plan_digest,
        gateway = %target,
        gvisor,
        key = key.as_ref().map(|key| key.variable().as_str()),
        credentials = inputs.credentials.len(),
        "the run's inputs were read"
    );
    Ok(ServeContext {
        inputs,
        key,
        gateway,
        lockdown,
        directories: places,
        roots,
        platform: arguments.platform_guarantees(),
        verifying: arguments.verifying.iter().cloned().collect(),
    })
}

fn lock_down(places: &Directories, gateway: &GatewayAddress) -> Result<LockdownReport, Failure> {
    let lockdown = Lockdown {
        readable: vec![places.input.clone(), places.headers.clone(), places.script.clone()],
        writable: vec![places.ipc.clone(), places.door.clone()],
        tcp_connect: gateway.tcp_ports(),
    };
    let locked_down = lockdown.apply_available().map_err(|error| {
        let error = anyhow::Error::new(error).context("the bridge cannot restrict itself");
        let hint = "a container's seccomp profile must let it use seccomp and prctl; RuntimeDefault does";
        Failure::new(error, hint)
    })?;
    let missing = locked_down.missing();
    if missing.is_empty() {
        tracing::info!(landlock = locked_down.landlock_abi, "locked down");
    } else {
        tracing::warn!(
            landlock = locked_down.landlock_abi,
            live = ?locked_down.live,
            ?missing,
            "locked down, without what this kernel does not have"
        );
    }
    Ok(locked_down)
}

fn input_failure(error: InputError) -> Failure {
    let hint = error.hint();
    Failure::new(error, hint)
}

/// Single-threaded.
pub(crate) fn build_runtime() -> Result<Runtime, Failure> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime cannot be started")?;
    Ok(runtime)
}
