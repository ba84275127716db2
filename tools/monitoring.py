"""Writes deployments/monitoring/: a Grafana dashboard and Prometheus alert rules, from the registry of metrics.

    python -m tools.monitoring [--check]

Each metric of a query must exist; the description of a panel is the metric's own.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from stoker.server.observe.engine_metrics import DESCRIBED_ENGINE, DESCRIBED_GPU
from stoker.server.observe.metrics import Metrics

FOLDER = Path(__file__).parents[1] / "deployments" / "monitoring"
NAME = re.compile(r"\bstoker_[a-z0-9_]+")
_MODEL = 'model_name=~"$model"'


def _quantile(share: float, metric: str) -> str:
    return f"histogram_quantile({share}, sum by (le) (rate({metric}_bucket{{{_MODEL}}}[$__rate_interval])))"


def _rate(metric: str, by: str = "model_name", labels: str = _MODEL) -> str:
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))"


def _latency(metric: str) -> list[tuple[str, str]]:
    return [(_quantile(share, metric), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99)]


PANELS: tuple[tuple[str, str, list[tuple[str, str]]], ...] = (
    ("Time to first token", "s", _latency("stoker_time_to_first_token_seconds")),
    ("Time between tokens", "s", _latency("stoker_inter_token_latency_seconds")),
    ("Time of a request", "s", _latency("stoker_e2e_request_latency_seconds")),
    ("Time in the queue", "s", _latency("stoker_request_queue_time_seconds")),
    (
        "Tokens per second",
        "short",
        [
            (_rate("stoker_generation_tokens_total"), "generated"),
            (_rate("stoker_prompt_tokens_total"), "prompt"),
            (_rate("stoker_cached_prompt_tokens_total"), "prompt, from the prefix cache"),
        ],
    ),
    (
        "Sequences",
        "short",
        [
            (f"stoker_num_requests_running{{{_MODEL}}}", "running, engine {{engine}}"),
            (f"stoker_num_requests_waiting{{{_MODEL}}}", "waiting, engine {{engine}}"),
        ],
    ),
    ("KV cache in use", "percentunit", [(f"stoker_kv_cache_usage_ratio{{{_MODEL}}}", "used, engine {{engine}}")]),
    (
        "Hit rate of the prefix cache",
        "percentunit",
        [(f"{_rate('stoker_prefix_cache_hits_total')} / {_rate('stoker_prefix_cache_queries_total')}", "hits")],
    ),
    ("Preemptions per second", "short", [(_rate("stoker_preemptions_total"), "preemptions")]),
    (
        "Sequences that ended, per second",
        "short",
        [(_rate("stoker_requests_finished_total", "finish_reason"), "{{finish_reason}}")],
    ),
    ("HTTP answers per second", "reqps", [(_rate("stoker_http_requests_total", "status", ""), "{{status}}")]),
    ("Requests per second, by key", "reqps", [(_rate("stoker_key_requests_total", "key", ""), "{{key}}")]),
)
# (name, condition, how long, severity, summary)
ALERTS: tuple[tuple[str, str, str, str, str], ...] = (
    (
        "StokerEngineNotReady",
        'stoker_engine_state{state="ready"} == 0',
        "2m",
        "critical",
        "The engine of {{ $labels.instance }} is not ready.",
    ),
    (
        "StokerQueueGrows",
        "min_over_time(stoker_num_requests_waiting[10m]) > 0",
        "10m",
        "warning",
        "Requests have been waiting at {{ $labels.instance }} for 10 minutes: add replicas or raise max_num_seqs.",
    ),
    (
        "StokerKvCacheFull",
        "min_over_time(stoker_kv_cache_usage_ratio[10m]) > 0.95 and rate(stoker_preemptions_total[10m]) > 0",
        "10m",
        "warning",
        "The KV cache of {{ $labels.instance }} is full and sequences are preempted.",
    ),
    (
        "StokerServerErrors",
        'sum by (instance) (rate(stoker_http_requests_total{status=~"5.."}[5m]))'
        " / sum by (instance) (rate(stoker_http_requests_total[5m])) > 0.05",
        "5m",
        "critical",
        "More than 5% of the answers of {{ $labels.instance }} are server errors.",
    ),
    (
        "StokerSlowFirstToken",
        "histogram_quantile(0.95, sum by (instance, le) (rate(stoker_time_to_first_token_seconds_bucket[10m]))) > 10",
        "10m",
        "warning",
        "The 95th percentile of the time to the first token of {{ $labels.instance }} is more than 10 s.",
    ),
)


def exported() -> dict[str, str]:
    """Every name that a query may use, and the description of its metric."""
    found: dict[str, str] = {}
    for family, _ in Metrics("m", lambda: {0: DESCRIBED_ENGINE}, gpus=lambda: [DESCRIBED_GPU], max_loras=1).described():
        endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found |= {f"{family.name}{ending}": family.documentation for ending in endings}
    return found


def unknown_names(query: str) -> set[str]:
    """Metrics of a query that the server does not export."""
    return set(NAME.findall(query)) - exported().keys()


def dashboard() -> dict[str, Any]:
    meaning = exported()
    panels = []
    for index, (title, unit, queries) in enumerate(PANELS):
        names = dict.fromkeys(name for query, _ in queries for name in NAME.findall(query))
        panels.append(
            {
                "id": index + 1,
                "type": "timeseries",
                "title": title,
                "description": " ".join(dict.fromkeys(meaning[name] for name in names)),
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "gridPos": {"h": 8, "w": 12, "x": index % 2 * 12, "y": index // 2 * 8},
                "targets": [
                    {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend}
                    for number, (query, legend) in enumerate(queries)
                ],
            }
        )
    source = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    model = {
        "name": "model",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": "label_values(stoker_num_requests_running, model_name)",
        "includeAll": True,
        "multi": True,
        "refresh": 2,
    }
    return {
        "title": "Stoker",
        "uid": "stoker",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, model]},
        "panels": panels,
    }


def alerts() -> dict[str, Any]:
    rules = [
        {
            "alert": name,
            "expr": query,
            "for": time,
            "labels": {"severity": severity},
            "annotations": {"summary": summary},
        }
        for name, query, time, severity, summary in ALERTS
    ]
    return {"groups": [{"name": "stoker", "rules": rules}]}


def files() -> dict[str, str]:
    head = "# Written by `python -m tools.monitoring`; do not edit.\n"
    return {
        "grafana.json": json.dumps(dashboard(), indent=2) + "\n",
        "alerts.yaml": head + yaml.safe_dump(alerts(), sort_keys=False, width=120),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is stale")
    check, stale = parser.parse_args().check, False
    for name, text in files().items():
        path = FOLDER / name
        if not path.exists() or path.read_text("utf-8") != text:
            stale = True
            if check:
                print(f"error: deployments/monitoring/{name} is stale\n  = fix: make docs", file=sys.stderr)
            else:
                path.write_text(text, "utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
