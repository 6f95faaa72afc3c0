//! Authenticates the client by the credential in `Proxy-Authorization`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sympozium_ipc::credential::{Claims, KeyRing, MAX_USER_BYTES, PASSWORD_BYTES};
use sympozium_ipc::strict_head::Fields;
use zeroize::Zeroizing;

use crate::events::Reason;

/// Maximum number of characters of the header: a name, a colon and a password in Base64.
const MAX_VALUE_BYTES: usize = (MAX_USER_BYTES + 1 + PASSWORD_BYTES).div_ceil(3) * 4;

/// The claims of the credential, if it is valid at `now`.
///
/// # Errors
///
/// Returns an error if there is not exactly one credential, or if it is not valid.
pub fn authenticate(keys: &KeyRing, fields: &Fields<'_>, now: u64) -> Result<Claims, Reason> {
    let is_ours = |name: &&str| name.eq_ignore_ascii_case("proxy-authorization");
    let mut sent = fields.iter().filter(|(name, _)| is_ours(name));
    let Some((_, value)) = sent.next() else {
        return Err(Reason::CredentialMissing);
    };
    // Of two headers, another proxy might have used the other one.
    if sent.next().is_some() {
        return Err(Reason::CredentialMalformed);
    }
    let decoded = decode_basic(value).ok_or(Reason::CredentialMalformed)?;
    let text = str::from_utf8(&decoded).map_err(|_| Reason::CredentialMalformed)?;
    let (user, password) = text.split_once(':').ok_or(Reason::CredentialMalformed)?;
    Ok(keys.verify(user, password, now)?)
}

fn decode_basic(value: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (scheme, rest) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") || rest.len() > MAX_VALUE_BYTES {
        return None;
    }
    STANDARD.decode(rest.trim_ascii()).ok().map(Zeroizing::new)
}

#[cfg(test)]
mod tests {
    use sympozium_ipc::credential::KEY_BYTES;

    use super::*;

    fn ring() -> KeyRing {
        KeyRing::single("k1", [3; KEY_BYTES]).unwrap()
    }

    fn claims(expires: u64) -> Claims {
        Claims { run: "r".into(), name: "web".into(), expires }
    }

    fn value(expires: u64) -> Vec<u8> {
        let signed = ring().sign(&claims(expires)).unwrap();
        let pair = format!("{}:{}", signed.user, *signed.password);
        format!("Basic {}", STANDARD.encode(pair)).into_bytes()
    }

    #[test]
    fn one_good_credential() {
        let good = value(10);
        let lower = [b"bAsIc ", &good[6..]].concat();
        for value in [&good, &lower] {
            let fields = vec![("Host", &b"x"[..]), ("proxy-AUTHORIZATION", value.as_slice())];
            assert_eq!(authenticate(&ring(), &fields, 9), Ok(claims(10)));
        }
        let sent = |value: &[u8]| authenticate(&ring(), &vec![("Proxy-Authorization", value)], 9);
        assert_eq!(sent(&value(9)), Err(Reason::CredentialExpired));
        for broken in
            [&b""[..], b"Basic", b"Basic ", b"Basic !!!!", b"Bearer eDp5", b"Basic eHk=", b"Basic /w==", &[b'B'; 2000]]
        {
            assert_eq!(sent(broken), Err(Reason::CredentialMalformed));
        }
        assert_eq!(authenticate(&ring(), &vec![], 9), Err(Reason::CredentialMissing));
        // The header for servers is not the one for proxies.
        let other = vec![("Authorization", good.as_slice())];
        assert_eq!(authenticate(&ring(), &other, 9), Err(Reason::CredentialMissing));
        let twice = vec![("Proxy-Authorization", good.as_slice()); 2];
        assert_eq!(authenticate(&ring(), &twice, 9), Err(Reason::CredentialMalformed));
    }
}
