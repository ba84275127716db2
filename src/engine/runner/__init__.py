"""Runner and its parts: loads a model, keeps its KV cache, and executes the plans of steps. `cuda`: on GPUs."""
