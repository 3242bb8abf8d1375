#!/usr/bin/env bash
# Runs a sweep through a real Slurm, which it sets up on this machine: a controller and two nodes on the loopback device, in a
# temporary folder, without services. The sweep is planned, submitted and watched; a task is stopped and requeued, a node dies,
# a task is killed and submitted again, a second writer is refused. At the end, the merged report must equal that of a run on
# one machine, byte for byte, except for times.
#
#   scripts/slurm_check.sh [PROGRAM]      KEEP=1 leaves the folder; PORT (26817) and the two after it are used;
#                                         PATIENCE=5 waits five times as long for everything, on a machine that is busy
#
# If Slurm cannot be installed, it prints NOT CHECKED and succeeds.
set -euo pipefail
spattn=$(realpath "${1:-target/release/spattn}")
port=${PORT:-26817}
patience=${PATIENCE:-1}

need=(slurmctld slurmd sbatch squeue munged mungekey)
have() { local name; for name in "${need[@]}"; do command -v "$name" >/dev/null || return 1; done; }
if ! have && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    # RUNLEVEL=1 prevents the packages from starting services.
    { apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        slurmctld slurmd slurm-client munge; } >/dev/null 2>&1 || :
fi
if ! have; then
    echo "NOT CHECKED: sweeps on Slurm, since slurmctld, slurmd, slurm-client and munge cannot be installed here"
    exit 0
fi

