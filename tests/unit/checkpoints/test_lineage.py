from __future__ import annotations

import pytest

from steelrail.checkpoints.layout import StepId
from steelrail.checkpoints.lineage import Resumed, is_void


@pytest.mark.parametrize(
    ("saved", "resumed", "void"),
    [
        (StepId(150, 1), [Resumed(2, 100, 1)], True),  # a zombie's commit, or a save the next attempt did not have
        (StepId(150, 1), [Resumed(2, 150, 1)], False),  # its own resumption
        (StepId(100, 1), [Resumed(2, 150, 1)], False),  # an ancestor
        (StepId(150, 2), [Resumed(2, 100, 1)], False),  # made by the attempt that resumed from before it
        (StepId(150, 1), [Resumed(2, 0, 0)], True),  # a later attempt started from scratch
        (StepId(150, 1), [], False),
        (StepId(150, 1), [Resumed(1, 0, 0), Resumed(3, 150, 1), Resumed(4, 149, 1)], True),
        # Attempt 2 was overtaken before it wrote down its start: what attempt 3 stands on counts all the same.
        (StepId(150, 1), [Resumed(2, 100, 1), Resumed(3, 150, 1)], False),
        (StepId(120, 2), [Resumed(2, 100, 1), Resumed(3, 150, 1)], True),  # and what attempt 2 made of it does not
        (StepId(90, 1), [Resumed(2, 100, 1), Resumed(4, 120, 3)], False),  # attempt 3 took over from NVMe and was gone
        (StepId(110, 1), [Resumed(2, 100, 1), Resumed(4, 120, 3)], True),
    ],
)
def test_save_counts_unless_a_later_attempt_resumed_from_before_it(
    saved: StepId, resumed: list[Resumed], void: bool
) -> None:
    assert is_void(saved, resumed) is void
