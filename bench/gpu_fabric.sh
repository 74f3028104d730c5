#!/bin/bash
# The fabric job's own code on N GPUs of this host, and a table of what it found.
#   bench/gpu_fabric.sh [N] [RUN_FILE] [FOLDER]
# N: GPUs, default all. RUN_FILE: whose model gives the message sizes. FOLDER: for report.json and NCCL's log.
# Set PYTHON for another interpreter, NCCL_NVLS_ENABLE=0 where NVLink multicast does not work.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
num_gpus=${1:-$("$python" -c 'import torch; print(torch.cuda.device_count())')}
run_file=${2:-config/llama3-70b-4x8.yaml}
folder=${3:-$(mktemp -d)}
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"

mkdir -p "$folder"
"$python" - "$run_file" "$num_gpus" "$folder" <<'PY'
import sys
from pathlib import Path

from steelrail.config.load import load_run

run, num_gpus = load_run(sys.argv[1]), int(sys.argv[2])
shape = run.shape.model_copy(
    update={"nodes": 1, "gpus_per_node": num_gpus, "ranks_per_node": num_gpus, "device": "cuda"}
)
fabric = run.fabric.model_copy(update={"matrix_size": 8192, "pair_bytes": 256_000_000, "repeats": 50})
train = run.train.model_copy(update={"global_batch_sequences": num_gpus * run.train.micro_batch_sequences})
run = run.model_copy(update={"shape": shape, "fabric": fabric, "train": train})
Path(sys.argv[3], "run.json").write_text(run.model_dump_json())
PY

export STEELRAIL_MASTER_ADDR=127.0.0.1 WORLD_SIZE=$num_gpus LOCAL_WORLD_SIZE=$num_gpus
STEELRAIL_MASTER_PORT=$("$python" -c 'from steelrail.clients.ranks import free_port; print(free_port())')
export STEELRAIL_MASTER_PORT
pids=()
for ((rank = 0; rank < num_gpus; rank++)); do
  RANK=$rank LOCAL_RANK=$rank "$python" -m steelrail.fabric.rank "$folder" &
  pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=$?; done
if ((failed)); then
  cat "$folder"/error-rank-*.json >&2 || true
  exit "$failed"
fi

"$python" - "$folder" <<'PY'
import sys
from pathlib import Path

from steelrail.artifacts.files import read_artifact
from steelrail.config.schema import Run
from steelrail.fabric.facts import Facts
from steelrail.fabric.judge import judge

folder = Path(sys.argv[1])
facts = read_artifact(folder / "report.json", Facts)
verdict = judge(facts, Run.model_validate_json((folder / "run.json").read_text()))
for node in facts.nodes:
    print(f"{node.host}: leaf {node.leaf}, ports {', '.join(node.nics)}, versions {node.versions}")
    for one in node.devices:
        seconds, bits = one.matrix_seconds_p50, one.matrix_digest[:12]
        print(f"  gpu{one.index} {one.name} {one.uuid}: product {seconds * 1e3:.3f} ms, bits {bits}")
print(f"\n{'pair':40} {'GB/s':>9} {'p50 ms':>9} {'p99 ms':>9}")
for pair in facts.pairs:
    name = f"{pair.first} - {pair.second}"
    print(f"{name:40} {pair.gb_per_s:9.2f} {pair.seconds_p50 * 1e3:9.3f} {pair.seconds_p99 * 1e3:9.3f}")
print(f"\n{'message':28} {'MB':>10} {'type':>5} {'p50 ms':>9} {'p95 ms':>9} {'p99 ms':>9} {'busbw GB/s':>11}  algorithm")
for one in facts.world:
    times = " ".join(f"{s * 1e3:9.3f}" for s in (one.seconds_p50, one.seconds_p95, one.seconds_p99))
    name = f"{one.what} {one.collective} x{one.repeats}"
    print(f"{name:28} {one.size_bytes / 1e6:10.3f} {one.dtype:>5} {times} {one.busbw_gb_per_s:11.2f}  {one.algorithm}")
print(f"\n{facts.world[0].library}; seconds {facts.seconds}")
for finding in verdict.findings:
    print(f"{finding.severity}: {finding.culprit}: {finding.what}")
print("fit" if verdict.fit else f"unfit, leave out {verdict.exclude}")
PY
