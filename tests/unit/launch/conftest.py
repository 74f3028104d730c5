import sys
from pathlib import Path

import pytest

from steelrail.config.load import load_run

ROOT = Path(__file__).parents[3]
# Helpers beside the tests are no package under pytest's importlib mode.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def demo():
    return load_run(ROOT / "config" / "demo.yaml")


@pytest.fixture(scope="session")
def llama():
    return load_run(ROOT / "config" / "llama3-70b-4x16.yaml")


@pytest.fixture
def change():
    """Return a run with other settings in one section: ``change(run, "slurm", partition="x")``."""

    def changed(run, section, **settings):
        return run.model_copy(update={section: getattr(run, section).model_copy(update=settings)})

    return changed


@pytest.fixture
def here(demo, tmp_path):
    """The demo with its results in a folder of the test's own."""
    return demo.model_copy(update={"results": str(tmp_path / "results")})
