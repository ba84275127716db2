"""The dashboard and the alerts ask for metrics that exist."""

from __future__ import annotations

from tools.monitoring import ALERTS, FOLDER, PANELS, dashboard, files, unknown_names


def test_every_metric_of_a_query_is_exported():
    queries = [query for _, _, parts in PANELS for query, _ in parts] + [alert[1] for alert in ALERTS]
    queries.append(dashboard()["templating"]["list"][1]["query"])
    assert {name for query in queries for name in unknown_names(query)} == set()
    assert unknown_names("rate(stoker_generation_tokens[5m]) + stoker_none") == {
        "stoker_generation_tokens",  # a counter is exported with its ending
        "stoker_none",
    }


def test_the_files_are_fresh():
    assert {name: (FOLDER / name).read_text("utf-8") for name in files()} == files()
