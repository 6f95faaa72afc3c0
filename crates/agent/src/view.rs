//! What the agent reads about its run, once it is there.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sympozium_api::run_plan::AgentView;
use tokio::time::{Instant, sleep};

/// Bytes of a view. A plan, which holds more, has half as many.
pub const MAX_BYTES: u64 = 1 << 20;
/// How often to look. Watching would need no less: the kubelet puts a link to a link into place.
const PAUSE: Duration = Duration::from_millis(50);

/// Why the view cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UnusableView {
    /// It did not come.
    #[error("{} did not appear in {} s", path.display(), waited.as_secs())]
    Missing {
        /// Where it should be.
        path: PathBuf,
        /// How long it was waited for.
        waited: Duration,
    },
    /// It cannot be read.
    #[error("{} cannot be read", path.display())]
    Unreadable {
        /// Where it is.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is longer than any is.
    #[error("{} has more than {MAX_BYTES} bytes", .0.display())]
    TooLarge(PathBuf),
    /// It says something that this release does not understand.
    #[error("{} cannot be understood", path.display())]
    NotOne {
        /// Where it is.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// The view, as soon as it is there.
///
/// # Errors
///
/// When it is not there in time, or cannot be used.
pub async fn appearing(input: &Path, patience: Duration) -> Result<AgentView, UnusableView> {
    let path = input.join(AgentView::FILE);
    let start = Instant::now();
    loop {
        if let Some(view) = read(&path)? {
            return Ok(view);
        }
        let waited = start.elapsed();
        if waited >= patience {
            return Err(UnusableView::Missing { path, waited });
        }
        sleep(PAUSE).await;
    }
}

/// The view, if it is there. Whoever puts it there renames it into place.
fn read(path: &Path) -> Result<Option<AgentView>, UnusableView> {
    let unreadable = |source| UnusableView::Unreadable { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(UnusableView::TooLarge(path.to_owned()));
    }
    let view =
        serde_json::from_slice(&bytes).map_err(|source| UnusableView::NotOne { path: path.to_owned(), source })?;
    Ok(Some(view))
}
