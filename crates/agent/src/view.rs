//! Reads the agent's view of the plan, `agent.json`.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sympozium_api::run_plan::AgentView;
use tokio::time::{Instant, sleep};

pub const MAX_BYTES: u64 = 1 << 20;
/// inotify would be no simpler: the kubelet swaps a link to a link.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    #[error("{} did not appear in {} s", path.display(), elapsed.as_secs())]
    Missing { path: PathBuf, elapsed: Duration },
    #[error("{} cannot be read", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} has more than {MAX_BYTES} bytes", .0.display())]
    TooLarge(PathBuf),
    #[error("{} cannot be understood", path.display())]
    Invalid {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

pub async fn wait_for_view(input: &Path, timeout: Duration) -> Result<AgentView, ViewError> {
    let path = input.join(AgentView::FILE);
    let start = Instant::now();
    loop {
        if let Some(view) = read_view(&path)? {
            return Ok(view);
        }
        let elapsed = start.elapsed();
        if elapsed >= timeout {
            return Err(ViewError::Missing { path, elapsed });
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// `None` while the file does not exist; it is renamed into place, so it is never partial.
fn read_view(path: &Path) -> Result<Option<AgentView>, ViewError> {
    let unreadable = |source| ViewError::Unreadable { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(ViewError::TooLarge(path.to_owned()));
    }
    let view = serde_json::from_slice(&bytes).map_err(|source| ViewError::Invalid { path: path.to_owned(), source })?;
    Ok(Some(view))
}
