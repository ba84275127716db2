"""Notes about defaults of vLLM that differ from those here. All of its options exist here under the same names."""

from __future__ import annotations

NOTES = {
    "server.host": "vLLM without --host listens on every address; here it is this machine only. To serve others, set "
    "`server.host: 0.0.0.0` and `server.api_key`.",
}
