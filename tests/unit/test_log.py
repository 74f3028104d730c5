import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from steelrail import log


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield root
    root.handlers[:], root.level = before, level


def test_a_log_file_that_takes_no_more_is_left_with_one_word_of_it(
    root: logging.Logger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.log").symlink_to("/dev/full")
    log.configure()
    log.also_to(tmp_path / "train.log")
    for number in range(3):
        log.logger("x").info("line %d", number)
    said = capsys.readouterr().err.splitlines()
    assert 4 == len(said)
    assert f"{tmp_path / 'train.log'} takes no more lines: [Errno 28] No space left on device" in said[1]
