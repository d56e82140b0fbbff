import sys
from pathlib import Path

import torch

# The tiny programs that the tests of the backends use too.
sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))
torch.set_num_threads(1)
