"""What ``formats.sacct`` reads, in the words of a real Slurm 22.05.8 and in made-up ones where that one never spoke."""

from __future__ import annotations

from pathlib import Path

import pytest

from steelrail.errors import AccountingError
from steelrail.formats.sacct import SACCT_FIELDS, SacctRow, job_rows, over, parse, tres

# A four-node job requeued by its owner, then shrunk to three nodes; a CPU job that exits 3; one cancelled in the queue.
REAL = (Path(__file__).parents[2] / "data" / "slurm" / "sacct-requeue-resize.txt").read_text()


def row(**fields: str) -> str:
    blank = dict.fromkeys(SACCT_FIELDS, "") | {
        "JobIDRaw": "7",
        "State": "COMPLETED",
        "ExitCode": "0:0",
        "Submit": "1",
        "Start": "2",
        "End": "3",
        "ElapsedRaw": "1",
        "NNodes": "1",
    }
    return "|".join({**blank, **fields}.values())


def states(rows: tuple[SacctRow, ...]) -> list[str]:
    return [one.state for one in rows]


def test_every_attempt_of_a_requeued_and_resized_job_has_its_row() -> None:
    rows = job_rows(parse(REAL))["22"]
    actual = [(one.state, one.start, one.end, one.gpus, one.nodes) for one in rows]
    assert actual == [
        ("REQUEUED", 1796042517.0, 1796042525.0, 64, ("node1", "node2", "node3", "node4")),
        ("RESIZING", 1796042531.0, 1796042540.0, 64, ("node1", "node2", "node3", "node4")),
        ("COMPLETED", 1796042531.0, 1796042545.0, 48, ("node1", "node2", "node3")),
    ]


def test_a_failed_cpu_job_has_its_exit_code_and_no_gpu() -> None:
    (only,) = job_rows(parse(REAL))["23"]
    assert (only.state, only.exit_code, only.cpus, only.gpus, only.partition) == ("FAILED", 3, 1, 0, "cpu")


def test_a_job_cancelled_in_the_queue_never_started_and_is_over() -> None:
    rows = job_rows(parse(REAL))["24"]
    assert (rows[0].state, rows[0].start, rows[0].nodes, rows[0].gpus, over(rows)) == ("CANCELLED", None, (), 0, True)


def test_steps_are_rows_of_their_own_and_no_segments() -> None:
    steps = [(one.step, one.state, one.exit_signal) for one in parse(REAL) if one.job_id == "22" and one.step]
    expected = [("batch", "CANCELLED", 15), ("0", "CANCELLED", 15), ("batch", "RESIZING", 0), ("0", "COMPLETED", 0)]
    assert steps == expected


def test_a_head_line_is_no_row() -> None:
    body = REAL.partition("\n")[2]
    assert parse(REAL) == parse(body)


def test_an_unknown_end_leaves_the_row_open() -> None:
    (running,) = parse(row(State="RUNNING", End="Unknown"))
    assert (running.end, running.open, over((running,))) == (None, True, False)


@pytest.mark.parametrize("state", ["REQUEUED", "RESIZING"])
def test_a_row_that_the_job_goes_on_after_is_not_its_end(state: str) -> None:
    assert not over(parse(row(State=state)))


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY", "CANCELLED by 0", "FAILED"])
def test_final_states_end_a_job(state: str) -> None:
    assert over(parse(row(State=state)))


def test_no_row_is_not_an_end() -> None:
    assert not over(())


def test_a_pending_row_of_a_requeued_job_comes_last() -> None:
    text = "\n".join([row(State="PENDING", Start="Unknown", End="Unknown"), row(State="NODE_FAIL")])
    assert states(job_rows(parse(text))["7"]) == ["NODE_FAIL", "PENDING"]


def test_a_typed_gpu_count_is_not_added_to_the_plain_one() -> None:
    (both,) = parse(row(AllocTRES="billing=4,cpu=8,gres/gpu=8,gres/gpu:h100=8,mem=10G,node=1"))
    (typed,) = parse(row(AllocTRES="cpu=8,gres/gpu:h100=4,gres/gpu:a100=2"))
    assert (both.gpus, typed.gpus) == (8, 6)


def test_sizes_in_a_tres_are_left_out() -> None:
    assert tres("billing=16,cpu=16,mem=1500M,gres/gpu=64,node=4") == {
        "billing": 16,
        "cpu": 16,
        "gres/gpu": 64,
        "node": 4,
    }


def test_a_comment_may_hold_the_separator() -> None:
    (one,) = parse(row(Comment="run=a|stage=train"))
    assert one.comment == "run=a|stage=train"


def test_hosts_are_expanded() -> None:
    (one,) = parse(row(NodeList="node[1-2,4-5]"))
    assert one.nodes == ("node1", "node2", "node4", "node5")


@pytest.mark.parametrize("text", ["7|COMPLETED", "sacct: error: slurmdbd is away"])
def test_a_line_of_another_shape_is_refused(text: str) -> None:
    with pytest.raises(AccountingError, match="a row of sacct must be 16 fields"):
        parse(text)


def test_times_that_are_not_unix_seconds_are_refused() -> None:
    with pytest.raises(AccountingError, match="SLURM_TIME_FORMAT"):
        parse(row(Start="2026-11-30T12:00:00"))
