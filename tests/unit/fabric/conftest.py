import sys
from pathlib import Path

# The helpers beside these tests: with importlib's mode pytest does not put this folder on the path.
sys.path.insert(0, str(Path(__file__).parent))
