"""Adapters (LoRA) of a model: what a process has of them, and what they add to the products of a step.

settings                           what the deployment allows; without torch
places                             where deltas are added in the layers of this process
tensors, product, weights          the file of an adapter in the layout of the kernels: of one product, of all
adapters                           those in memory
mix                                what the adapters of a step add
"""
