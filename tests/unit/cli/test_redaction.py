"""No output of any verb shows a secret, wherever it was planted and whatever else is wrong around it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.cli.app import main

PLANTED = "sk-planted-4711"
FILES = {
    "plain": f"model: {{model: Qwen/none, hf_token: {PLANTED}}}\nserver: {{api_key: [{PLANTED}], port: http}}\n",
    "list": f"model: {{model: Qwen/none}}\nserver:\n  prot: 1\n  api_key:\n    - {PLANTED}\n    - [{PLANTED}]\n",
    "block": f"model: {{model: Qwen/none}}\nserver:\n  api_key: |\n    {PLANTED}\n  prot: 1\n",
    "alias": f"x-key: &key {PLANTED}\nmodel: {{model: Qwen/none}}\nserver: {{api_key: *key, prot: 1}}\n",
    "default": f"model: {{model: Qwen/none}}\nserver:\n  api_key: ${{NOWHERE:-{PLANTED}}}\n  prot: 1\n",
    "misspelt": f"model: {{model: Qwen/none, hf_tokn: {PLANTED}}}\nserver: {{api_keys: [{PLANTED}]}}\n",
    "mapping": f"model: {{model: Qwen/none}}\nserver: {{api_key: {{value: {PLANTED}}}}}\n",
    "broken": f"model: {{model: Qwen/none}}\nserver:\n  api_key: [{PLANTED}\n  port: 1\n",
    "tab": f"server:\n\tapi_key: {PLANTED}\n",
    "duplicate": f"model: {{model: Qwen/none}}\nserver:\n  api_key: {PLANTED}\n  api_key: {PLANTED}\n",
    "contradiction": f"model: {{model: Qwen/none}}\nserver: {{auth: none, api_key: {PLANTED}}}\n",
    "good": f"model: {{model: Qwen/none}}\nserver: {{api_key: {PLANTED}}}\n",
    "file": "model: {model: Qwen/none}\nserver: {api_key: {file: secret}, auth: none}\n",
    "variable": "model: {model: Qwen/none}\nserver: {api_key: {env: PLANTED}, auth: none}\n",
}
WORDS = [
    [],
    ["--api-key", PLANTED, "--auth", "none"],
    [f"--server.api-key={PLANTED}", "--port", "http"],
    ["--api-kye", PLANTED],
    [f"--api-kye={PLANTED}"],
    ["--hf-token", PLANTED, "--hf-token", PLANTED],
    ["--api-key+", PLANTED, "--prot", "1"],
]
ENV = [{}, {"ENGINE__SERVER__API_KEY": PLANTED}, {"ENGINE__SERVER__API_KYE": PLANTED, "ENGINE_HF_TOKEN": PLANTED}]
VERBS = [
    ["validate"],
    ["validate", "-o", "json"],
    ["validate", "-o", "github"],
    ["config", "--show-origin"],
    ["config", "-o", "json", "--show-origin"],
    ["config", "--minimal"],
    ["diff"],
    ["diff", "-o", "json"],
]


@pytest.mark.parametrize("name", FILES)
def test_a_planted_secret_is_found_nowhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in [variable for variable in os.environ if variable.startswith("ENGINE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PLANTED", PLANTED)
    Path("deploy.yaml").write_text(FILES[name])
    Path("secret").write_text(PLANTED)
    num_said = 0
    for index, verb in enumerate(VERBS):
        words, env = WORDS[index % len(WORDS)], ENV[index % len(ENV)]
        for extra, variables in ((words, {}), ([], env), (WORDS[-1 - index % len(WORDS)], env)):
            with monkeypatch.context() as patch:
                for variable, value in variables.items():
                    patch.setenv(variable, value)
                with pytest.raises(SystemExit):
                    main([verb[0], "deploy.yaml", *verb[1:], *extra])
            out, err = capfd.readouterr()
            num_said += bool(out or err)
            assert PLANTED not in out + err, (verb, extra, variables)
    assert num_said == 3 * len(VERBS)
