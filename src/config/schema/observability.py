"""Section `observability`: traces, and metrics of older releases.

None of its options is implemented yet: see refused.py.
"""

from __future__ import annotations

from .refused import with_refused
from .section import Section


@with_refused("observability")
class ObservabilityConfig(Section):
    """Traces and metrics in addition to /metrics."""
