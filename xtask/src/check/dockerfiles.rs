//! What can be known about a Dockerfile without building it. It is not much: only Docker can tell whether it builds.

use std::path::Path;

use super::Source;

/// Programs that fetch what is then run.
const DOWNLOADERS: &[&str] = &["curl ", "wget "];

/// Whether a line of commands starts a program that fetches something. One that is only installed does not.
fn fetches(line: &str) -> bool {
    let mut commands = line.split(['&', '|', ';', '(']);
    commands.any(|command| {
        let program = command.split_whitespace().next().unwrap_or_default();
        DOWNLOADERS.iter().any(|downloader| downloader.trim() == program)
    })
}
/// What must stand in the same instruction.
const CHECKSUM: &str = "sha256sum -c";
/// The folders that hold the members of the workspace; a test compares them with `Cargo.toml`.
const MEMBERS: &[&str] = &["crates", "test", "xtask"];
/// The user that every image of ours ends as.
const USERS: &[&str] = &["1000", "1000:1000"];

/// `exists` is asked with paths relative to the root, `syntax_error` with shell scripts.
pub fn check(
    source: &Source,
    exists: impl Fn(&Path) -> bool,
    syntax_error: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let path = Path::new(&source.path);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name != "Dockerfile" && !name.starts_with("Dockerfile.") {
        return Vec::new();
    }
    let directory = path.parent().unwrap_or(Path::new(""));
    let mut problems = Vec::new();
    let mut stages = Vec::new();
    let mut arguments = Vec::new();
    let mut user = None;
    let (mut copied, mut builds) = (Vec::new(), false);
    for (number, instruction) in instructions(&source.text) {
        let (keyword, rest) = instruction.split_once(char::is_whitespace).unwrap_or((&instruction, ""));
        let mut words: Vec<&str> = rest.split_whitespace().collect();
        let mut say = |what: String| problems.push(format!("{}:{number}: {what}", source.path));
        match keyword.to_ascii_uppercase().as_str() {
            "ARG" => arguments.extend(rest.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))),
            "FROM" => {
                user = None;
                let image = filled(words.first().unwrap_or(&""), &arguments);
                let is_stage = stages.contains(&image);
                // A port may stand before the last slash; a tag comes after it.
                let tag = image.rsplit('/').next().and_then(|last| last.split_once(':')).map(|(_, tag)| tag);
                if !is_stage && !tag.is_some_and(|tag| !tag.is_empty() && tag != "latest") {
                    say(format!("`{image}` has no fixed tag; name one, by ARG if it should be changeable"));
                }
                if let [_, keyword, stage] = words[..]
                    && keyword.eq_ignore_ascii_case("as")
                {
                    stages.push(stage.to_owned());
                }
            }
            "COPY" | "ADD" => {
                let from = words.iter().find_map(|word| word.strip_prefix("--from="));
                let unknown_stage = from.filter(|from| !stages.iter().any(|stage| stage == from));
                if let Some(stage) = unknown_stage {
                    say(format!("no stage before this is called `{stage}`"));
                }
                words.retain(|word| !word.starts_with("--"));
                words.pop();
                for file in words {
                    copied.push(file.trim_end_matches('/').to_owned());
                    if file.contains("://") {
                        say(format!("`{file}` is fetched without a checksum; use RUN with `{CHECKSUM}`"));
                    } else if from.is_none() && !exists(&directory.join(file)) && !exists(Path::new(file)) {
                        say(format!("`{file}` is neither beside this file nor in the repository's root"));
                    }
                }
            }
            // The other form is a list of words, which no shell reads.
            "RUN" if !rest.starts_with('[') => {
                builds |= rest.contains("cargo build") && rest.contains("--package");
                if let Some(error) = syntax_error(rest) {
                    say(format!("the shell cannot read it: {error}"));
                }
                if fetches(rest) && !rest.contains(CHECKSUM) {
                    say(format!("something is fetched and not compared with `{CHECKSUM}`"));
                }
            }
            "USER" => user = Some(rest.trim().to_owned()),
            _ => {}
        }
    }
    if builds {
        // Cargo reads the manifest of every member, whatever is built.
        let missing = MEMBERS.iter().filter(|member| !copied.iter().any(|copied| copied == *member));
        for member in missing {
            problems.push(format!("{}: cargo needs every member of the workspace; copy `{member}/`", source.path));
        }
    }
    if !user.as_deref().is_some_and(|user| USERS.contains(&user)) {
        problems.push(format!("{}: the last stage must end as USER 1000:1000", source.path));
    }
    problems
}

