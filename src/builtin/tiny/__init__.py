"""`builtin:tiny`: a small chat model that knows Stoker's options. Made by tools/train_tiny.py; see MODEL_CARD.md."""
