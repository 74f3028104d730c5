from pathlib import Path

from steelrail.artifacts.files import read_artifact
from steelrail.clients.ranks import RankPlace
from steelrail.fabric.progress import Progress
from steelrail.fabric.whereabouts import Whereabouts


def test_the_file_says_where_the_rank_is_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    progress = Progress(RankPlace(3, 4, 1, 1, 2, "node2"), tmp_path / "doing.json")
    with progress.part("pairs"):
        found = read_artifact(tmp_path / "doing.json", Whereabouts)
    assert (found.rank, found.host, found.doing, progress.doing) == (3, "node2", "pairs", "pairs")
    assert [path.name for path in tmp_path.iterdir()] == ["doing.json"]


def test_parts_are_timed(tmp_path: Path) -> None:
    progress = Progress(RankPlace(0, 1, 0, 0, 1, "node1"), tmp_path / "doing.json")
    for part in ("meet", "health"):
        with progress.part(part):  # type: ignore[arg-type]
            pass
    assert list(progress.seconds) == ["meet", "health"]
