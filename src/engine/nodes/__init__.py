"""Processes of one model, on one machine or several: how they are started, find each other, talk, and notice an end.

`rank_link` is what ranks send each other between steps. `child` and `ray_ranks` start ranks, `gathering` and `joining`
connect those of several machines, and `headless_node` starts and restarts those of a machine other than rank 0's.
"""
