"""The engine: computes the tokens of requests. Its packages are floors; each imports only from floors below it.

    process, rank_process, replicas    the processes: an engine, a rank of a model, the replicas of each machine
    client                             the engine as the server sees it
    executor                           computes the steps of an engine: on CPUs, on GPUs, on several ranks
    ranks                              rank 0 of a model, and how the others compute the same steps
    worker                             what a deployment may extend: one in each process of a model
    cluster                            how the processes of a model find each other, and what they send each other
    runner                             executes the plan of a step: weights, KV cache, tensors
    kv_stores, kv_events               KV blocks outside the cache, and events about blocks in the cache
    loop                               plans a step, submits it, and sends its results to the clients
    core                               the scheduler: requests and KV blocks
    models, layers, sampling           modules of a model; from logits to a token
    lora, collectives, structured      adapters; exchange between ranks within a step; grammars
    kernels                            one op per file, for CPUs and GPUs
    host, plugins                      memory and processes of this machine; classes that a deployment names
    wire, messages                     what server and engine send each other
    step                               the plan of a step, its result, and their encoding
    api                                requests and outputs

`pyproject.toml` has the exact order, which `make floors` checks; docs/design/life-of-a-request.md follows one request
through these packages.
"""
