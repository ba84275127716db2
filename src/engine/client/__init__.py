"""The engine as its server sees it: submit a request, read its outputs, abort it; restarts, sleep and state.

`engine_client` is the contract. `process`, `attached` and `in_process` are clients of one engine, `replicated` is that
of several, for which `routing` chooses. `child`, `connection` and `brief_paths` are the way to an engine process.
"""
