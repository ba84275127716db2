"""What processes of a deployment send each other: records, their encoding, and the connection of two ranks.

`records` is the encoding of tagged records, and `request_parts` declares it for what a request brings, which both kinds
of messages have: `messages` are those between the API process and the engine process, and `wire` declares how their
columns are encoded; `rank_messages` are those between the ranks of a model, and `rank_values` the arguments and results
of their calls. `rank_link` is a connection of two ranks. The columns of results and log-probabilities are in
step/columns.py, the frames in frames.py.
"""
