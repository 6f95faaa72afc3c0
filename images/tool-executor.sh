#!/usr/bin/env bash
# The executor for skill images without our base image: reads requests from files, runs them, writes results to files.
#
# Needs bash 4.4, jq 1.6, and coreutils or busybox. Start it as the image's command, as UID 1000. For images, see
# docs/custom-sidecars.md; for the protocol and the exit codes, docs/ipc-protocol.md. Environment variables configure it:
#
#   SYMPOZIUM_IPC_DIR         /ipc         the directory of `tools/` and `done`
#   SYMPOZIUM_WORKSPACE       /workspace   where commands without a workDir start
#   SYMPOZIUM_SKILL_PACK      (unset)      ignore requests for other targets; if unset, run all
#   SYMPOZIUM_MAX_TIMEOUT     120          seconds; the maximum timeout
#   SYMPOZIUM_MAX_CONCURRENT  8            concurrent commands; further requests wait
#   SYMPOZIUM_CLAIM_LEASE     360          seconds after which a claim without a result is answered as lost
#
# Unlike `skill-sidecar`, it cannot confine commands, nor end a descendant in its own session.
#
# Commands may contain secrets, so only request ids are logged.
#
# Our variables are lower case and not names that programs read from their environment, because bash would pass an
# assignment on to commands if the container had exported a variable of that name.

# Functions are started through `begin`, and a FIFO is opened at both ends.
# shellcheck disable=SC2317,SC2094
set -euo pipefail
shopt -s nullglob
unset CDPATH

# Count and compare bytes as bytes. Commands get the container's own locale.
container_locale=${LC_ALL-}
LC_ALL=C

readonly poll_seconds=0.2
readonly default_timeout=30
readonly max_request_bytes=1048576
readonly max_stream_bytes=51200
# The kernel accepts no longer word (execve(2), MAX_ARG_STRLEN without its NUL).
readonly max_word_bytes=131071
readonly max_words=4096
# A file that is not JSON may be half written: it is read this many times, one poll apart, before it is refused.
readonly most_readings=6
# Between TERM and KILL.
readonly grace_seconds=1
# How long to wait for output that an escaped process keeps open.
readonly drain_seconds=3

readonly code_timed_out=124
readonly code_refused=125

say() {
    printf 'tool-executor: %s\n' "$*" >&2
}

give_up() {
    say "error: $1"
    say "hint: $2"
    exit 1
}

