"""The held-out split."""

from __future__ import annotations

import pytest

from steelrail.shards.split import choose_split


@pytest.mark.parametrize("per_million", [0, 20_000, 500_000])
def test_the_share_held_out_is_the_one_asked_for(per_million: int) -> None:
    texts = [f"document {index}".encode() for index in range(20_000)]
    share = sum(choose_split(text, per_million) == "heldout" for text in texts) / len(texts)
    assert share == pytest.approx(per_million / 1e6, abs=0.012)


def test_a_larger_share_keeps_what_a_smaller_one_held_out() -> None:
    texts = [f"document {index}".encode() for index in range(5_000)]
    small = {text for text in texts if choose_split(text, 10_000) == "heldout"}
    assert small
    assert small <= {text for text in texts if choose_split(text, 50_000) == "heldout"}


def test_the_choice_is_fixed_for_ever() -> None:
    texts = [f"document {index}".encode() for index in range(200)]
    assert [index for index, text in enumerate(texts) if choose_split(text, 20_000) == "heldout"] == [
        91,
        143,
        177,
        182,
        188,
    ]
