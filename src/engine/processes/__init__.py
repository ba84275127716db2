"""Processes of this machine: bound to a NUMA node, stopped, ended with their parent, stalled or started again."""
