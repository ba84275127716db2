"""Pytest plugin: the kernels of level `amx` run with emulated tile products (cpu/tiles.h) on a CPU without AMX.

`python -m pytest -p tests.emulated_amx tests/models`. Processes that tests start use the kernels of the machine.
"""

from __future__ import annotations

from dataclasses import replace

from tests.unit.engine.kernels.levels import EMULATED_AMX

from stoker.config.cpu_features import LEVELS

LEVELS["amx"] = replace(EMULATED_AMX, name="amx")
