"""Processes of this machine: where they run, whether they are stopped, when they end or start again."""
