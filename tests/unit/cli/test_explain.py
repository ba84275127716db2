from __future__ import annotations

import json

import pytest

from stoker.cli.app import commands, main
from stoker.cli.explain import run


def test_a_flag_can_be_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    """`--max-num-seqs` is what is asked for here, and no option of the command."""
    with pytest.raises(SystemExit) as caught:
        main(["explain", "--max-num-seqs", "-o", "json"])
    assert not caught.value.code
    answer = json.loads(capsys.readouterr().out)
    assert answer["format_version"] == 1
    assert answer["pages"][0]["name"] == "scheduler.max_num_seqs"


def test_what_nobody_knows_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("xyzzyq", commands()) == 1
    assert "nothing has the name `xyzzyq` or mentions it" in capsys.readouterr().err


def test_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cache", commands(), output="md", recursive=True) == 0
    assert "## cache.block_size\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_metric_is_explained_by_any_of_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("stoker_preemptions_total", "stoker_preemptions"):
        assert run(name, commands()) == 0
        assert "a sequence gave its blocks back" in capsys.readouterr().out
    assert run("stoker_inter_token_latency_seconds_bucket", commands()) == 0
    assert "histogram" in capsys.readouterr().out
    assert run("metrics", commands()) == 0
    assert "stoker_kv_cache_usage_ratio" in capsys.readouterr().out
    assert run("stoker_nothing", commands()) == 1
