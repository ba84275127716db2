"""Small quantised checkpoints, each written by the library that users write theirs with, for tests of reading.

`python -m tools.writers [RECIPE ...]` creates each recipe's environment in .writers/, and writes its checkpoints, with
what the library itself computes from them, into tests/models/written/.
"""
