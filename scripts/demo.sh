#!/usr/bin/env bash
# The demo: sets up the four-host Slurm of slurm/dev with its S3 server, then runs the whole chain as an ordinary user.
#   scripts/demo.sh up | down
# Settings: ALLOW_FALLBACK=1 goes on without namespaces (a Slurm of one GPU host on the loopback address) or without root
#           (no Slurm at all), and says what that does not show;
#           RUN=name runs config/<name>.yaml instead of config/demo.yaml.
set -euo pipefail
PROJECT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
RUN=${RUN:-demo}
STATE=${STEELRAIL_DEV_DIR:-/var/lib/steelrail-dev}
cd "$PROJECT"

say() { printf 'demo: %s\n' "$*" >&2; }
die() { say "$1"; exit "${2:-1}"; }

namespaces() { [ "${STEELRAIL_DEV_HOSTS:-namespaces}:$(id -u)" = namespaces:0 ] && unshare --net --uts --mount true 2>/dev/null; }

# A folder that the ordinary user can reach: this one, else a copy of it, which results/ then leads to.
working_folder() {
  if slurm/dev/cluster.sh as-user test -r "$PROJECT/Snakefile"; then echo "$PROJECT"; return; fi
  local copy; copy=$STATE/projects/$(printf %s "$PROJECT" | sha256sum | cut -c1-12)
  say "user steelrail cannot reach $PROJECT: jobs run from a private copy, $copy, and results/ leads there"
  mkdir -p "${copy%/*}"
  install -d -m 0700 -o steelrail -g steelrail "$copy"
  # What was removed here goes there too; what runs left there stays.
  find "$copy" -mindepth 1 -maxdepth 1 ! -name results ! -name .snakemake -exec rm -rf {} +
  tar --exclude=./{.venv,results,.snakemake,'.*_cache'} --mode=go+rX -cf - . | tar -xf - -C "$copy"
  lead_results "$copy/results"
  echo "$copy"
}

lead_results() { # FOLDER: results/ leads there; runs that are here already move there
  mkdir -p "$1"
  if [ -d results ] && [ ! -L results ]; then
    find results -mindepth 1 -maxdepth 1 -exec mv -n -t "$1" {} +
    rmdir results || die "$PROJECT/results must hold no run that $1 holds too, does (ls): move those away"
  fi
  ln -sfn "$1" results
}

# The ordinary user writes results and Snakemake's notes, those too that root made by hand; the sources stay the owner's.
give_results() { # FOLDER
  local folder foreign
  for folder in "$1/results" "$1/.snakemake"; do
    [ -d "$folder" ] || install -d -m 755 "$folder"
    foreign=$(find -H "$folder" -ignore_readdir_race ! -user root ! -user steelrail -print -quit)
    [ -z "$foreign" ] || die "$foreign must belong to root or steelrail, who runs the demo's jobs, does not (ls -l): move $folder away"
    find -H "$folder" -ignore_readdir_race -user root -exec chown --no-dereference steelrail:steelrail {} +
  done
}

# A clone without results shows the whole chain: what an earlier clone's demo left behind would be taken up by its key.
forget_earlier() { # FOLDER
  [ ! -e "$1/results/$RUN" ] || return 0
  as_user "$1" python scripts/forget_run.py "config/$RUN.yaml"
  rm -rf "$STATE"/nodes/*/fastssd/steelrail-*/*/"$RUN"
}

as_user() { # FOLDER ARGUMENT...
  local folder=$1 bin; shift
  bin=$(readlink -f "$PROJECT/.venv")/bin
  slurm/dev/cluster.sh as-user env -C "$folder" PATH="$bin:/usr/bin:/bin" PYTHONPATH="$folder/src" "$@"
}

up() {
  if ! namespaces; then
    [ "${ALLOW_FALLBACK:-0}" = 1 ] ||
      die "demo needs root and network namespaces to set up a Slurm of several hosts, has not (id, unshare): run it as root on a machine of your own, or set ALLOW_FALLBACK=1 for what this host can do alone" 3
    fallback; return
  fi
  export STEELRAIL_DEV_HOSTS=namespaces
  slurm/dev/cluster.sh check
  scripts/setup.sh
  slurm/dev/cluster.sh up
  chain
}

# The whole chain, on the cluster that is up.
chain() {
  local folder; folder=$(working_folder)
  give_results "$folder"
  forget_earlier "$folder"
  say "submits as user steelrail, from $folder"
  as_user "$folder" snakemake --profile slurm --config "run=$RUN"
  as_user "$folder" steelrail status --config "config/$RUN.yaml"
  say "took $SECONDS s; report: $PROJECT/results/$RUN/cost/report.html; end the cluster with 'make demo-down'"
}

# Without namespaces: a Slurm of this host alone, else none.
fallback() {
  if ! loopback; then alone; return; fi
  (umask 022; .venv/bin/python scripts/loopback_run.py "config/$RUN.yaml" "$STATE/nodes/loopback/fastssd" "config/$RUN-loopback.yaml")
  RUN=$RUN-loopback
  chain
  say "ALLOW_FALLBACK=1: one GPU host of Slurm, which is this machine. Not shown: several hosts, links between them, a lost host and its spare, disks of a host's own"
}

# Starts the cluster of one GPU host; false where that cannot be had. Another Slurm's files end the demo, as ever.
loopback() {
  [ "$(id -u)" = 0 ] || return 1
  export STEELRAIL_DEV_HOSTS=loopback
  local rc=0; slurm/dev/cluster.sh check || rc=$?
  case $rc in 0) ;; 3) return 1 ;; *) exit "$rc" ;; esac
  if scripts/setup.sh && slurm/dev/cluster.sh up; then return 0; fi
  say "no Slurm could be started (see above): goes on without"
  slurm/dev/cluster.sh down || say "what was started of it may be there still (see above)"
  return 1
}

# The same trainer as processes of this host. No Slurm, so no requeue and no exact bill.
alone() {
  scripts/setup.sh --without cluster
  say "ALLOW_FALLBACK=1: trains on this host alone. Not shown: Slurm, several hosts, requeue, the exact bill"
  .venv/bin/python scripts/demo_local.py
}

down() {
  [ -e "$STATE/.steelrail-dev" ] || { say "nothing to end: $STATE holds no cluster"; return; }
  slurm/dev/cluster.sh down
  say "the cluster has ended; its state is kept in $STATE ('slurm/dev/cluster.sh wipe' removes it)"
}

case ${1:-} in
  up | down) "$1" ;;
  *) die "argument must be up or down, is '${1:-}' (scripts/demo.sh): use make demo or make demo-down" 2 ;;
esac