# Reads a number from the environment, within limits.
setting() {
    local name=$1 default=$2 least=$3 most=$4
    local value=${!name:-$default}
    if [[ ! $value =~ ^[0-9]{1,9}$ ]] || ((10#$value < least || 10#$value > most)); then
        give_up "$name is no number from $least to $most" "unset it for $default"
    fi
    printf '%d' "$((10#$value))"
}

((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || give_up "bash $BASH_VERSION is too old" "bash 4.4 or newer is needed"
for needed in base64 cat chmod head jq mkdir mkfifo mktemp mv od rm tail touch wc; do
    command -v "$needed" >/dev/null || give_up "no $needed in this image" "install bash, jq and coreutils"
done
[[ $(jq -nr '"eA==" | @base64d' 2>/dev/null) == x ]] || give_up "jq is too old" "jq 1.6 or newer is needed"

ipc=${SYMPOZIUM_IPC_DIR:-/ipc}
workspace=${SYMPOZIUM_WORKSPACE:-/workspace}
max_timeout=$(setting SYMPOZIUM_MAX_TIMEOUT 120 1 86400)
max_concurrent=$(setting SYMPOZIUM_MAX_CONCURRENT 8 1 256)
# Other executors on the volume may allow longer timeouts, so the default covers the longest known.
lease=$(setting SYMPOZIUM_CLAIM_LEASE "$(((max_timeout > 300 ? max_timeout : 300) + 60))" 1 172800)
self=${SYMPOZIUM_SKILL_PACK:-}
self=${self,,}
self=${self//[[:space:]]/}
readonly ipc workspace max_timeout max_concurrent lease self

[[ -d $ipc ]] || give_up "$ipc is no directory" "the /ipc volume is mounted by the controller; is this container a skill of a run?"
[[ ! -L $ipc/tools ]] || give_up "$ipc/tools is a link" "remove it; it must be a directory"
mkdir -p -- "$ipc/tools" || give_up "cannot make $ipc/tools" "the volume must be writable for UID $UID"
# From here on every name is relative, so that no process can swap this directory.
cd -P -- "$ipc/tools" || give_up "cannot enter $ipc/tools" "the volume must be readable for UID $UID"

scratch=
for place in "${TMPDIR:-/tmp}" /tmp /dev/shm; do
    scratch=$(mktemp -d "$place/tool-executor.XXXXXXXXXX" 2>/dev/null) && break
done
[[ -n $scratch ]] || give_up "no place for temporary files" "mount a writable /tmp (an emptyDir)"
readonly scratch
trap 'rm -rf -- "$scratch"' EXIT

# Probe the tools of this image. busybox has no `nofollow`, and older versions no `mv -T`.
if dd if=/dev/null of=/dev/null iflag=nofollow,nonblock,fullblock count=1 2>/dev/null; then opens_safely=yes; else opens_safely=; fi
: >"$scratch/from"
if mv -f -T -- "$scratch/from" "$scratch/to" 2>/dev/null; then replace=(mv -f -T --); else replace=(mv -f --); fi
# Without setsid a command is a process group, which is killed too; only processes that leave the group escape.
if command -v setsid >/dev/null; then in_session=(setsid); else in_session=(); fi
readonly opens_safely replace in_session

# --- one request ------------------------------------------------------------------------------------------------------

# Reads, routes, claims, runs and answers one request, in its own process.
work() {
    local name=$1 id=$2 place=$scratch/$2
    mkdir -- "$place"
    mkfifo -- "$place/events" "$place/kept"
    # Open for both, so that neither opening nor reading waits for the other side.
    exec {happenings}<>"$place/events" {kept}<>"$place/kept"
    trap 'printf "stop\n" >&"$happenings"' TERM INT
    handle || say "request $id: not answered"
    rm -rf -- "$place"
    printf '%s\n' "$BASHPID" >&"$events"
}

# The variables are those of `work`.
handle() {
    local fields=() reading
    for ((reading = 1; ; reading++)); do
        if ! copy_request; then
            if [[ $complaint == gone ]]; then return 0; fi
            refuse "$complaint"
            return
        fi
        if understand >"$place/fields" 2>/dev/null <"$place/request"; then break; fi
        if ((reading == most_readings)); then
            refuse "the request is no JSON object"
            return
        fi
        # Any message here means stop; nothing has been started.
        if read -r -t "$poll_seconds" _ <&"$happenings"; then return 0; fi
    done
    mapfile -t -d '' fields <"$place/fields"
    # target, verdict; then complaint, or: mode, timeout, has stdin, workDir, words.
    if [[ -n $self && -n ${fields[0]} && ${fields[0]} != "$self" ]]; then return 0; fi
    if [[ ${fields[1]} != fine ]]; then
        refuse "${fields[2]}"
        return
    fi
    run "${fields[@]:2}"
}

# Copies the request out of the volume, so that what is checked is what is run. On failure, sets `complaint`.
copy_request() {
    complaint=
    if [[ -L $name ]]; then
        complaint="the request is a link"
    elif [[ ! -e $name ]]; then
        complaint=gone
    elif [[ ! -f $name ]]; then
        complaint="the request is no regular file"
    elif [[ -n $opens_safely ]]; then
        # If it is swapped for a link or a FIFO meanwhile, this neither follows nor blocks.
        dd if="./$name" iflag=nofollow,nonblock,fullblock bs="$((max_request_bytes + 1))" count=1 \
            of="$place/request" 2>/dev/null || complaint="the request cannot be read"
    else
        head -c "$((max_request_bytes + 1))" <"$name" >"$place/request" 2>/dev/null || complaint="the request cannot be read"
    fi
    if [[ -z $complaint ]] && over "$place/request" "$max_request_bytes"; then
        complaint="the request has more than $max_request_bytes bytes"
    fi
    [[ -z $complaint ]]
}

# Whether a file has more than this many bytes.
over() {
    (($(wc -c <"$1") > $2))
}

# Standard input is a request; prints its parts, each ended by NUL. Fails when it is not one JSON object.
understand() {
    jq -sj --arg id "$id" --argjson words "$max_words" --argjson bytes "$max_word_bytes" '
        def a_string(name):
            if . == null then "" elif type == "string" then . else error("\(name) must be a string") end;
        def strings(name):
            if . == null then []
            elif type != "array" or any(.[]; type != "string") then error("\(name) must be a list of strings")
            elif length > $words then error("\(name) has more than \($words) entries")
            else . end;
        def without_nul(name):
            if split("\u0000") | length > 1 then error("\(name) must not contain NUL") else . end;
        def quoted: "\u0027" + (split("\u0027") | join("\u0027\\\u0027\u0027")) + "\u0027";
        def short(name):
            if utf8bytelength > $bytes then error("\(name) has more than \($bytes) bytes") else . end;
        def space: . == 32 or (. >= 9 and . <= 13);

        if length == 1 and (.[0] | type == "object") then .[0] else error("no object") end
        | ((.target | if type == "string" then ascii_downcase | explode | map(select(space | not)) | implode else "" end)
            | split("\u0000") | join("?")) as $target
        | [$target] + (try (
            (.target | a_string("target")) as $_
            | (if .id == $id then . else error("id must be the one in the file name") end)
            | (.command | a_string("command") | without_nul("command")) as $command
            | (.args | strings("args") | map(without_nul("args"))) as $args
            | (.argv | strings("argv") | map(without_nul("argv") | short("argv"))) as $argv
            | (.workDir | a_string("workDir") | without_nul("workDir")) as $directory
            | (.stdin | a_string("stdin")) as $stdin
            | (.timeout
                | if . == null then 0
                  elif type != "number" or . != floor then error("timeout must be a whole number of seconds")
                  elif . > 1000000 then 1000000
                  elif . < 0 then 0
                  else . end) as $timeout
            | if $argv != [] then {mode: "argv", list: $argv}
              elif $command == "" then error("command must not be empty")
              else {mode: "line", list: [[$command] + ($args | map(quoted)) | join(" ") | short("command with args")]} end
            | ["fine", .mode, ($timeout | tostring), ($stdin | length > 0 | tostring), $directory] + .list
        ) catch ["wrong", tostring])
        | map(. + "\u0000") | add'
}

# Claims the request. Fails if another executor has claimed it.
claim() {
    mkdir -- ".claim-$id" 2>/dev/null || return 1
    : >"$place/claimed"
}

# Answers a request that was not run.
refuse() {
    claim || return 0
    say "request $id: refused"
    : >"$place/stdout"
    printf 'tool-executor: %s\n' "$1" >"$place/stderr"
    answer "$id" "$place" "$code_refused" false
}

# Runs the claimed request: mode, seconds, whether it has a stdin, directory, then the line or the words.
run() {
    local mode=$1 seconds=$2 directory=$4 session='' stopped='' code='' timed_out=false event value
    local input=/dev/null both reader_out writer_out reader_err writer_err
    if ((seconds < 1)); then seconds=$default_timeout; fi
    if ((seconds > max_timeout)); then seconds=$max_timeout; fi
    if [[ -n $directory && $directory != /* ]]; then
        refuse "workDir must be an absolute path"
        return
    fi
    if [[ $3 == true ]]; then
        input=$place/stdin
        # Before the claim: a command must not run with a truncated input.
        if ! jq -j .stdin <"$place/request" >"$input"; then
            refuse "no room for stdin in the executor's temporary directory"
            return
        fi
    fi
    shift 4
    claim || return 0
    say "request $id: running"

    # Open both ends first, because opening one end would block until the other is opened.
    mkfifo -- "$place/out" "$place/err"
    exec {both}<>"$place/out" {reader_out}<"$place/out" {writer_out}>"$place/out"
    exec {both}>&-
    exec {both}<>"$place/err" {reader_err}<"$place/err" {writer_err}>"$place/err"
    exec {both}>&-
    (exec {writer_out}>&- {writer_err}>&- {reader_err}>&-; keep "$place/stdout") <&"$reader_out" &
    (exec {writer_out}>&- {writer_err}>&- {reader_out}>&-; keep "$place/stderr") <&"$reader_err" &
    # Discard the messages of bash itself about a killed job.
    (exec {reader_out}>&- {reader_err}>&-; supervise "$@") <"$input" 2>/dev/null &
    exec {reader_out}>&- {reader_err}>&- {writer_out}>&- {writer_err}>&-

    while [[ -z $session ]]; do
        read -r event value <&"$happenings"
        case $event in
        pid) session=$value ;;
        lost)
            drain
            printf 'tool-executor: workDir cannot be entered\n' >"$place/stderr"
            : >"$place/stdout"
            answer "$id" "$place" "$code_refused" false
            return
            ;;
        stop) stopped=yes ;;
        esac
    done
    printf '%s' "$session" >"$place/session"

    # Only this timer sets timedOut: a command may also exit with 124 itself.
    if [[ -n $stopped ]]; then
        event=stop
    elif ! read -r -t "$seconds" event value <&"$happenings"; then
        timed_out=true
        event=stop
    fi
    if [[ $event == stop ]]; then
        signal_all TERM "$session"
        if ! read -r -t "$grace_seconds" event value <&"$happenings"; then
            signal_all KILL "$session"
            read -r -t 5 event value <&"$happenings" || value=137
        fi
    fi
    code=$value
    if [[ $timed_out == true ]]; then code=$code_timed_out; fi
    # Processes that the command left behind must not run while the next one does.
    signal_all KILL "$session"
    drain
    answer "$id" "$place" "$code" "$timed_out"
}

# Stores the start of a stream, one byte more than the answer has to detect truncation, and discards the rest.
keep() {
    head -c "$((max_stream_bytes + 1))" >"$1"
    printf 'kept\n' >&"$kept"
    exec cat >/dev/null {kept}>&- {happenings}>&- {events}>&-
}

# Waits for one word from each stream, unless an escaped process holds it open.
drain() {
    read -r -t "$drain_seconds" _ <&"$kept" && read -r -t "$drain_seconds" _ <&"$kept"
    return 0
}

# Starts the command in its directory, reports its PID, waits, and reports its exit status.
# The variables are those of `run`.
supervise() {
    trap - TERM INT
    if [[ -z $directory ]]; then
        directory=$workspace
        if [[ ! -d $directory ]]; then directory=/; fi
    fi
    # Enter it once; do not use its path again.
    if ! cd -P -- "$directory"; then
        printf 'lost\n' >&"$happenings"
        return
    fi
    # Its own process group if there is no setsid.
    if ((${#in_session[@]} == 0)); then set -m; fi
    start "$@" <&0 >&"$writer_out" 2>&"$writer_err" &
    printf 'pid %s\n' "$!" >&"$happenings"
    exec {writer_out}>&- {writer_err}>&-
    code=0
    wait "$!" || code=$?
    printf 'end %s\n' "$code" >&"$happenings"
}

# Becomes the command.
start() {
    local exported
    exec {writer_out}>&- {writer_err}>&- {happenings}>&- {kept}>&- {events}>&-
    # Remove our configuration from the environment, except the name of the pack.
    for exported in $(compgen -e); do
        case ${exported^^} in
        SYMPOZIUM_SKILL_PACK) ;;
        SYMPOZIUM_* | SKILL_TOKEN*) unset -v "$exported" ;;
        esac
    done
    if [[ -n $container_locale ]]; then LC_ALL=$container_locale; else unset LC_ALL; fi
    ulimit -c 0
    if [[ $mode == argv ]]; then
        # Through a shell for its exit codes 126 and 127; it does not parse the words.
        exec "${in_session[@]}" bash -c 'exec -- "$@"' bash "$@"
    fi
    exec "${in_session[@]}" bash -c "$1"
}

# Sends a signal to a command and all processes in its process group or its session.
signal_all() {
    local signal=$1 session=$2 stat rest
    kill -s "$signal" -- "-$session" 2>/dev/null || :
    for stat in /proc/[0-9]*/stat; do
        rest=
        # Read the whole file: a process name may contain a line feed. It has no NUL, so this "fails" after reading.
        IFS= read -r -d '' rest 2>/dev/null <"$stat" || :
        # The name is in brackets and may contain brackets; state, parent, group and session follow it.
        rest=${rest##*) }
        rest=${rest#* * * }
        if [[ ${rest%% *} == "$session" ]]; then
            stat=${stat#/proc/}
            kill -s "$signal" "${stat%/stat}" 2>/dev/null || :
        fi
    done
}

# Answers with the contents of the streams' files or, if the volume has no room for that, with only the exit code.
answer() {
    write_result "$@" && return 0
    : >"$2/stdout"
    printf 'tool-executor: the volume has no room for the output\n' >"$2/stderr"
    write_result "$@" && return 0
    say "request $1: no result, the volume takes none"
    return 1
}

# Builds a result and renames it into place.
write_result() {
    local id=$1 place=$2 code=$3 timed_out=$4 stream result
    for stream in stdout stderr; do
        : >"$place/$stream.base64"
        if [[ -s $place/$stream ]]; then cut_to_whole_characters "$place/$stream" | base64 >"$place/$stream.base64"; fi
    done
    result=$(mktemp ./.result.XXXXXXXXXX 2>/dev/null) || return 1
    # jq replaces invalid UTF-8. Do not use `--rawfile` on the bytes themselves: jq reads in blocks and would treat a
    # character across two blocks as two invalid ones.
    if ! jq -n --arg id "$id" --argjson code "$code" --argjson timed_out "$timed_out" \
        --rawfile stdout "$place/stdout.base64" --rawfile stderr "$place/stderr.base64" '
            def decoded: split("\n") | join("") | @base64d;
            {id: $id, exitCode: $code, stdout: ($stdout | decoded), stderr: ($stderr | decoded), timedOut: $timed_out}
        ' >"$result" 2>/dev/null || ! chmod 0644 "$result" || [[ -d ./exec-result-$id.json && ! -L ./exec-result-$id.json ]] ||
        ! "${replace[@]}" "$result" "./exec-result-$id.json" 2>/dev/null; then
        rm -f -- "$result"
        return 1
    fi
}

# The part of a stream for the answer: without the extra byte, and without a truncated character at the end.
cut_to_whole_characters() {
    local bytes=() drop=0 last length=1
    if ! over "$1" "$max_stream_bytes"; then
        cat -- "$1"
        return
    fi
    read -r -a bytes < <(head -c "$max_stream_bytes" -- "$1" | tail -c 4 | od -An -v -tx1)
    # Go back over continuation bytes (80 to bf) to the first byte of the character, which has its length.
    for last in 3 2 1 0; do
        drop=$((drop + 1))
        if [[ ${bytes[last]} != [89ab]? ]]; then break; fi
    done
    case ${bytes[last]} in
    [cd]?) length=2 ;;
    e?) length=3 ;;
    f[0-7]) length=4 ;;
    esac
    if ((drop >= length)); then drop=0; fi
    head -c "$((max_stream_bytes - drop))" -- "$1"
}

# --- all requests -----------------------------------------------------------------------------------------------------

declare -A seen=()    # names of files that were read and still exist: each is read once
declare -A working=() # process to file name
lease_checked=-1

# Finds new requests while there is room for more commands. Others stay on the volume.
scan() {
    local name id
    local -A present=()
    for name in exec-request-*.json; do
        if [[ -n ${seen[$name]-} ]]; then
            present[$name]=yes
            continue
        fi
        id=${name#exec-request-}
        id=${id%.json}
        if [[ ! $id =~ ^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$ || $id == *..* ]]; then
            printf -v id '%q' "${id:0:200}"
            say "ignored a request with the id $id: it must be 1 to 128 of A-Z a-z 0-9 . _ -, begin with none of . and -, and not contain .."
            present[$name]=yes
        elif [[ -f exec-result-$id.json && ! -L exec-result-$id.json ]]; then
            present[$name]=yes
        elif [[ -e .claim-$id || -L .claim-$id ]]; then
            # Claimed by another executor: ignore it, unless that executor is dead.
            if is_lost "$id"; then
                begin "$name" expire "$id"
                present[$name]=yes
            fi
        elif ((${#working[@]} < max_concurrent)); then
            begin "$name" work "$name" "$id"
            present[$name]=yes
        fi
    done
    seen=()
    for name in "${!present[@]}"; do seen[$name]=yes; done
}

begin() {
    local name=$1
    shift
    "$@" &
    working[$!]=$name
}

# Whether a claim is so old that its executor must be dead.
is_lost() {
    if ((SECONDS != lease_checked)); then
        lease_checked=$SECONDS
        local now
        printf -v now '%(%s)T' -1
        touch -d "@$((now - lease))" "$scratch/lease"
    fi
    [[ .claim-$1 -ot $scratch/lease ]]
}

# Answers for an executor that died after its claim. The command may have run, so it does not run again.
expire() {
    local id=$1 place=$scratch/$1
    mkdir -- "$place"
    lose "$id" "$place" || :
    rm -rf -- "$place"
    printf '%s\n' "$BASHPID" >&"$events"
}

lose() {
    say "request $1: claimed and never answered"
    : >"$2/stdout"
    printf 'tool-executor: the executor ended before it could answer; the command may have run, and is not run again\n' >"$2/stderr"
    answer "$1" "$2" "$code_refused" false
}

# A worker that ended without a report was killed; its request must still be answered.
bury() {
    local process name id
    for process in "${!working[@]}"; do
        if kill -0 "$process" 2>/dev/null; then continue; fi
        # It may have reported just before.
        hear 0.001
        name=${working[$process]-}
        if [[ -z $name ]]; then continue; fi
        unset 'working[$process]'
        id=${name#exec-request-}
        id=${id%.json}
        if [[ -s $scratch/$id/session ]]; then signal_all KILL "$(<"$scratch/$id/session")"; fi
        if [[ -e $scratch/$id/claimed ]]; then
            lose "$id" "$scratch/$id" || :
        else
            # Nothing was started: the next scan retries.
            unset 'seen[$name]'
        fi
        rm -rf -- "${scratch:?}/$id"
    done
}

# Waits for messages, and reads all of them. The timeout may split a line: the rest arrives with the next one.
hear() {
    local patience=$1 line=
    while read -r -t "$patience" line <&"$events"; do
        line=$half_a_line$line
        half_a_line=
        if [[ -n $line ]]; then unset 'working[$line]'; fi
        patience=0.001
    done
    half_a_line+=$line
}

half_a_line=
stopping=
mkfifo -- "$scratch/events"
exec {events}<>"$scratch/events"
trap 'stopping="asked to"' TERM INT
say "watching $ipc/tools${self:+ for $self}"

while [[ -z $stopping ]]; do
    # Not a link: a process that may write here can end us only by creating this file.
    if [[ -f $ipc/done && ! -L $ipc/done ]]; then
        stopping='the run is over'
        break
    fi
    if ((${#working[@]} < max_concurrent)); then scan; fi
    hear "$poll_seconds"
    bury
done

say "ending: $stopping"
trap '' TERM INT
for process in "${!working[@]}"; do kill -s TERM "$process" 2>/dev/null || :; done
# Each has its own grace period; this one is for all of them together.
ends_at=$((SECONDS + grace_seconds + 8))
while ((${#working[@]} > 0 && SECONDS < ends_at)); do
    hear 0.05
    bury
done
exit 0
