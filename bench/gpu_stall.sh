#!/bin/bash
# What a save of the 1B shape costs the step loop on one GPU of this host, and how fast it is on disk.
#   bench/gpu_stall.sh [FOLDER] [SAVES]
# FOLDER: on the disk that stands for NVMe; SAVES times 18 GB must fit. Set PYTHON for another interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-${TMPDIR:-/tmp}}
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0} PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}
exec timeout 240 "${PYTHON:-python3}" bench/save_stall.py 1b "$folder" "${2:-3}"
