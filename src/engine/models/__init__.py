"""Models from their layers, built from a ModelSpec, or by the transformers library with this engine's attention."""
