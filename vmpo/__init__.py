"""V-MPO (Song et al. 2019) on PyTorch: the algorithm, its agents, and the system that trains them."""

__version__ = "0.1.0"
