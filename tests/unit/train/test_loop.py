import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch


def losses(result: dict[str, Any]) -> list[float]:
    return [row["loss"] for row in result["rows"]]


def steps(result: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    return [event for event in result["events"][rank] if event["kind"] == "step"]


def notes(result: dict[str, Any], rank: int) -> list[str]:
    return [event["data"]["text"] for event in result["events"][rank] if event["kind"] == "note"]


def state_at(result: dict[str, Any], rank: int, step: int) -> dict[str, dict[str, torch.Tensor]]:
    state: dict[str, dict[str, torch.Tensor]] = torch.load(
        Path(result["root"]) / f"state-{rank}-{step}.pt", weights_only=True
    )
    return state


def differing(
    one: dict[str, dict[str, torch.Tensor]], other: dict[str, dict[str, torch.Tensor]]
) -> list[tuple[str, str]]:
    """Kind and name of every tensor that is not equal to the last bit."""
    return [(kind, name) for kind in one for name in one[kind] if not torch.equal(one[kind][name], other[kind][name])]


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


def test_a_save_is_told_the_heldout_loss_of_its_very_step_on_every_rank(ran: dict[str, Any]) -> None:
    heldout = {row["step"]: f"{row['heldout_loss']}" for row in ran["save_now"]["rows"]}
    assert ran["save_now"]["saved_losses"] == {f"{rank}-{step}": heldout[step] for rank in (0, 1) for step in (2, 3, 6)}
    assert (heldout[2], "None" in (heldout[3], heldout[6])) == ("None", False)


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


def test_a_step_left_out_leaves_weights_and_moments_as_they_were_to_the_last_bit(ran: dict[str, Any]) -> None:
    for rank in (0, 1):
        before, after, later = (state_at(ran["skips"], rank, step) for step in (2, 3, 4))
        assert differing(before, after) == []
        assert {kind for kind, _ in differing(after, later)} == {"model", "exp_avg", "exp_avg_sq"}


def test_later_steps_equal_a_run_without_that_update_to_the_last_bit(ran: dict[str, Any]) -> None:
    assert ran["skips"]["outcomes"] == ["DONE"] * 2
    assert without_times(ran["skips"])[3:] == without_times(ran["left_out"])[3:]
    for rank in (0, 1):
        assert differing(state_at(ran["skips"], rank, 6), state_at(ran["left_out"], rank, 6)) == []


def test_a_step_left_out_is_marked_in_its_row_and_event(ran: dict[str, Any]) -> None:
    assert [row["skipped"] for row in ran["skips"]["rows"]] == [False, False, True, False, False, False]
    assert [math.isfinite(row["loss"]) for row in ran["skips"]["rows"]] == [True, True, False, True, True, True]
    for rank in (0, 1):
        assert [event["data"].get("skipped") for event in steps(ran["skips"], rank)] == [None, None, True, *[None] * 3]


def test_a_bad_step_is_noted_once_with_its_place_in_the_data(ran: dict[str, Any]) -> None:
    digest = ran["left_out"]["rows"][2]["token_digest"]
    said = "loss must be finite, is nan (step 3, sequences 16 to 23 of the data's order, epochs 0 to 1"
    assert notes(ran["skips"], 0) == [f"bad step, skip: {said}; token digest {digest})"]
    assert notes(ran["skips"], 1) == []


def test_the_time_of_a_step_left_out_is_lost_and_that_of_others_is_not(ran: dict[str, Any]) -> None:
    for event in steps(ran["skips"], 1):
        data, length = event["data"], event["time"] - event["data"]["start"]
        assert sum(data["seconds"].values()) <= length + 1e-3
        assert (data["seconds"].get("lost", 0.0) > 0.0) is (data["step"] == 3)


@pytest.mark.parametrize(("name", "start"), [("skips_again", 2), ("skipped_before", 3)])
def test_a_resumed_run_leaves_out_the_same_steps_to_the_last_bit(ran: dict[str, Any], name: str, start: int) -> None:
    assert str(without_times(ran[name])) == str(without_times(ran["skips"])[start:])
    for rank in (0, 1):
        assert differing(state_at(ran[name], rank, 6), state_at(ran["skips"], rank, 6)) == []


def test_a_run_that_stops_at_a_bad_step_has_saved_and_recorded_nothing_of_it(ran: dict[str, Any]) -> None:
    assert ran["stops"]["outcomes"] == []
    assert ran["stops"]["saved"] == ["0-1", "0-2", "1-1", "1-2"]
    assert [row["step"] for row in ran["stops"]["rows"]] == [1, 2]
    assert [len(steps(ran["stops"], rank)) for rank in (0, 1)] == [2, 2]
    assert [note.split(":")[0] for note in notes(ran["stops"], 0)] == ["bad step, stop"]


def test_more_steps_left_out_than_the_limit_stop_every_rank(ran: dict[str, Any]) -> None:
    expected = "TrainError: steps left out must be at most 1, is 2 (loss nan) (step 5, sequences 32 to 39 of"
    assert [error[: len(expected)] for error in ran["too_many"]["errors"]] == [expected] * 2
    assert "raise train.bad_step.limit" in ran["too_many"]["errors"][0]
    assert ran["too_many"]["saved"][-1] == "1-4"


def test_a_roll_back_is_decided_by_every_rank_and_keeps_nothing_of_the_bad_step(ran: dict[str, Any]) -> None:
    rolls, said = ran["rolls"], "loss must be finite, is nan (step 3, sequences 16 to 23 of the data's order"
    assert rolls["outcomes"] == ["ROLLED_BACK"] * 2
    assert [one[: len(said) + 2] for one in rolls["rolled_back"]] == [f"3 {said}"] * 2
    assert rolls["saved"] == ["0-1", "0-2", "1-1", "1-2"]
    assert [row["step"] for row in rolls["rows"]] == [1, 2]
    assert notes(rolls, 0)[0].startswith(f"bad step, roll_back: {said}")


def test_the_time_of_the_bad_step_is_lost_when_it_is_rolled_back(ran: dict[str, Any]) -> None:
    for rank in (0, 1):
        last = steps(ran["rolls"], rank)[-1]["data"]
        assert (last["step"], last["skipped"], last["seconds"]["lost"] > 0.0) == (3, True, True)


def test_what_a_roll_back_leaves_out_is_marked_and_not_judged(ran: dict[str, Any]) -> None:
    rolled = ran["rolled"]
    assert rolled["outcomes"] == ["DONE"] * 2
    assert [row["step"] for row in rolled["rows"] if row["skipped"]] == [2, 3]
    assert [math.isfinite(row["loss"]) for row in rolled["rows"]] == [True, False, True, True, True]
    assert (notes(rolled, 0), rolled["rolled_back"]) == ([], [])
    assert [event["data"]["step"] for event in steps(rolled, 1) if event["data"].get("skipped")] == [2, 3]
    for rank in (0, 1):
        assert differing(state_at(ran["rolls"], rank, 1), state_at(rolled, rank, 3)) == []


def test_steps_after_a_roll_back_equal_a_run_without_those_updates_to_the_last_bit(ran: dict[str, Any]) -> None:
    assert without_times(ran["rolled"])[2:] == without_times(ran["left_out_both"])[3:]
    for rank in (0, 1):
        assert differing(state_at(ran["rolled"], rank, 6), state_at(ran["left_out_both"], rank, 6)) == []


def test_a_restart_after_a_roll_back_leaves_out_the_same_steps_to_the_last_bit(ran: dict[str, Any]) -> None:
    assert str(without_times(ran["rolled_again"])) == str(without_times(ran["rolled"])[1:])
    for rank in (0, 1):
        assert differing(state_at(ran["rolled_again"], rank, 6), state_at(ran["rolled"], rank, 6)) == []


def test_more_roll_backs_than_the_limit_stop_every_rank(ran: dict[str, Any]) -> None:
    expected = "TrainError: roll backs must be at most 2, is 3 (loss nan) (step 3, sequences 16 to 23 of"
    assert [error[: len(expected)] for error in ran["rolled_too_often"]["errors"]] == [expected] * 2
    assert "raise train.bad_step.limit" in ran["rolled_too_often"]["errors"][0]
    assert ran["rolled_too_often"]["rolled_back"] == []


def test_ranks_that_judge_a_step_differently_all_stop_and_save_nothing(ran: dict[str, Any]) -> None:
    expected = "TrainError: a step must be good or bad on all ranks alike, is bad on some (1 of 2 ranks)"
    assert [error.split("):")[0] + ")" for error in ran["at_odds"]["errors"]] == [expected] * 2
    assert (ran["at_odds"]["saved"], ran["at_odds"]["rows"]) == ([], [])


@pytest.mark.parametrize("name", ["spikes", "spikes_again"])
def test_a_spike_of_the_loss_is_left_out_after_a_restart_too(ran: dict[str, Any], name: str) -> None:
    assert [row["step"] for row in ran[name]["rows"] if row["skipped"]] == [5]
    assert differing(state_at(ran["spikes"], 0, 4), state_at(ran[name], 0, 5)) == []
    assert "loss must be at most 1.02 x" in notes(ran[name], 0)[0]


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


def test_every_wait_of_the_loop_is_told_of_within_its_step_or_its_save(ran: dict[str, Any]) -> None:
    for rank in (0, 1):
        told = [event for event in ran["waits"]["events"][rank] if event["kind"] == "drill"]
        assert [event["data"]["where"] for event in told] == ["productive", "data_wait", "communication", "checkpoint"]
        assert [event["data"]["seconds"] for event in told] == pytest.approx([20.0] * 4, abs=0.01)
        stretches = {
            event["data"]["step"]: (event["data"]["start"], event["time"]) for event in steps(ran["waits"], rank)
        }
        for event, (start, end) in zip(told[:3], (stretches[number] for number in (2, 3, 4)), strict=True):
            assert start <= event["data"]["start"] and event["time"] <= end


def test_categories_of_a_step_never_exceed_its_stretch(ran: dict[str, Any]) -> None:
    for name in ("one", "two", "four", "accumulated"):
        for event in steps(ran[name], 0):
            assert sum(event["data"]["seconds"].values()) <= event["time"] - event["data"]["start"] + 1e-3


def test_every_rank_writes_one_event_per_step(ran: dict[str, Any]) -> None:
    for rank in range(4):
        assert [event["data"]["step"] for event in steps(ran["four"], rank)] == [1, 2, 3, 4, 5, 6]
        assert {event["data"]["tokens"] for event in steps(ran["four"], rank)} == {8 * 16}
