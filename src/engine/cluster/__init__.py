"""Processes of one model, on one machine or several: how they are started, find each other, talk, and notice an end.

`child` and `ray_ranks` start ranks, `gathering` and `joining` connect ranks on several machines, and `headless_node`
starts and restarts the ranks of a machine other than rank 0's.
"""
