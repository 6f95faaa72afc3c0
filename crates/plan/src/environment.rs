//! Environment variables that must not be set on a container of a run, whatever the policy: they decide which code
//! runs, where credentials go, or what our own parts believe.
//!
//! No such list is ever complete. What holds without it: a run's variables reach only the agent, which starts no
//! programs, and a hook gets only those that its author names in `envFromRun`. This list bounds what an author can name
//! by mistake.

/// Who sets a variable on a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetBy {
    /// The author of the pack, hook or model server of the container, who also chose what runs in it.
    Author,
    /// Another user: the author of a run, or of the agent's defaults for its runs.
    Others,
}

/// Why a variable of this name is denied, as the end of a sentence; `None` when it is allowed. Case is ignored: some
/// programs read both spellings, and none of these names is harmless in another case.
pub fn denial_reason(name: &str, by: SetBy) -> Option<&'static str> {
    let name = name.to_ascii_uppercase();
    let mut groups = DENIED.iter();
    let (why, _) = groups.find(|(_, patterns)| {
        let mut patterns = patterns.split_ascii_whitespace();
        patterns.any(|pattern| matches_pattern(pattern, &name))
    })?;
    match (why, by) {
        (DenialReason::Settings, SetBy::Author) => None,
        (why, _) => Some(why.message()),
    }
}

/// Matches a whole name, or a pattern with `*` at its beginning or end.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    }
}

/// The effect of a variable that makes it dangerous.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DenialReason {
    /// It chooses libraries and modules that a program loads.
    Loads,
    /// A shell or an interpreter takes code, options or search paths from it.
    Interprets,
    /// It is a command, or options that contain a command.
    Starts,
    /// It chooses the compiler, linker or toolchain of a build, or their options.
    Builds,
    /// It decides whom a program connects to, trusts, or sends a credential to.
    Trusts,
    /// Programs, ours included, read from it who and where they are.
    Identifies,
    /// It says where a program's configuration is, which can name commands, plugins and hosts. An author may configure
    /// the program that they chose; other users may not.
    Settings,
}

impl DenialReason {
    const fn message(self) -> &'static str {
        match self {
            Self::Loads => "it chooses libraries or modules that programs load",
            Self::Interprets => "a shell or interpreter takes code, options or paths from it",
            Self::Starts => "programs start what it names",
            Self::Builds => "it chooses the tools of a build, or their options",
            Self::Trusts => "it decides where connections and credentials go",
            Self::Identifies => "programs, ours among them, learn from it who and where they are",
            Self::Settings => "it chooses the settings of a program, which can name commands to start",
        }
    }
}

/// Whether a variable of this name probably holds a credential, which the agent must not have.
pub fn looks_like_credential(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS"]
        .iter()
        .any(|word| name.split(['_', '-', '.']).any(|part| part == *word || part.ends_with("PASSWORD")))
        || name.ends_with("APIKEY")
}

