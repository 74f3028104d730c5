from decimal import Decimal
from functools import partial

import rundir

from steelrail.cost.segments import Segment
from steelrail.launch.spend import ledger_segments, spent_micro_usd, usd_per_second, with_late

entry = partial(rundir.entry, started=110.0)


def times(segments):
    return [(one.job_id, one.segment, one.start, one.end) for one in segments]


def row(start, end, job_id="15", gpus=64):
    return Segment("train", job_id, 0, "RUNNING", ("node1",), start, end, gpus, 8)


def test_a_segment_is_paid_once_however_many_attempts_it_holds(demo):
    entries = [
        entry(1, started=110.0, ended=200.0),
        entry(2, started=201.0, ended=300.0),
        entry(3, segment=1, segment_started=400.0, started=410.0, ended=None),
    ]
    assert times(ledger_segments(demo, entries, 450.0)) == [("15", 0, 100.0, 300.0), ("15", 1, 400.0, 450.0)]
    assert times(ledger_segments(demo, entries[:2], None)) == [("15", 0, 100.0, 300.0)]


def test_an_attempt_without_an_end_is_paid_for_until_now_or_from_its_start_alone(demo):
    assert times(ledger_segments(demo, [entry()], 500.0)) == [("15", 0, 100.0, 500.0)]
    assert times(ledger_segments(demo, [entry()], None)) == [("15", 0, 100.0, 110.0)]


def test_the_ledgers_segments_are_of_the_whole_shape(demo):
    (one,) = ledger_segments(demo, [entry()], 500.0)
    assert (one.stage, one.gpus, one.cpus) == ("train", 64, 8)


def test_what_slurm_tells_of_is_not_paid_for_twice(demo):
    own = ledger_segments(demo, [entry(ended=200.0)], None)
    assert with_late([row(100.0, 207.0)], own) == (row(100.0, 207.0),)
    assert with_late([row(101.0, 207.0)], own) == (row(101.0, 207.0),)


def test_a_segment_whose_row_is_late_is_paid_for_by_the_ledger(demo):
    entries = [entry(ended=200.0), entry(2, segment=1, segment_started=230.0, started=231.0)]
    own = ledger_segments(demo, entries, 240.0)
    assert times(with_late([row(100.0, 207.0)], own)) == [("15", 0, 100.0, 207.0), ("15", 1, 230.0, 240.0)]
    assert len(with_late([row(100.0, 207.0, job_id="14")], own)) == 3


def test_money_is_what_the_bill_would_charge_for_the_same_segments(demo):
    cpu = row(0.0, 3600.0, gpus=0)
    assert spent_micro_usd(demo, [row(0.0, 3600.0), cpu], "3.99") == 64 * 3_990_000 + 8 * 40_000


def test_gpus_without_a_price_cost_an_unknown_sum_and_never_nothing(demo):
    assert spent_micro_usd(demo, [row(0.0, 3600.0)], None) is None
    assert spent_micro_usd(demo, [row(0.0, 3600.0, gpus=0)], None) == 8 * 40_000


def test_the_allocations_rate_is_that_of_all_gpus_or_of_the_ranks_cpus(demo, change):
    assert usd_per_second(demo, "3.60") == 64 * Decimal("0.001")
    assert usd_per_second(demo, None) is None
    assert usd_per_second(change(demo, "slurm", spare_nodes=1), "3.60") == 80 * Decimal("0.001")
    assert usd_per_second(change(demo, "shape", gpus_per_node=0), None) == 8 * Decimal("0.04") / 3600
