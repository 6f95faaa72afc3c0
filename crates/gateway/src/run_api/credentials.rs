//! Authenticates tokens that are credentials of this gateway.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;
use sympozium_ipc::credential::KeyRing;
use sympozium_ipc::run_api::RUN_CREDENTIAL;

use super::traits::{AuthenticateError, TokenAuthenticator};

/// Tokens of the form `USER:PASSWORD`: the credential named [`RUN`]. The gateway creates it
/// ([`Gateway::credentials`](crate::Gateway::credentials)), and it changes with the gateway's keys.
#[derive(Debug, Clone)]
pub struct CredentialTokens {
    keys: Arc<RwLock<Arc<KeyRing>>>,
}

impl CredentialTokens {
    pub(crate) fn new(keys: Arc<RwLock<Arc<KeyRing>>>) -> Self {
        Self { keys }
    }

    fn verify(&self, token: &str, now: u64) -> Result<String, AuthenticateError> {
        let invalid = |why: &str| AuthenticateError::Invalid(why.to_owned());
        let (user, password) = token.split_once(':').ok_or_else(|| invalid("the token is no credential"))?;
        let keys = Arc::clone(&self.keys.read());
        let claims = keys.verify(user, password, now);
        let claims = claims.map_err(|refused| AuthenticateError::Invalid(refused.to_string()))?;
        // The credential of a part is for egress, and does not authenticate the run.
        if claims.name != RUN_CREDENTIAL {
            return Err(invalid("the credential is a part's, and not the run's own"));
        }
        Ok(claims.run)
    }
}

impl TokenAuthenticator for CredentialTokens {
    async fn authenticate(&self, token: &str) -> Result<String, AuthenticateError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(u64::MAX, |since_epoch| since_epoch.as_secs());
        self.verify(token, now)
    }
}

#[cfg(test)]
mod tests {
    use sympozium_ipc::credential::{Claims, KEY_BYTES};

    use super::*;

    #[test]
    fn the_credential_of_the_run_and_no_other() {
        let ring = |byte| KeyRing::single("k1", [byte; KEY_BYTES]).unwrap();
        let credentials = CredentialTokens::new(Arc::new(RwLock::new(Arc::new(ring(1)))));
        let token = |byte, name: &str| {
            let claims = Claims { run: "uid".into(), name: name.into(), expires: 10 };
            let signed = ring(byte).sign(&claims).unwrap();
            format!("{}:{}", signed.user, *signed.password)
        };
        let invalid = |why: &str| Err(AuthenticateError::Invalid(why.to_owned()));
        assert_eq!(credentials.verify(&token(1, RUN_CREDENTIAL), 9), Ok("uid".to_owned()));
        assert_eq!(credentials.verify(&token(1, RUN_CREDENTIAL), 10), invalid("the credential has expired"));
        assert_eq!(credentials.verify(&token(2, RUN_CREDENTIAL), 9), invalid("the credential is forged or damaged"));
        assert_eq!(
            credentials.verify(&token(1, "model"), 9),
            invalid("the credential is a part's, and not the run's own")
        );
        assert_eq!(credentials.verify("nothing", 9), invalid("the token is no credential"));
    }
}