/// Names in upper case, by effect; `*` at the beginning or end matches any text. For a name in several groups, the
/// first group counts.
const DENIED: &[(DenialReason, &str)] = &[
    (
        DenialReason::Loads,
        "DYLD_* EMACSLOADPATH ERL_* GCONV_PATH GEM_HOME GEM_PATH GETCONF_DIR GIO_EXTRA_MODULES GLIBC_TUNABLES* \
         GTK_MODULES GTK_PATH* KRB5_CONFIG LD_* LIBMYSQL_PLUGINS LIBMYSQL_PLUGIN_DIR LOCPATH MAGICK_* \
         MALLOC_TRACE NLSPATH ODBCINI ODBCINSTINI ODBCSYSINI OPENSSL_CONF OPENSSL_ENGINES OPENSSL_MODULES \
         QT_PLUGIN_PATH SASL_PATH SSH_SK_PROVIDER TZDIR VALGRIND_LIB",
    ),
    (
        DenialReason::Interprets,
        "AWKLIBPATH AWKPATH BASHOPTS BASH_ENV BASH_FUNC_* BASH_LOADABLES_PATH BUNDLE_* BUN_INSPECT_PRELOAD \
         BUN_OPTIONS CDPATH CLASSPATH CLOUDSDK_PYTHON* CONFIG_SITE CORECLR_* COR_ENABLE_PROFILING COR_PROFILER* \
         DOTNET_ADDITIONAL_DEPS DOTNET_STARTUP_HOOKS ELIXIR_ERL_OPTIONS ENV EXINIT FPATH GLOBIGNORE GUILE_* \
         GVIMINIT IFS INPUTRC IRBRC JAVA_OPTS JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS JULIA_DEPOT_PATH JULIA_LOAD_PATH \
         JULIA_PROJECT LUA_* NODE_OPTIONS NODE_PATH NODE_REPL_EXTERNAL_MODULE PERL5DB PERL5LIB PERL5OPT \
         PERL5SHELL PERLLIB PHPRC PHP_INI_SCAN_DIR PROMPT_COMMAND PS0 PS1 PS2 PS4 PSQLRC PYTHONBREAKPOINT \
         PYTHONEXECUTABLE PYTHONHOME PYTHONINSPECT PYTHONPATH PYTHONPLATLIBDIR PYTHONPYCACHEPREFIX PYTHONSTARTUP \
         PYTHONUSERBASE PYTHONWARNINGS RUBYLIB RUBYOPT RUBYSHELL R_ENVIRON* R_LIBS* R_PROFILE* SHELLOPTS \
         TCLLIBPATH VIMINIT VIMRUNTIME ZDOTDIR _JAVA_OPTIONS",
    ),
    (
        DenialReason::Starts,
        "*_ASKPASS *_BROWSER *_EDITOR *_EXTERNAL_DIFF *_PAGER *_RSH BROWSER EDITOR FCEDIT FZF_DEFAULT_* \
         GIT_ALLOW_PROTOCOL GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_ATTR_SOURCE GIT_COMMON_DIR GIT_CONFIG* GIT_DIR \
         GIT_EXEC_PATH GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_PROTOCOL_FROM_USER GIT_PROXY_COMMAND GIT_SSH* \
         GIT_TEMPLATE_DIR GIT_TRACE* GIT_WORK_TREE HELM_BIN HELM_PLUGINS HGEDITOR HGRCPATH KREW_ROOT KUBECTL_* \
         LESS LESSCLOSE LESSEDIT LESSKEY* LESSOPEN MANPAGER MORE NPM_CONFIG_* PAGER RIPGREP_CONFIG_PATH \
         RSYNC_CONNECT_PROG SHELL SVN_SSH TAR_OPTIONS VISUAL YARN_* ZIPOPT",
    ),
    (
        DenialReason::Builds,
        "AR AS CARGO_* CC CGO_* CMAKE_* COMPILER_PATH CPATH CPP CXX C_INCLUDE_PATH GCC_EXEC_PREFIX GNUMAKEFLAGS \
         GOENV GOFLAGS GOROOT GOTOOLCHAIN GOTOOLDIR GRADLE_OPTS LD LIBRARY_PATH MAKEFILES MAKEFLAGS MAVEN_ARGS \
         MAVEN_OPTS MFLAGS RUSTC* RUSTDOC* RUSTFLAGS RUSTUP_*",
    ),
    (
        DenialReason::Trusts,
        "*_PROXY AWS_CONTAINER_* AWS_ENDPOINT_URL* GIT_SSL_* GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES GOPROXY \
         HELM_KUBE* HOSTALIASES KUBECONFIG KUBERC KUBERNETES_* LOCALDOMAIN NIS_PATH RESOLV_HOST_CONF RES_OPTIONS \
         SSH_AUTH_SOCK SSLKEYLOGFILE",
    ),
    (DenialReason::Identifies, "HOME HOSTNAME PATH SKILL_TOKEN* SYMPOZIUM_* USER"),
    (
        DenialReason::Settings,
        "ACKRC ANSIBLE_* AWS_CONFIG_FILE AWS_DATA_PATH AWS_SHARED_CREDENTIALS_FILE AZURE_CONFIG_DIR \
         AZURE_EXTENSION_DIR BOTO_CONFIG CLOUDSDK_CONFIG COMPOSER_HOME CONDARC CONTAINERS_CONF* \
         CONTAINERS_REGISTRIES_CONF* CURL_HOME DOCKER_* GEMRC GNUPGHOME GRADLE_USER_HOME HELM_CONFIG_HOME \
         HELM_DATA_HOME HELM_REGISTRY_CONFIG HELM_REPOSITORY_CONFIG JAVA_HOME NETRC PGPASSFILE PGSERVICEFILE \
         PGSYSCONFDIR PIP_* REGISTRY_AUTH_FILE TF_CLI_* TF_DATA_DIR TF_PLUGIN_CACHE_DIR UV_* WGETRC \
         XDG_CONFIG_DIRS XDG_CONFIG_HOME XDG_DATA_DIRS XDG_DATA_HOME XDG_RUNTIME_DIR",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dangerous_names_are_denied_in_any_case() {
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
            for by in [SetBy::Author, SetBy::Others] {
                assert!(denial_reason(name, by).is_some(), "{name} {by:?}");
            }
        }
    }

    /// Each makes some program run a command, load a library or send a credential elsewhere.
    #[test]
    fn names_that_reviews_found_are_denied() {
        for name in [
            "PYTHONWARNINGS",
            "BROWSER",
            "GIT_DIR",
            "GIT_TRACE2_EVENT",
            "KUBECTL_EXTERNAL_DIFF",
            "LESSOPEN",
            "LESS",
            "PAGER",
            "AWS_PAGER",
            "EDITOR",
            "KUBE_EDITOR",
            "VISUAL",
            "HELM_PLUGINS",
            "GOFLAGS",
            "npm_config_script_shell",
            "NPM_CONFIG_PREFIX",
            "LUA_INIT",
            "LUA_INIT_5_4",
            "PHPRC",
            "MAKEFLAGS",
            "CARGO_BUILD_RUSTC_WRAPPER",
            "RUSTC_WRAPPER",
            "R_PROFILE_USER",
            "SSH_ASKPASS",
            "RSYNC_RSH",
            "TAR_OPTIONS",
            "ZDOTDIR",
            "AWS_ENDPOINT_URL_S3",
            "PIP_PROXY",
        ] {
            for by in [SetBy::Author, SetBy::Others] {
                assert!(denial_reason(name, by).is_some(), "{name} {by:?}");
            }
        }
    }

    #[test]
    fn settings_of_a_program_belong_to_the_one_who_chose_the_program() {
        for name in [
            "AWS_CONFIG_FILE",
            "AWS_SHARED_CREDENTIALS_FILE",
            "DOCKER_CONFIG",
            "XDG_CONFIG_HOME",
            "PIP_INDEX_URL",
            "ANSIBLE_CONFIG",
        ] {
            assert!(denial_reason(name, SetBy::Others).is_some(), "{name}");
            assert_eq!(denial_reason(name, SetBy::Author), None, "{name}");
        }
    }

    #[test]
    fn the_table_is_in_order_and_has_no_name_twice() {
        let mut all = Vec::new();
        for (_, patterns) in DENIED {
            let patterns: Vec<_> = patterns.split_ascii_whitespace().collect();
            assert!(patterns.is_sorted(), "{patterns:?}");
            all.extend(patterns);
        }
        for pattern in &all {
            assert_eq!(*pattern, pattern.to_ascii_uppercase());
            assert!(pattern.trim_matches('*').len() > 1, "{pattern}");
        }
        all.sort_unstable();
        let before = all.len();
        all.dedup();
        assert_eq!(all.len(), before);
        // Groups that are allowed for authors must come after all groups that are not.
        assert!(DENIED.is_sorted_by_key(|(why, _)| *why));
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
            "HELM_DRIVER",
            "XDG_CACHE_HOME",
            "PYTHONUNBUFFERED",
            "RUST_LOG",
            "AWS_REGION",
            "TF_VAR_region",
            "PGHOST",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "LESSON",
            "",
        ] {
            assert_eq!(denial_reason(name, SetBy::Others), None, "{name}");
        }
    }

    #[test]
    fn credentials_are_noticed() {
        for name in ["OPENAI_API_KEY", "gh_token", "DB_PASSWORD", "PGPASSWORD", "CLIENT_SECRET", "MYAPIKEY"] {
            assert!(looks_like_credential(name), "{name}");
        }
        for name in ["API_URL", "KEYBOARD", "TOKENIZER", "SECRETARY", "MAX_TOKENS"] {
            assert!(!looks_like_credential(name), "{name}");
        }
    }
}
