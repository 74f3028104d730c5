from steelrail.fabric.whereabouts import Part, Whereabouts, where_they_were


def at(part: Part, *ranks: int) -> list[Whereabouts]:
    return [Whereabouts(rank=rank, host=f"node{rank // 2 + 1}", doing=part, since=1.0) for rank in ranks]


def test_ranks_that_fell_behind_are_named_with_their_host_and_where_they_stayed() -> None:
    found = [*at("pairs", 0, 1, 2, 3, 4, 5, 6), *at("health", 7)]
    assert where_they_were(found, 8) == "ranks 0-6 were in pairs; rank 7 on node4 did not get there: health"


def test_ranks_that_wait_together_are_one_group() -> None:
    assert where_they_were(at("leave", 1, 0), 2) == "ranks 0-1 were in leave"


def test_ranks_without_a_file_never_started() -> None:
    assert where_they_were(at("meet", 0), 4) == "rank 0 was in meet; ranks 1-3 never started"
    assert where_they_were([], 2) == "ranks 0-1 never started"


def test_of_many_hosts_that_fell_behind_some_are_named() -> None:
    said = where_they_were([*at("pairs", 0), *at("connect", *range(1, 20))], 20)
    assert said == "rank 0 was in pairs; ranks 1-19 on node1, node2, node3, node4 and 6 more did not get there: connect"
