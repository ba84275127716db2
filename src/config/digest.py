"""A hash of a written configuration, by which two deployments are compared."""

from __future__ import annotations

import hashlib
import json

from .deployment import Deployment
from .schema.options import sections


def digest(deployment: Deployment) -> str:
    """A hash of the written configuration, the same on every machine; secrets do not enter it.

    Nor does it matter in which files or presets a value stands: only what all of them say together.
    """
    values = deployment.config.model_dump(mode="json", include=set(sections()))
    content = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(content.encode()).hexdigest()
