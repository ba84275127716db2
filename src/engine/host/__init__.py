"""This machine: memory that is mapped and shared, NUMA nodes, and processes that stop, stall or end. No torch."""
