"""V-MPO (Song et al. 2019) on PyTorch: the algorithm, its agents, and the system that trains them."""

import os

__version__ = "0.1.0"

# Torch's idle threads would otherwise spin on the cores that the simulators' threads need.
# Read once, when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from vmpo import presets
from vmpo.config import Config
from vmpo.errors import UserError
from vmpo.policy import load
from vmpo.train import evaluate_run as evaluate
from vmpo.train import resume, train

__all__ = ["Config", "UserError", "evaluate", "load", "presets", "resume", "train"]