root=$(mktemp -d -t spattn-slurm.XXXXXX)
sweep=$root/sweep
declare -A daemon
say() { printf '%4ds  %s\n' "$SECONDS" "$*"; }
fail() {
    say "FAILED: $*"
    squeue --array --states=all 2>/dev/null || :
    "$spattn" status "$sweep" 2>/dev/null || :
    tail -n 5 "$sweep"/logs/* 2>/dev/null || :
    exit 1
}
start() { "${@:2}" >>"$root/$1.log" 2>&1 & daemon[$1]=$!; }
finish() {
    scancel --user="$(id -un)" 2>/dev/null || :
    for _ in {1..25}; do [ -z "$(squeue --noheader 2>/dev/null)" ] && break; sleep 0.2; done
    kill "${daemon[@]}" ${whole:-} 2>/dev/null || :
    wait 2>/dev/null || :
    [ -n "${KEEP:-}" ] && echo "kept: $root" || rm -rf "$root"
}
trap finish EXIT
# until_true SECONDS WHAT COMMAND...
until_true() {
    local end=$((SECONDS + patience * $1)) what=$2
    shift 2
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || fail "not within its time: $what"
        sleep 0.1
    done
}

# ---- the Slurm for this check ----
chmod 755 "$root"
mkdir "$root"/{munge,state,a,b}
mungekey --create --keyfile="$root/munge/key"
export SLURM_CONF=$root/slurm.conf
user=$(id -un)
cat >"$SLURM_CONF" <<CONF
ClusterName=check
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$user
SlurmdUser=$user
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
# A requeued job waits until its credential has expired: two minutes by default.
AuthInfo=socket=$root/munge/socket,cred_expire=3
StateSaveLocation=$root/state
SlurmdSpoolDir=$root/%n
SlurmctldPidFile=$root/controller.pid
SlurmdPidFile=$root/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
ReturnToService=2
SlurmdTimeout=5
KillWait=5
MinJobAge=600
NodeName=a NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=2
NodeName=b NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=2
PartitionName=all Nodes=a,b Default=YES LLN=YES MaxTime=30 State=UP
CONF
start munged munged --foreground --key-file="$root/munge/key" --socket="$root/munge/socket" --pid-file="$root/munge/pid" \
    --log-file="$root/munge/log" --seed-file="$root/munge/seed"
until_true 10 "munge" test -S "$root/munge/socket"
start controller slurmctld -D -c
start a slurmd -D -N a
start b slurmd -D -N b
idle() { [ "$(sinfo --noheader --Node --format=%T 2>/dev/null | grep -c idle)" = "$1" ]; }
until_true 20 "two nodes are idle" idle 2
say "a controller and two nodes are up"

# ---- the same matrix on one machine ----
cat >"$root/matrix.toml" <<'MATRIX'
tasks = ["ruler/niah_multikey_3", "ruler/vt", "ruler/cwe"]
lengths = [1024, 2048]
samples = 6
seed = [1, 2]
methods = ["topk:k=16", "quest", "magicpig"]
MATRIX
cd "$root"
"$spattn" sweep matrix.toml --threads 1 --quiet --out "$root/whole" >/dev/null &
whole=$!

# ---- plan, write, submit ----
launch=("$spattn" sweep matrix.toml --launch slurm --threads 1 --out "$sweep")
"${launch[@]}" --jobs 6 --sbatch 'time=10' --dry-run >"$root/plan"
grep -q -- "^#SBATCH --array=1-6$" "$sweep/sweep.sbatch" || fail "no script of six shards"
bash -n "$sweep/sweep.sbatch"
[ -z "$(squeue --noheader)" ] || fail "--dry-run submitted something"
grep 'times the mean' "$root/plan"
"${launch[@]}" --jobs 6 --sbatch 'time=10' >"$root/submitted"
job=$(sed -n 's/^submitted 6 shards (1-6) as job \([0-9]*\)$/\1/p' "$root/submitted")
[ -n "$job" ] || fail "nothing was submitted: $(cat "$root/submitted")"
"${launch[@]}" --resume | grep -q "nothing to submit" || fail "what is in the queue was submitted again"
say "job $job of six shards is submitted, and not again with --resume"

# ---- faults during the sweep ----
records() { cat "$sweep/shards/$1/samples.jsonl" 2>/dev/null | wc -l; }
begun() { [ "$(records "$1")" -gt "${2:-0}" ]; }
log() { cat "$sweep/shards/$1/attempts.jsonl" 2>/dev/null; }
node_of() { log "$1" | sed -n 's/.*"node":"\([^"]*\)".*/\1/p' | tail -n 1; }
pid_of() { log "$1" | sed -n 's/.*"pid":\([0-9]*\).*/\1/p' | tail -n 1; }
state() { squeue --noheader --array --states=all --jobs="${job}_$1" --format=%T; }

# Finds a running shard with some but not all of its records. Arguments: the variable to set, then the shards to skip.
at_work() {
    local -n found=$1
    local shard
    for shard in 1 2 3 4 5 6; do
        [[ " ${*:2} " == *" $shard "* ]] && continue
        if begun "$shard" && [ "$(state "$shard")" = RUNNING ] && log "$shard" | tail -n 1 | grep -q started; then
            found=$shard
            return 0
        fi
    done
    # On a busy machine, all shards may end before one can be disturbed.
    if [ -z "$(squeue --noheader --jobs="$job" --states=PENDING,RUNNING,COMPLETING,CONFIGURING 2>/dev/null)" ]; then
        wait "$whole" || fail "the run on one machine"
        say "NOT CHECKED: all shards had ended before one could be disturbed"
        exit 0
    fi
    return 1
}

# A shard may end before the second writer starts; then another shard is tried.
second_is_refused() {
    at_work told || return 1
    local first
    first=$(pid_of "$told")
    "$spattn" sweep matrix.toml --shard "$told/6" --out "$sweep/shards/$told" --resume --quiet >"$root/second" 2>&1 || return 0
    ! kill -0 "$first" 2>/dev/null || fail "a second writer got into the folder of shard $told"
    return 1
}
until_true 30 "a second writer is refused" second_is_refused
grep -q "is being written by process" "$root/second" || fail "the second writer was told: $(cat "$root/second")"
say "a second writer on shard $told is refused"

until_true 30 "a shard is at work" at_work told
stopped() { log "$told" | grep -q '"end":"stopped"'; }
# Slurm may send the signal and still report that the job cannot be altered now.
# It then tries again by itself; this does not wait for that.
tell() { stopped || { timeout 2 scancel --quiet --signal=USR1 --batch "${job}_$told" 2>/dev/null || :; sleep 1; stopped; }; }
until_true 20 "shard $told stops" tell
until_true 10 "shard $told is requeued" grep -q "^requeued" "$sweep/logs/${job}_$told.log"
say "shard $told stopped at $(records "$told") records by a signal, and is requeued"

until_true 30 "another shard is at work" at_work killed "$told"
kill -KILL "$(pid_of "$killed")"
failed() { [ "$(state "$killed")" = FAILED ]; }
until_true 20 "shard $killed has failed" failed
"$spattn" status "$sweep" >"$root/status"
grep -q "^$killed *failed .*FAILED" "$root/status" || fail "the status of shard $killed: $(cat "$root/status")"
say "shard $killed was killed at $(records "$killed") records; the status says so"

until_true 40 "a third shard is at work" at_work victim "$told" "$killed"
node=$(node_of "$victim")
kept=$(records "$victim")
# Kill everything on the node at once: the programs, the shells of their batch scripts, the daemons of their steps and of the node.
ancestors() {
    local pid=$1 _
    for _ in 1 2 3; do
        echo "$pid"
        pid=$(awk '{print $4}' "/proc/$pid/stat" 2>/dev/null) || return 0
    done
}
gone=("${daemon[$node]}")
for shard in 1 2 3 4 5 6; do
    if [ "$(node_of "$shard")" = "$node" ] && [ "$(state "$shard")" = RUNNING ]; then
        mapfile -t -O "${#gone[@]}" gone < <(ancestors "$(pid_of "$shard")")
    fi
done
kill -KILL "${gone[@]}" 2>/dev/null || :
say "node $node died under shard $victim, which had $kept records"
"$spattn" status "$sweep" | head -n 3
"$spattn" report "$sweep" --out "$root/early" >/dev/null
say "a report of what is there was made meanwhile"
sleep 6
start "$node" slurmd -D -N "$node"

# ---- completion ----
wait "$whole" || fail "the run on one machine"
none_left() { [ -z "$(squeue --noheader --states=PENDING,RUNNING,COMPLETING,CONFIGURING 2>/dev/null)" ]; }
until_true 90 "all tasks end" none_left
"${launch[@]}" --resume >"$root/resumed"
again=$(sed -n 's/^submitted .* (\(.*\)) as job [0-9]*$/\1/p' "$root/resumed")
[[ ",$again," =~ ,$killed[,-] ]] || fail "shard $killed is not submitted again: $(cat "$root/resumed")"
say "$(grep '^submitted' "$root/resumed")"
timeout $((patience * 60)) "$spattn" status "$sweep" --watch >"$root/watched" || fail "it does not end"
grep -q "6 shards: 6 done$" "$root/watched" || fail "not all is done"
[ "$(log "$victim" | grep -c started)" -gt 1 ] && [ "$(records "$victim")" -gt "$kept" ] || fail "shard $victim was not begun again"
say "all is done: $(grep ' records (' "$root/watched" | tail -n 1)"

"$spattn" report "$root/whole" --no-times --out "$root/one" >/dev/null
"$spattn" report "$sweep" --no-times --out "$root/many" >/dev/null
# The page lists the machines and commands of the runs.
diff -r --exclude=report.html "$root/one" "$root/many" || fail "the reports differ"
count=$(find "$root/one" -type f ! -name report.html | wc -l)
[ "$count" -gt 8 ] || fail "only $count files were compared"
say "OK: $count files of the merged report are those of a run on one machine, byte for byte"
