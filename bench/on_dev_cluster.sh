#!/bin/bash
# Runs a benchmark as the ordinary user of the dev cluster, in a copy of what it needs, on the cluster that it brings up:
#   bench/on_dev_cluster.sh many_ranks.py [--ranks-per-node N] [--steps N] [--kill-at N] [--standby]
#   STEELRAIL_DEV_CRED_EXPIRE=120 bench/on_dev_cluster.sh restart_peers.py [--ranks-per-node N] [--rounds N] ...
# As root. The cluster's hosts claim a core a rank (STEELRAIL_DEV_CPUS, 16 here); it must be down before, if it claims
# fewer. Set PYTHON for another interpreter. Leaves the cluster up.
set -euo pipefail
cd "$(dirname "$0")/.."
export STEELRAIL_DEV_CPUS=${STEELRAIL_DEV_CPUS:-16} STEELRAIL_DEV_MEMORY=${STEELRAIL_DEV_MEMORY:-24000}
slurm/dev/cluster.sh up
program=$1; shift
project=$(mktemp -d "/home/steelrail/${program%.py}-XXXXXX")
cp -r src config data bench "$project"
chown -R steelrail:steelrail "$project"
script=$PWD/slurm/dev/cluster.sh
cd "$project"
exec "$script" as-user env PYTHONPATH="$project/src${PYTHONPATH:+:$PYTHONPATH}" "${PYTHON:-python}" "bench/$program" "$@"