/// Instructions with the lines that they begin on: continued lines joined, comments and empty lines gone.
fn instructions(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut is_continued = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (content, continues) = match line.strip_suffix('\\') {
            Some(content) => (content.trim_end(), true),
            None => (line, false),
        };
        match found.last_mut() {
            Some((_, instruction)) if is_continued => {
                instruction.push(' ');
                instruction.push_str(content);
            }
            _ => found.push((number + 1, content.to_owned())),
        }
        is_continued = continues;
    }
    found
}

/// A word with `${NAME}` replaced by what ARG says.
fn filled(word: &str, arguments: &[(String, String)]) -> String {
    let mut word = word.to_owned();
    for (name, value) in arguments {
        word = word.replace(&format!("${{{name}}}"), value.trim_matches('"'));
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let source = Source { path: "examples/a/Dockerfile".into(), text: text.into() };
        let exists = |path: &Path| ["examples/a/here", "images/script.sh"].iter().any(|known| Path::new(known) == path);
        check(&source, exists, super::super::syntax_error)
    }

    #[test]
    fn a_sound_file_is_fine() {
        let text = "# a comment\nARG BASE=base:1\nARG V=3\nFROM alpine:${V} AS tools\nRUN apk add x \\\n    # in between\n    && true\n\
                    FROM ${BASE}\nCOPY --from=tools --chmod=0755 /usr/bin/x /usr/local/bin/x\nCOPY here images/script.sh /usr/local/bin/\n\
                    RUN [\"/bin/x\", \"(\"]\nUSER 1000:1000\nENTRYPOINT [\"/x\"]\n";
        assert_eq!(problems(text), Vec::<String>::new());
        let source = Source { path: "docs/Dockerfiles.md".into(), text: "no Dockerfile".into() };
        assert_eq!(check(&source, |_| false, |_| None), Vec::<String>::new());
    }

    /// As `Cargo.toml` has them.
    #[test]
    fn every_member_is_known() {
        let manifest = include_str!("../../../Cargo.toml");
        let members = manifest.lines().find_map(|line| line.strip_prefix("members = "));
        let members: Vec<&str> = members.unwrap().split('"').skip(1).step_by(2).collect();
        for member in members {
            let folder = member.split('/').next().unwrap();
            assert!(MEMBERS.contains(&folder), "{member}");
        }
    }

    #[test]
    fn what_builds_has_the_whole_workspace() {
        let build = "FROM a:1\nCOPY here /x\nRUN cargo build --package x\nUSER 1000\n";
        let expected = |folder: &str| {
            format!("examples/a/Dockerfile: cargo needs every member of the workspace; copy `{folder}/`")
        };
        assert_eq!(problems(build), MEMBERS.iter().map(|member| expected(member)).collect::<Vec<_>>());
        let other = "FROM a:1\nRUN cargo install x\nUSER 1000\n";
        assert_eq!(problems(other), Vec::<String>::new());
    }

    #[test]
    fn each_rule_is_held() {
        for (line, part) in [
            ("FROM alpine\nUSER 1000", "Dockerfile:1: `alpine` has no fixed tag"),
            ("FROM host:5000/alpine\nUSER 1000", "no fixed tag"),
            ("FROM alpine:latest\nUSER 1000", "no fixed tag"),
            ("ARG T=latest\nFROM alpine:${T}\nUSER 1000", "no fixed tag"),
            ("FROM a:1\nCOPY missing /x\nUSER 1000", "Dockerfile:2: `missing` is neither"),
            ("FROM a:1\nCOPY --from=build /a /b\nUSER 1000", "no stage before this is called `build`"),
            ("FROM a:1\nADD https://example.org/x /x\nUSER 1000", "without a checksum"),
            ("FROM a:1\nRUN if true\nUSER 1000", "the shell cannot read it"),
            ("FROM a:1\nRUN curl -o x https://example.org/x\nUSER 1000", "not compared"),
            ("FROM a:1\nUSER root", "must end as USER 1000"),
            ("FROM a:1\nUSER 1000\nFROM b:1", "must end as USER 1000"),
        ] {
            let problems = problems(line);
            assert_eq!(problems.len(), 1, "{line}: {problems:?}");
            assert!(problems[0].contains(part), "{line}: {problems:?}");
        }
    }
}
