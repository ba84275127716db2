"""The dashboard and the alerts ask for metrics that exist, in valid PromQL."""

from __future__ import annotations

import promql_parser
import pytest
from tools.monitoring import ALERTS, FOLDER, PANELS, dashboard, files, unknown_names

QUERIES = [query for _, _, parts in PANELS for query, _ in parts] + [alert[1] for alert in ALERTS]


def test_every_metric_of_a_query_is_exported():
    queries = [*QUERIES, dashboard()["templating"]["list"][1]["query"]]
    assert {name for query in queries for name in unknown_names(query)} == set()
    assert unknown_names("rate(stoker_generation_tokens[5m]) + stoker_none") == {
        "stoker_generation_tokens",  # a counter is exported with its ending
        "stoker_none",
    }


def test_every_query_is_valid():
    for query in QUERIES:
        promql_parser.parse(query.replace("$__rate_interval", "5m"))
    with pytest.raises(ValueError, match="expected"):
        promql_parser.parse("rate(stoker_preemptions_total)")  # types are checked too: rate takes a range


def test_the_files_are_fresh():
    assert {name: (FOLDER / name).read_text("utf-8") for name in files()} == files()
