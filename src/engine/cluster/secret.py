"""The secret of a deployment on several nodes, from the environment: only its hash is sent.

It keeps out anyone who can connect to the port of node 0, but not anyone who can read what others send.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

VARIABLE = "STOKER_NODE_SECRET"


def secret_hash(env: Mapping[str, str] = os.environ) -> str:
    """Hash of the secret; empty without a secret."""
    return hash_of(env.get(VARIABLE, ""))


def hash_of(secret: str) -> str:
    return hashlib.sha256(f"stoker nodes {secret}".encode()).hexdigest() if secret else ""
