from __future__ import annotations

import pytest

from stoker.config import ConfigError, load_deployment


def test_python_values_are_a_layer_between_environment_and_command_line() -> None:
    arguments = {"model": "x", "max_model_len": 128, "served_model_name": ["a"], "cache.block_size": 8}
    env = {"ENGINE__MODEL__MAX_MODEL_LEN": "64", "ENGINE__CACHE__BLOCK_SIZE": "32"}
    deployment = load_deployment([], ["--max-model-len", "256"], env, arguments)
    assert (deployment.model.max_model_len, deployment.cache.block_size) == (256, 8)
    assert str(deployment.origin("cache.block_size")) == "argument cache.block_size"


def test_the_name_of_a_section_flag_takes_a_mapping() -> None:
    arguments = {"model": "x", "speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}
    deployment = load_deployment([], env={}, arguments=arguments)
    own = deployment.config.speculative
    assert (own.method, own.num_speculative_tokens) == ("ngram", 4)
    with pytest.raises(ConfigError, match="no such"):
        load_deployment([], env={}, arguments={"model": "x", "speculative_config": {"num_speculative_tokns": 4}})


def test_none_leaves_the_default() -> None:
    deployment = load_deployment([], env={}, arguments={"model": "x", "tokenizer": None, "hf_overrides": {"a": None}})
    assert deployment.model.tokenizer == "auto"
    assert deployment.model.hf_overrides == {"a": None}


def test_an_unknown_argument_is_an_error_without_its_value() -> None:
    with pytest.raises(ConfigError) as caught:
        load_deployment([], env={}, arguments={"model": "x", "hf_tokn": "hf_secret"})
    assert "did you mean `hf_token`" in str(caught.value)
    assert "hf_secret" not in str(caught.value)


def test_a_bad_value_shows_the_argument() -> None:
    with pytest.raises(ConfigError, match="argument port"):
        load_deployment([], env={}, arguments={"model": "x", "port": "http"})
