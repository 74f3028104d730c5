"""Remove what a run keeps in its store: ``forget_run.py RUN_FILE``. For the demo; a real run is never forgotten."""

from __future__ import annotations

import sys

from steelrail.clients.store import Store
from steelrail.config.load import load_run


def main() -> None:
    run = load_run(sys.argv[1])
    store = Store.open(run.store)
    for item in store.list(store.key(run.name) + "/"):
        store.delete(item.key)


if __name__ == "__main__":
    main()
