"""The table of features that do not go together, and what follows from it. Each pair is broken in rule_cases/."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.reference import EXCLUSIONS_PAGE, FOLDER, exclusions_page

from stoker.config import ConfigError, load_deployment, read_model_files, resolve_deployment
from stoker.config.explain import find
from stoker.config.resolve.rule_tables.exclusions import EXCLUSIONS, FEATURES, RULES
from stoker.config.schema.options import options

from ..deployments import MACHINE
from ..model_files import write_model


def test_a_pair_is_declared_once_and_there_are_few() -> None:
    pairs = [frozenset((pair.one.title, pair.other.title)) for pair in EXCLUSIONS]
    assert all(len(pair) == 2 for pair in pairs)
    assert len(set(pairs)) == len(pairs) <= 39


def test_pairs_of_a_rule_have_their_first_feature_in_common() -> None:
    assert len({(pair.rule, pair.one.title) for pair in EXCLUSIONS}) == len(RULES)


def test_a_feature_has_a_title_of_its_own_and_options_that_exist() -> None:
    assert len({feature.title for feature in FEATURES}) == len(FEATURES)
    for feature in FEATURES:
        assert feature.options
        assert set(feature.options) <= set(options()), feature.title


def test_a_rule_explains_each_of_its_pairs() -> None:
    for pair in EXCLUSIONS:
        (page,) = find(pair.rule)
        assert pair.one.title in page.title
        assert pair.other.title in page.title
        assert pair.why in page.text
        assert pair.why.endswith(".")
        assert ". " not in pair.why, "one sentence"


@pytest.mark.parametrize(
    ("words", "said", "fixes"),
    [
        (
            "-pp 2 -pcp 2",
            "`parallel.prefill_context_parallel_size` cannot be used with `parallel.pipeline_parallel_size`",
            ("remove `parallel.pipeline_parallel_size`", "or remove `parallel.prefill_context_parallel_size`"),
        ),
        (
            "-tp 4 -dcp 2 -pp 2 --kv-directory blocks",
            "`cache.kv_directory` cannot be used with `parallel.pipeline_parallel_size` and "
            "`parallel.decode_context_parallel_size`",
            (
                "remove `parallel.pipeline_parallel_size` and `parallel.decode_context_parallel_size`",
                "or remove `cache.kv_directory`",
            ),
        ),
        (
            "-tp 2 -ep --enable-eplb --batch-invariant",
            "`parallel.enable_eplb` cannot be used with `model.batch_invariant`",
            ("remove `model.batch_invariant`", "or remove `parallel.enable_eplb`"),
        ),
    ],
)
def test_an_error_names_the_options_that_are_set_and_what_to_remove(
    words: str, said: str, fixes: tuple[str, ...], tmp_path: Path
) -> None:
    deployment = load_deployment([], ["--model", str(write_model(tmp_path)), *words.split()], {})
    with pytest.raises(ConfigError) as caught:
        resolve_deployment(deployment, read_model_files(deployment), MACHINE)
    (found,) = (finding for finding in caught.value.diagnostics if finding.message == said)
    assert found.fixes == fixes


def test_the_guide_has_every_pair_in_both_directions() -> None:
    page = exclusions_page()
    assert page == (FOLDER / EXCLUSIONS_PAGE).read_text("utf-8"), "run `make docs`"
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in page.split("## Why")[0].splitlines()}
    for pair in EXCLUSIONS:
        assert f"{pair.other.title} ([{pair.rule}]" in rows[pair.one.title]
        assert f"{pair.one.title} ([{pair.rule}]" in rows[pair.other.title]
