"""The ways to start an engine: on_cpu, on_gpus, on_ranks and on_launched_rank. They import torch when called."""
