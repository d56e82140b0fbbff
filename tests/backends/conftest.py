import torch

# The models are tiny: more threads would only wait for one another, above all where tests run side by side.
torch.set_num_threads(1)
