#!/usr/bin/env bash
# The demo: sets up the four-host Slurm of slurm/dev with its S3 server, then runs the whole chain as an ordinary user.
#   scripts/demo.sh up | down
# Settings: ALLOW_FALLBACK=1 goes on without root or network namespaces (this host only; says what that does not show);
#           RUN=name runs config/<name>.yaml instead of config/demo.yaml.
set -euo pipefail
PROJECT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
RUN=${RUN:-demo}
cd "$PROJECT"

say() { printf 'demo: %s\n' "$*" >&2; }
die() { say "$1"; exit "${2:-1}"; }

namespaces() { [ "$(id -u)" = 0 ] && unshare --net --uts --mount true 2>/dev/null; }

# Jobs run as an ordinary user, who must be able to write here; the sources stay the owner's.
give_results() {
  install -d -m 755 -o steelrail -g steelrail results .snakemake
}

# A folder that the ordinary user cannot reach is copied to one that he can; results/ leads there.
working_folder() {
  if slurm/dev/cluster.sh as-user test -r "$PROJECT/Snakefile" -a -x "$PROJECT"; then echo "$PROJECT"; return; fi
  local copy; copy=${STEELRAIL_DEV_DIR:-/var/lib/steelrail-dev}/projects/$(printf %s "$PROJECT" | sha256sum | cut -c1-12)
  mkdir -p "$copy"
  git ls-files -z | tar --null -T - -cf - | tar -xf - -C "$copy"
  chmod -R go+rX "$copy"
  [ -e results ] && [ ! -L results ] || ln -sfn "$copy/results" results
  echo "$copy"
}

snakemake_as_user() { # FOLDER ARGUMENT...
  local folder=$1 bin; shift
  bin=$(readlink -f "$PROJECT/.venv")/bin
  slurm/dev/cluster.sh as-user env -C "$folder" PATH="$bin:/usr/bin:/bin" PYTHONPATH="$folder/src" "$@"
}

up() {
  if ! namespaces; then
    [ "${ALLOW_FALLBACK:-0}" = 1 ] ||
      die "demo needs root and network namespaces to set up a Slurm of several hosts, has not (id, unshare): run it as root on a machine of your own, or set ALLOW_FALLBACK=1 for processes on this host" 3
    fallback; return
  fi
  local began=$SECONDS folder
  scripts/setup.sh
  slurm/dev/cluster.sh up
  folder=$(working_folder)
  (cd "$folder" && give_results)
  say "submits as user steelrail, from $folder"
  snakemake_as_user "$folder" snakemake --profile slurm --config "run=$RUN"
  snakemake_as_user "$folder" steelrail status --config "config/$RUN.yaml"
  say "took $((SECONDS - began)) s; report: $PROJECT/results/$RUN/cost/report.html; end the cluster with 'make demo-down'"
}

# Without namespaces: the same trainer as processes of this host. No Slurm, so no requeue and no exact bill.
fallback() {
  scripts/setup.sh
  say "ALLOW_FALLBACK=1: trains on this host alone. Not shown: Slurm, several hosts, requeue, the exact bill"
  .venv/bin/python scripts/demo_local.py
}

down() { slurm/dev/cluster.sh down; }

case ${1:-} in
  up | down) "$1" ;;
  *) die "argument must be up or down, is '${1:-}' (scripts/demo.sh): use make demo or make demo-down" 2 ;;
esac
