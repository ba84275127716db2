"""Facts that descriptions, reasons and error codes state in words are those of the code."""

from __future__ import annotations

from stoker.cli.app import commands
from stoker.cli.bench.defaults import DEFAULTS
from stoker.config.schema.options import options
from stoker.config.schema.server import ServerConfig
from stoker.engine.host.supervision import RESTART_WINDOW_S
from stoker.isolated.isolation import TIME_LIMIT_S
from stoker.model.rope import SCALINGS
from stoker.server.http.tls import WATCH_INTERVAL_S

OPTIONS = options()


def test_the_types_of_rope_scaling_are_those_that_are_computed() -> None:
    *first, last = SCALINGS
    assert f"`rope_type` ({', '.join(first)} or {last})" in OPTIONS["model.rope_scaling"].description


def test_time_limits_are_those_of_the_server() -> None:
    assert TIME_LIMIT_S == 2
    assert "two seconds of processor time" in OPTIONS["server.trust_request_chat_template"].description
    assert WATCH_INTERVAL_S == 1
    assert "Check every second" in OPTIONS["server.enable_ssl_refresh"].description
    assert f"within {RESTART_WINDOW_S / 60:.0f} minutes" in OPTIONS["server.max_engine_restarts"].description


def test_the_default_url_of_verbs_is_that_of_a_server_with_default_options() -> None:
    server = ServerConfig.model_fields
    assert server["host"].default == "127.0.0.1"
    assert DEFAULTS["serve"]["url"] == f"http://localhost:{server['port'].default}/v1"


def test_the_help_of_bench_shows_the_defaults_that_are_used() -> None:
    help_of = {parameter.name: getattr(parameter, "help", "") for parameter in commands()["bench"].params}
    for flags in DEFAULTS.values():
        for name, default in flags.items():
            if default not in (None, False):
                assert f"by default {default}." in help_of[name], name
