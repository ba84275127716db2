"""Engines that serve the same model, seen from the processes that start them on each machine."""
