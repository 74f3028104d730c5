#!/bin/bash
# 64 ranks over gloo on the dev cluster (four nodes of 16): start, a rank killed, resume, bill. Prints one table.
#   bench/many_ranks.sh [--ranks-per-node N] [--steps N] [--kill-at N] [--standby]
# As root on a machine with a core for each two ranks or so; the cluster's hosts must claim a core a rank:
# STEELRAIL_DEV_CPUS (16 here). Set PYTHON for another interpreter. Leaves the cluster up.
set -euo pipefail
cd "$(dirname "$0")/.."
export STEELRAIL_DEV_CPUS=${STEELRAIL_DEV_CPUS:-16} STEELRAIL_DEV_MEMORY=${STEELRAIL_DEV_MEMORY:-24000}
slurm/dev/cluster.sh up
project=$(mktemp -d /home/steelrail/many-ranks-XXXXXX)
cp -r src config data bench "$project"
chown -R steelrail:steelrail "$project"
cd "$project"
exec "$OLDPWD/slurm/dev/cluster.sh" as-user env PYTHONPATH="$project/src${PYTHONPATH:+:$PYTHONPATH}" "${PYTHON:-python}" bench/many_ranks.py "$@"
