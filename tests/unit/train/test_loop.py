from itertools import pairwise
from typing import Any

import pytest


def losses(result: dict[str, Any]) -> list[float]:
    return [row["loss"] for row in result["rows"]]


def steps(result: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    return [event for event in result["events"][rank] if event["kind"] == "step"]


def without_times(result: dict[str, Any]) -> list[dict[str, Any]]:
    timed = ("step_seconds", "tokens_per_s", "time", "attempt")
    return [{name: value for name, value in row.items() if name not in timed} for row in result["rows"]]


@pytest.mark.parametrize("name", ["two", "four", "accumulated", "recomputed", "replicas"])
def test_losses_do_not_depend_on_ranks_micro_batches_or_recompute(ran: dict[str, Any], name: str) -> None:
    assert losses(ran[name]) == pytest.approx(losses(ran["one"]), abs=1e-5)


@pytest.mark.parametrize("field", ["grad_norm", "heldout_loss"])
@pytest.mark.parametrize("name", ["two", "four", "accumulated", "replicas"])
def test_gradient_norm_and_heldout_loss_do_not_depend_on_ranks(ran: dict[str, Any], name: str, field: str) -> None:
    found = [row[field] for row in ran[name]["rows"] if row[field] is not None]
    expected = [row[field] for row in ran["one"]["rows"] if row[field] is not None]
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", ["two", "four", "replicas"])
def test_token_digest_does_not_depend_on_ranks_beyond_its_own_sum(ran: dict[str, Any], name: str) -> None:
    ranks = len(ran[name]["events"])
    # Each rank's digest in these scenarios is its tokens' sum plus 2^62.
    expected = [(row["token_digest"] + (ranks - 1) * 2**62) % 2**63 for row in ran["one"]["rows"]]
    assert [row["token_digest"] for row in ran[name]["rows"]] == expected


def test_the_same_run_twice_is_equal_to_the_last_bit(ran: dict[str, Any]) -> None:
    assert without_times(ran["again"]) == without_times(ran["one"])


def test_a_resumed_run_needs_no_initial_weights_and_is_equal_to_the_last_bit(ran: dict[str, Any]) -> None:
    assert without_times(ran["resumed"]) == without_times(ran["two"])[3:]


def test_bf16_follows_fp32_closely_but_not_exactly(ran: dict[str, Any]) -> None:
    assert losses(ran["bf16"]) == pytest.approx(losses(ran["two"]), abs=0.01)
    assert losses(ran["bf16"]) != losses(ran["two"])


@pytest.mark.parametrize("name", ["one", "tied", "bf16"])
def test_the_loss_falls(ran: dict[str, Any], name: str) -> None:
    assert losses(ran[name])[-1] < losses(ran[name])[0] - 0.3


def test_checkpoints_are_made_at_the_interval_and_at_the_end(ran: dict[str, Any]) -> None:
    assert ran["two"]["saved"] == ["0-3", "0-6", "1-3", "1-6"]


def test_heldout_loss_is_taken_before_the_first_step_at_the_interval_and_at_the_end(ran: dict[str, Any]) -> None:
    found = [event["data"]["step"] for event in ran["two"]["events"][1] if event["kind"] == "heldout"]
    assert found == [0, 3, 6]
    assert [row["step"] for row in ran["two"]["rows"] if row["heldout_loss"] is not None] == [3, 6]


def test_a_signal_on_one_rank_makes_all_save_and_stop_after_that_step(ran: dict[str, Any]) -> None:
    assert ran["stopped"]["outcomes"] == ["SAVED_ON_SIGNAL"] * 2
    assert ran["stopped"]["saved"] == ["0-2", "1-2"]
    assert [row["step"] for row in ran["stopped"]["rows"]] == [1, 2]


def test_save_now_on_one_rank_makes_all_save_and_go_on(ran: dict[str, Any]) -> None:
    assert ran["save_now"]["outcomes"] == ["DONE"] * 2
    assert ran["save_now"]["saved"] == ["0-2", "0-3", "0-6", "1-2", "1-3", "1-6"]


def test_a_loss_that_is_not_finite_stops_every_rank_and_names_step_and_data(ran: dict[str, Any]) -> None:
    expected = "TrainError: loss must be finite, is nan (step 3, sequences 16 to 23 of the data's order)"
    assert [error.split("):")[0] + ")" for error in ran["poisoned"]["errors"]] == [expected] * 2
    assert ran["poisoned"]["saved"] == []


def test_a_raise_drill_raises_at_its_step(ran: dict[str, Any]) -> None:
    assert [row["step"] for row in ran["raised"]["rows"]] == [1, 2, 3]
    assert ran["raised"]["errors"][0].startswith("DrillError: raised on purpose in productive at step 4")


def test_an_exit_drill_ends_the_process_without_a_word(ran: dict[str, Any]) -> None:
    assert [row["step"] for row in ran["exited"]["rows"]] == [1]
    assert ran["exited"]["errors"] + ran["exited"]["outcomes"] == []


@pytest.mark.parametrize(("category", "step"), [("data_wait", 3), ("communication", 4)])
def test_a_wait_of_a_step_appears_in_its_category_alone(ran: dict[str, Any], category: str, step: int) -> None:
    for rank in (0, 1):
        seconds = {event["data"]["step"]: event["data"]["seconds"][category] for event in steps(ran["waits"], rank)}
        assert seconds == pytest.approx({number: 20.0 if number == step else 0.0 for number in range(1, 7)}, abs=0.01)


def test_a_productive_wait_is_in_the_rest_of_its_step(ran: dict[str, Any]) -> None:
    for rank in (0, 1):
        rests = {
            event["data"]["step"]: event["time"] - event["data"]["start"] - sum(event["data"]["seconds"].values())
            for event in steps(ran["waits"], rank)
        }
        assert rests == pytest.approx({number: 20.0 if number == 2 else 0.0 for number in range(1, 7)}, abs=0.01)


def test_a_checkpoint_wait_is_between_entering_and_leaving_that_category(ran: dict[str, Any]) -> None:
    for rank in (0, 1):
        entered = [event for event in ran["waits"]["events"][rank] if event["kind"] == "enter"]
        stalls = [
            after["time"] - before["time"]
            for before, after in pairwise(entered)
            if before["data"]["category"] == "checkpoint"
        ]
        assert stalls == pytest.approx([0.0, 20.0], abs=0.01)


def test_categories_of_a_step_never_exceed_its_stretch(ran: dict[str, Any]) -> None:
    for name in ("one", "two", "four", "accumulated"):
        for event in steps(ran[name], 0):
            assert sum(event["data"]["seconds"].values()) <= event["time"] - event["data"]["start"] + 1e-3


def test_every_rank_writes_one_event_per_step(ran: dict[str, Any]) -> None:
    for rank in range(4):
        assert [event["data"]["step"] for event in steps(ran["four"], rank)] == [1, 2, 3, 4, 5, 6]
        assert {event["data"]["tokens"] for event in steps(ran["four"], rank)} == {8 * 16}
