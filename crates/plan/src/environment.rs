//! Environment variables that nobody may set on a container of a run, whatever the policy: they decide which code runs,
//! where credentials go, or what our own parts believe.

/// Whether a variable of this name is refused. Case does not count: some programs read both spellings, and none of
/// these names means something harmless in another case.
pub fn is_denied(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    DENIED.binary_search(&name.as_str()).is_ok()
        || DENIED_STARTS.iter().any(|start| name.starts_with(start))
        || DENIED_ENDS.iter().any(|end| name.ends_with(end))
}

/// Whether a variable of this name probably holds a credential, which the agent must not have.
pub fn looks_like_a_credential(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS"]
        .iter()
        .any(|word| name.split(['_', '-', '.']).any(|part| part == *word || part.ends_with("PASSWORD")))
        || name.ends_with("APIKEY")
}

/// Whole names, in order.
const DENIED: &[&str] = &[
    "BASHOPTS",
    "BASH_ENV",
    "BASH_LOADABLES_PATH",
    "CDPATH",
    "CLASSPATH",
    "DOTNET_STARTUP_HOOKS",
    "ENV",
    "GCONV_PATH",
    "GETCONF_DIR",
    "GIT_ASKPASS",
    "GIT_EDITOR",
    "GIT_EXEC_PATH",
    "GIT_EXTERNAL_DIFF",
    "GIT_PAGER",
    "GIT_PROXY_COMMAND",
    "GIT_SEQUENCE_EDITOR",
    "GIT_TEMPLATE_DIR",
    "GLOBIGNORE",
    "HOME",
    "HOSTALIASES",
    "HOSTNAME",
    "IFS",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "KUBECONFIG",
    "LOCALDOMAIN",
    "LOCPATH",
    "MALLOC_TRACE",
    "NIS_PATH",
    "NLSPATH",
    "NODE_OPTIONS",
    "NODE_PATH",
    "OPENSSL_CONF",
    "PATH",
    "PERL5DB",
    "PERL5LIB",
    "PERL5OPT",
    "PERLLIB",
    "PROMPT_COMMAND",
    "PS4",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONUSERBASE",
    "RESOLV_HOST_CONF",
    "RES_OPTIONS",
    "RUBYLIB",
    "RUBYOPT",
    "SHELL",
    "SHELLOPTS",
    "SSLKEYLOGFILE",
    "TZDIR",
    "USER",
    "_JAVA_OPTIONS",
];

/// Beginnings of names.
const DENIED_STARTS: &[&str] = &[
    "BASH_FUNC_",
    "DYLD_",
    "GIT_CONFIG",
    "GIT_SSH",
    "GLIBC_TUNABLES",
    "KUBERNETES_",
    "LD_",
    "SKILL_TOKEN",
    "SYMPOZIUM_",
];

/// Endings of names: programs invent proxy variables for each protocol.
const DENIED_ENDS: &[&str] = &["_PROXY"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dangerous_names_are_denied_in_any_case() {
        assert!(DENIED.is_sorted());
        for name in [
            "PATH",
            "HOME",
            "LD_PRELOAD",
            "LD_LIBRARY_PATH",
            "LD_X",
            "BASH_ENV",
            "ENV",
            "IFS",
            "PYTHONPATH",
            "PYTHONSTARTUP",
            "NODE_OPTIONS",
            "PERL5OPT",
            "RUBYOPT",
            "GIT_SSH",
            "GIT_SSH_COMMAND",
            "KUBECONFIG",
            "KUBERNETES_SERVICE_HOST",
            "SYMPOZIUM_SKILL_PACK",
            "SKILL_TOKEN",
            "SKILL_TOKEN_FILE",
            "HTTP_PROXY",
            "https_proxy",
            "NO_PROXY",
            "ALL_PROXY",
            "ftp_Proxy",
            "path",
            "Ld_Preload",
            "sympozium_x",
            "SHELL",
            "USER",
            "HOSTNAME",
            "OPENSSL_CONF",
            "DOTNET_STARTUP_HOOKS",
            "BASH_LOADABLES_PATH",
            "SSLKEYLOGFILE",
        ] {
            assert!(is_denied(name), "{name}");
        }
    }

    #[test]
    fn ordinary_names_are_allowed() {
        for name in [
            "API_URL",
            "SSL_CERT_FILE",
            "SSL_CERT_DIR",
            "GH_NO_UPDATE_NOTIFIER",
            "GIT_AUTHOR_NAME",
            "GIT_COMMITTER_EMAIL",
            "LLMFIT_HOST_PROC",
            "SKILL_REPO",
            "EVENT_BUS_URL",
            "LANG",
            "TZ",
            "PATHS",
            "MY_PATH",
            "HOMEPAGE",
            "PROXY",
            "OLD_WORLD",
            "ENVIRONMENT",
            "",
        ] {
            assert!(!is_denied(name), "{name}");
        }
    }

    #[test]
    fn credentials_are_noticed() {
        for name in ["OPENAI_API_KEY", "gh_token", "DB_PASSWORD", "PGPASSWORD", "CLIENT_SECRET", "MYAPIKEY"] {
            assert!(looks_like_a_credential(name), "{name}");
        }
        for name in ["API_URL", "KEYBOARD", "TOKENIZER", "SECRETARY", "MAX_TOKENS"] {
            assert!(!looks_like_a_credential(name), "{name}");
        }
    }
}
