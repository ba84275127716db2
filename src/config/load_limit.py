"""How long a server may take to start, before who watches it gives it up."""

from __future__ import annotations

LOAD_LIMIT_S = 3600  # to fetch and load a large model over a slow network
