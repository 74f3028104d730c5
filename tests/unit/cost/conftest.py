"""Makes ``synthetic`` importable: a run folder as a real run leaves it, with every ending in it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
