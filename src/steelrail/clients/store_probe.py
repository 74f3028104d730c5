"""Whether a store keeps its word, before anything is trusted to it: some overwrite on a conditional put."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from steelrail.errors import StoreError, must

if TYPE_CHECKING:
    from steelrail.clients.store import Store


def probe(store: Store, where: Callable[[str], str]) -> None:
    """Put, get, list and delete one small object; a second conditional put must be refused. Raises ``StoreError``."""
    store.require_bucket()
    key, data = store.key("probe", secrets.token_hex(8)), secrets.token_bytes(64)
    try:
        _expect(store.put_if_absent(key, data), where(key), "able to take a conditional put", "not")
        _expect(store.get(key) == data, where(key), "faithful to what was put", "not")
        listed = [found.key for found in store.list(key)]
        _expect(listed == [key], where(key), "consistent (a put object is listed)", "not")
        refused = not store.put_if_absent(key, secrets.token_bytes(64)) and store.get(key) == data
        _expect(refused, where(key), "one that refuses a second put with If-None-Match: *", "one that overwrites")
    finally:
        store.delete(key)
    _expect(store.head(key) is None, where(key), "able to delete", "not")


def _expect(kept: bool, where: str, be: str, actual: str) -> None:
    if not kept:
        do = "use a store that keeps it (such as SeaweedFS, Ceph RGW or AWS)"
        raise StoreError(must("store", be, actual, where, do))
