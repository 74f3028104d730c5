"""Row 16: a store that overwrites where it was asked not to. Fences and manifests mean nothing there: it is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from proxy import Fault, Proxy
from runs import Case

SAID = "store must be one that refuses a second put with If-None-Match: *, is one that overwrites"


@pytest.mark.quick
@pytest.mark.row(16, "start")
def test_a_store_that_ignores_if_none_match_is_refused_before_anything_is_submitted(
    case: Case, proxy: Proxy, shows: Callable[[str], None]
) -> None:
    fault = proxy.add(Fault("unconditional", verb="put", times=float("inf")))
    done = case.train()
    assert done.code == 5, done.said
    assert SAID in done.said
    assert (case.attempts(), len(fault.met)) == (0, 2)
    shows(f"exit code 5 after {done.seconds:.1f} s, nothing submitted")


@pytest.mark.row(16, "start of the ranks")
def test_a_store_that_ignores_if_none_match_from_the_nodes_is_refused_before_a_step(
    case: Case, proxy: Proxy, shows: Callable[[str], None]
) -> None:
    # The head's probe and the fence see a good server; the nodes are led to another.
    proxy.add(Fault("unconditional", verb="put", key="/probe/", skip=2, times=float("inf")))
    done = case.train()
    assert done.code == 5, done.said
    assert SAID in done.said
    assert case.steps(1) == []
    shows(f"exit code 5 after {done.seconds:.1f} s, no step")
