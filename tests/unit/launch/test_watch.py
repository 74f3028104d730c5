from dataclasses import replace

from steelrail.artifacts.trainer import Heartbeat
from steelrail.launch.watch import Watch, find_hang, observe

HANG, STARTUP = 60.0, 600.0


def beat(rank, time, progress, step=None, doing="step", pid=1):
    return Heartbeat(1, rank, f"node{rank // 2}", pid, time, progress, step, doing)


def run(looks, world=4, hang=HANG, startup=STARTUP):
    """Return (time, hang) of the first hang found; ``looks`` is (time, heartbeats) in order."""
    watch = Watch(0.0)
    for now, beats in looks:
        watch = observe(watch, beats, now)
        found = find_hang(watch, world, now, hang, startup)
        if found:
            return now, found
    return None, None


def healthy(now, ranks=range(4), step_seconds=1.0):
    return {rank: beat(rank, now, int(now), int(now / step_seconds)) for rank in ranks}


def test_ranks_that_get_on_do_not_hang():
    assert run([(float(now), healthy(now)) for now in range(1000)]) == (None, None)


def test_a_stopped_rank_is_named_within_the_limit():
    looks = [(float(now), healthy(now)) for now in range(100)]
    stopped = beat(2, 99.0, 99, 99)
    # The others live and wait in the collective of step 100.
    waiting = {rank: beat(rank, 99.0, 100, 99) for rank in (0, 1, 3)}
    looks += [
        (float(now), {2: stopped, **{rank: replace(one, time=float(now)) for rank, one in waiting.items()}})
        for now in range(100, 200)
    ]
    when, found = run(looks)
    assert (found.rank, found.host, found.silent, found.host_silent) == (2, "node1", True, False)
    assert 99 + HANG <= when <= 99 + HANG + 2


def test_a_host_of_which_no_rank_gives_a_sign_is_told_from_one_stopped_rank():
    looks = [(float(now), healthy(now)) for now in range(10)]
    looks += [(float(now), {**healthy(9), **healthy(now, ranks=(0, 1))}) for now in range(10, 100)]
    _, found = run(looks)
    assert (found.host, found.silent, found.host_silent) == ("node1", True, True)


def test_a_living_rank_that_never_reached_the_collective_is_named():
    looks = [(float(now), healthy(now)) for now in range(100)]
    looks += [
        (float(now), {rank: beat(rank, now, 99 if rank == 1 else 100, 98 if rank == 1 else 99) for rank in range(4)})
        for now in range(100, 200)
    ]
    _, found = run(looks)
    assert (found.rank, found.silent) == (1, False)


def test_ranks_that_wait_in_a_collective_are_told_from_the_one_that_does_not():
    looks = [(float(now), healthy(now)) for now in range(10)]
    looks += [
        (float(now), {rank: replace(beat(rank, now, 10, 9), waits=rank != 3, at="x.y") for rank in range(4)})
        for now in range(10, 100)
    ]
    _, found = run(looks)
    assert (found.rank, found.stands_out) == (3, True)
    assert found.doing == "step, step 9, in x.y; rank 0 waits in x.y"


def test_the_collective_that_gpus_wait_in_is_named_beside_the_culprit():
    looks = [(float(now), healthy(now)) for now in range(10)]
    wait = {"waits": True, "collective": "all_gather 118 of default_pg", "at": "streams.synchronize"}
    looks += [
        (float(now), {rank: replace(beat(rank, now, 10, 9), **({} if rank == 1 else wait)) for rank in range(4)})
        for now in range(10, 100)
    ]
    _, found = run(looks)
    assert (found.rank, found.stands_out) == (1, True)
    assert found.doing.endswith("; rank 0 waits in all_gather 118 of default_pg")


def test_when_all_ranks_wait_for_each_other_nobody_is_to_blame():
    looks = [(float(now), healthy(now)) for now in range(10)]
    looks += [
        (float(now), {rank: replace(beat(rank, now, 10, 9), waits=True) for rank in range(4)}) for now in range(10, 100)
    ]
    assert run(looks)[1].stands_out is False


def test_loading_libraries_may_silence_a_rank_for_a_minute():
    looks = [
        (float(now), {r: beat(r, min(now, 5) if r == 3 else now, 1, None, "imports") for r in range(4)})
        for now in range(90)
    ]
    when, _ = run(looks, hang=15.0)
    assert 65 <= when <= 67


def test_slow_steps_raise_the_limit_to_three_times_their_p99():
    looks = [(float(now), healthy(now, step_seconds=50.0)) for now in range(500)]
    stuck = {rank: beat(rank, 499.0, 499, 9) for rank in range(4)}
    looks += [(float(now), {r: replace(one, time=float(now)) for r, one in stuck.items()}) for now in range(500, 700)]
    when, _ = run(looks)
    assert 499 + 150 <= when <= 499 + 153


def test_before_the_first_step_ranks_have_the_time_of_start_up():
    still = [(float(now), {rank: beat(rank, now, 1, None, "restore") for rank in range(4)}) for now in range(700)]
    when, found = run(still)
    assert STARTUP <= when <= STARTUP + 2
    assert found.doing == "restore"


def test_a_rank_silent_during_start_up_is_named_sooner():
    looks = [
        (float(now), {rank: beat(rank, min(now, 20) if rank == 3 else now, 1, None, "meet") for rank in range(4)})
        for now in range(200)
    ]
    when, found = run(looks)
    assert (found.rank, found.silent) == (3, True)
    assert when <= 20 + HANG + 2


def test_a_rank_that_never_came_to_life_is_named():
    looks = [(float(now), {rank: beat(rank, now, now) for rank in (0, 1, 2)}) for now in range(400)]
    _, found = run(looks)
    assert (found.rank, found.host) == (3, "?")


def test_a_node_whose_clock_stands_wrong_does_not_look_hung():
    looks = [(float(now), {rank: beat(rank, now - 5000.0, now, now) for rank in range(4)}) for now in range(300)]
    assert run(looks) == (None, None)


def test_exporting_weights_is_not_judged_by_steps():
    looks = [(float(now), healthy(now)) for now in range(10)]
    looks += [(float(now), {rank: beat(rank, now, 10, 9, "export") for rank in range(4)}) for now in range(10, 400)]
    assert run(looks) == (None, None)
