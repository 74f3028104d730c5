"""Snakemake's own lints, less the one that asks for a conda environment or container a rule.

Steelrail has one environment for all stages, frozen by digest with each run (docs/decisions/0003-one-environment.md).
"""

from __future__ import annotations

import subprocess
import sys

ALLOWED = "Specify a conda environment or container for each rule."


def main() -> int:
    done = subprocess.run([sys.executable, "-m", "snakemake", "--lint"], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    titles = [line.strip().removeprefix("* ") for line in said.splitlines() if line.startswith("    * ")]
    others = [title for title in titles if title.removesuffix(":") != ALLOWED]
    # Neither a lint nor success: the rules could not even be read.
    if others or (done.returncode and not titles):
        print(said)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
