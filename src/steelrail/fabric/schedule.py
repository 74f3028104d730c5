"""Who exchanges with whom, when, and how often. Pure."""

from __future__ import annotations

import math

MIN_REPEATS = 3


def tournament(num_players: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the rounds of a round-robin tournament: every pair once, each player at most once a round.

    Circle method: player 0 stays, the others go round; with an odd number one player rests in each round. Pairs are
    (lower, higher). Disjoint pairs of a round run at once without sharing a node's ports.
    """
    players = list(range(num_players + num_players % 2))
    rounds = []
    for _ in range(len(players) - 1):
        meetings = zip(players[: len(players) // 2], reversed(players[len(players) // 2 :]), strict=True)
        rounds.append(tuple((min(pair), max(pair)) for pair in meetings if max(pair) < num_players))
        players[1:] = [players[-1], *players[1:-1]]
    return tuple(rounds)


def partner(meetings: tuple[tuple[int, int], ...], player: int) -> int | None:
    """Return whom a player meets in a round, or none when it rests."""
    return next((sum(pair) - player for pair in meetings if player in pair), None)


def repeats_within(once_seconds: float, repeats: int, budget_seconds: float) -> int:
    """Return how many repeats fit a time budget: at most ``repeats``, at least three."""
    fitting = math.floor(budget_seconds / max(once_seconds, 1e-9))
    return max(min(MIN_REPEATS, repeats), min(repeats, fitting))


def percentile(values: list[float], percent: float) -> float:
    """Return the nearest-rank percentile: a value that was seen. Of few values p99 is the largest."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
