import sys
from pathlib import Path

import torch

# The formulas of the algorithms.
sys.path.insert(0, str(Path(__file__).parents[1] / "reference"))
# The models are tiny: more threads would only wait for one another, above all where tests run side by side.
torch.set_num_threads(1)
