import signal

import pytest

from steelrail.artifacts.events import EventWriter
from steelrail.artifacts.trainer import EXIT_DONE, EXIT_ROLLED_BACK, EXIT_SAVED, RunFolder
from steelrail.launch import traces
from steelrail.launch.rank import ended
from steelrail.train.context import Outcome


@pytest.mark.parametrize("outcome", [Outcome.SAVED_ON_SIGNAL, Outcome.ROLLED_BACK])
@pytest.mark.parametrize(("heard", "terminated"), [(signal.SIGTERM, True), (signal.SIGUSR2, False), (None, False)])
def test_term_that_came_to_the_ranks_alone_is_known_whatever_they_were_at(tmp_path, outcome, heard, terminated):
    folder = RunFolder(tmp_path)
    code, reason = ended(outcome, heard)
    events = EventWriter(folder.events(1, 0), 1, 0, "node1", lambda: 0.0)
    events.write("end", exit_code=code, reason=reason)
    events.close()
    assert traces.all_terminated(folder, 1, 1) is terminated


def test_every_outcome_has_its_exit_code():
    assert {outcome: ended(outcome, None) for outcome in Outcome} == {
        Outcome.DONE: (EXIT_DONE, "done"),
        Outcome.SAVED_ON_SIGNAL: (EXIT_SAVED, "saved on a signal"),
        Outcome.ROLLED_BACK: (EXIT_ROLLED_BACK, "rolled back"),
    }
