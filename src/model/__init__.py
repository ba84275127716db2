"""One description of a model: its layers, read from config.json, and everything that follows from them.

Sizes, the tensors of a checkpoint, what a cache keeps, and whether the engine can run it are derived from ModelSpec.
Imports neither torch nor the rest of the package.
"""
