"""``flight-active.json``: torch 2.11 on an H200, three collectives handed in behind a kernel that goes on."""

import json
from pathlib import Path

import pytest

from steelrail.errors import InputError
from steelrail.formats.flight import oldest_pending

RECORDED = (Path(__file__).resolve().parents[2] / "data" / "flight-active.json").read_bytes()


def test_the_collective_that_was_handed_in_first_is_named_with_its_number_and_group():
    assert oldest_pending(RECORDED) == "_all_gather_base 2 of default_pg"


def test_what_is_over_is_not_waited_for():
    record = json.loads(RECORDED)
    for entry in record["entries"][:2]:
        entry["state"] = "completed"
    assert oldest_pending(json.dumps(record)) == "all_reduce 1 of spare"
    assert oldest_pending(json.dumps({**record, "entries": []})) == ""


@pytest.mark.parametrize("text", ["", "[]", "{", '{"entries": [{}]}', '{"entries": 3}'])
def test_a_text_that_is_no_recording_is_refused(text):
    with pytest.raises(InputError, match="recording must be JSON of torch's flight recorder"):
        oldest_pending(text)
