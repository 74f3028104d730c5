"""scripts/demo_local.py with a secret that can be looked for: ``python canary_demo.py SECRET STEPS RESULTS``.

Before the store ends, every object is read, and RESULTS/objects.json says which there were and which hold the secret.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import demo_local

from steelrail.clients.store import Store

SECRET, RESULTS = sys.argv.pop(1), Path(sys.argv[-1])
run_chain = demo_local.chain


def chain_and_look(run: Any) -> Any:
    bill, store = run_chain(run), Store.open(run.store)
    keys = [found.key for found in store.list("")]
    holding = [key for key in keys if SECRET.encode() in store.get(key) or SECRET in key]
    (RESULTS / "objects.json").write_text(json.dumps({"objects": keys, "holding": holding}))
    return bill


# Its access key has twenty characters, its secret forty: both are the canary's.
demo_local.secrets = SimpleNamespace(token_hex=lambda size: SECRET[: 2 * size])  # type: ignore[attr-defined]
demo_local.chain = chain_and_look
sys.exit(demo_local.main())
