"""V-MPO (Song et al. 2019) on PyTorch: the algorithm, its agents, and the system that trains them."""

import os
import signal

__version__ = "0.1.0"

# Torch's threads wait for each other between two operations. To spin for a fraction of a millisecond saves waking them,
# which takes longer than a small operation; then they sleep, and leave the cores to the simulators' threads.
# Read once, when torch is loaded: the count by GNU's OpenMP (Linux), the policy by others.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from vmpo.signals import is_command, leave

if is_command():
    # Until all is imported, which takes seconds.
    signal.signal(signal.SIGINT, leave)

from vmpo import presets
from vmpo.callbacks import Callback
from vmpo.config import Config
from vmpo.errors import RunFailed, UserError
from vmpo.evaluation import evaluate_run as evaluate
from vmpo.policy import load
from vmpo.train import resume, train

__all__ = ["Callback", "Config", "RunFailed", "UserError", "evaluate", "load", "presets", "resume", "train"]
