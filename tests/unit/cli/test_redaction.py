"""No output of any verb shows a secret, wherever it is written and whatever else is wrong around it.

`engine migrate` included: the diff that it prints is for reading and ends up in logs, so the lines around a change are
shown without their secrets; with --write the file keeps them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.slow_cases import slow_but

from stoker.cli.app import main

from ..config.model_files import write_model

MARKER = "Pa55word"  # no character in it needs quotes, and it is a variable's name too
BASE = "model: {model: ./m}\nserver: {api_key: {env: KEY}}\n"
SERVER = "model: {model: ./m}\nserver:\n  "
RIGHT = {
    "plain": SERVER + "api_key: Pa55word\n",
    "list": SERVER + "api_key:\n  - Pa55word\n  - x Pa55word\n",
    "folded": SERVER + "api_key: >-\n    x\n    Pa55word\n  port: 81\n",
    "flow": "{model: {model: ./m, hf_token: Pa55word}, server: {api_key: [Pa55word,\n  Pa55word], port: 81}}\n",
    "json": '{"model": {"model": "./m", "hf_token": "Pa55word"}, "server": {"api_key": ["\\u0050a55word"]}}\n',
    "alias": "x-key: &key Pa55word\nx-list: &list [Pa55word]\n"
    "model: {model: ./m, hf_token: *key}\nserver:\n  api_key: *list\n",
    "merged": "x-base: &base {api_key: Pa55word}\nmodel: {model: ./m}\nserver: {<<: *base, port: 81}\n",
    "free": BASE + "x-old: {api_key: Pa55word, server: {api_kye: [Pa55word]}}\n",
    "default": SERVER + "api_key: ${NOWHERE:-Pa55word}\n",
    "inner default": SERVER + "api_key: x${NOWHERE:-${EMPTY:-Pa55word}}\n",
    "interpolated": SERVER + "api_key: ${MARKER}\n",
    "half": SERVER + "api_key: ['${MARKER}', 'x-${MARKER}']\n",
    "file": SERVER + "api_key: {file: secret}\n  auth: key\n",
    "variable": SERVER + "api_key: [{env: MARKER}, {file: ./secret}]\n",
    "tagged": SERVER + "api_key: !!str Pa55word\n",
    "deprecated": "model: {model: ./m, task: generate}\nserver:\n  api_key: Pa55word\n  disable_log_requests: true\n",
    "extended": "extends: base.yaml\nserver: {port: 81}\n",
    "overridden": "extends: base.yaml\nserver: {api_key: x}\n",
    "unset": "extends: base.yaml\nserver: {api_key: null}\n",
}
ODD = [
    "!{}",
    "!!{}",
    "!a!{}",
    "*{}",
    "&{}",
    "@{}",
    "`{}",
    "%{}",
    "|{}",
    ">{}",
    "'{}",
    '"{}',
    "[{}",
    "{{{}",
    "{}: x",
    "{}:",
]
ODD += [
    "{} #",
    "? {}",
    "- {}",
    ", {}",
    "${{{}",
    "${{NOWHERE-{}}}",
    "${{NOWHERE:{}}}",
    "${{-{}}}",
    "x${{1{}}}",
    "!!int {}",
    "\t{}",
]
ODD += [
    "[[{}]]",
    "{{x: {}}}",
    "{{{}: }}",
    "{{env: x-{}}}",
    "{{env: [{}]}}",
    "{{env: ${{MARKER}}}}",
    "{{file: ${{MARKER}}}}",
]
ODD += ["{{env: NOWHERE, x: {}}}", "{{file: {{x: {}}}}}", "[{{env: EMPTY}}, {}]", "&a [{}, *a]", "*a\n  port: {}"]
WRONG = {  # each odd value in one of three places
    **{odd: f"model: {{model: ./m}}\nserver:\n  api_key: {odd.format(MARKER)}\n  prot: 1\n" for odd in ODD[::3]},
    **{
        f"{odd} in a flow": f"model: {{model: ./m}}\nserver: {{prot: 1, api_key: {odd.format(MARKER)}}}\n"
        for odd in ODD[1::3]
        if not odd.startswith((",", "${{{}"))  # the one is a key then, the other the name of a variable
    },
    **{
        f"{odd} listed": f"model:\n  model: ./m\n  hf_tokn: x\nserver:\n  api_key:\n  - {odd.format(MARKER)}\n"
        for odd in ODD[2::3]
    },
    "block": SERVER + "api_key: |\n    Pa55word\n    Pa55word\n  prot: 81\n",
    "quoted": SERVER + "api_key: [\"x\n\n    Pa55word\", 'Pa55word']\n",
    "neighbour": "model: {model: ./m, hf_token: Pa55word}\nserver: {api_key: [Pa55word], port: http}\n",
    "misspelt": "model: {model: ./m, hf_tokn: Pa55word}\nserver: {api_keys: [Pa55word]}\n",
    "misspelt section": "model: {model: ./m}\nservr: {port: 1, api_key: Pa55word, apikey: [Pa55word]}\n",
    "misspelt twice": "modl:\n  model: ./m\n  hf_tokn:\n    - Pa55word\n",
    "wrong section": "model: {model: ./m, api_key: Pa55word}\nhf_token: Pa55word\ncache: {token: Pa55word}\n",
    "section as a list": "model: {model: ./m}\nserver: [{api_key: Pa55word}, api_key, Pa55word]\n",
    "section as a text": "model: {model: ./m}\nserver: 'api_key: Pa55word'\n",
    "broken later": "model: {model: ./m}\nserver:\n  api_key: [Pa55word\n  port: 1\n",
    "broken quotes": 'model: {model: ./m}\nserver:\n  api_key: "x\n  Pa55word\n  port: 1\n',
    "tab": "server:\n\tapi_key: Pa55word\n",
    "tab and misspelt": "server:\n\tapi_kye: Pa55word\n",
    "tab below": "server:\n  api_key: |\n    x\n\tPa55word\n",
    "duplicate": SERVER + "api_key: Pa55word\n  api_key: Pa55word\n",
    "duplicate list": SERVER + "api_key: x\n  api_key:\n    - Pa55word\n    - ]Pa55word\n",
    "two documents": SERVER + "api_key: Pa55word\n---\nserver: {api_key: Pa55word}\n",
    "rule": SERVER + "auth: none\n  api_key: Pa55word\n",
    "not utf-8": SERVER + "api_key:\n  - Pa55word\udcff\n",
    "nul": SERVER + "api_key: Pa55word\0\n",
    "contradiction": SERVER + "api_key: Pa55word\n  disable_log_requests: true\n  enable_log_requests: true\n",
}
FORMS = [
    ["validate"],
    ["validate", "-o", "json"],
    ["validate", "-o", "github"],
    ["validate", "-o", "sarif"],
    ["config"],
    ["config", "--show-origin"],
    ["config", "-o", "json"],
    ["config", "-o", "json", "--show-origin"],
    ["config", "--minimal"],
    ["config", "--minimal", "--show-origin"],
    ["config", "--hash"],
    ["config", "--sources"],
    ["config", "--sources", "-o", "json"],
    ["plan"],
    ["plan", "-o", "json"],
]
VERBS = [
    *([form[0], "deploy.yaml", *form[1:]] for form in FORMS),
    ["config", "deploy.yaml", "server.api_key", "--show-origin"],
    ["config", "deploy.yaml", "model.hf_token"],
    ["diff", "deploy.yaml", "other.yaml"],
    ["diff", "other.yaml", "deploy.yaml", "-o", "json"],
    ["migrate", "deploy.yaml"],
    ["render", "k8s", "deploy.yaml"],
    ["render", "kserve", "deploy.yaml"],
    ["render", "compose", "deploy.yaml"],
    ["render", "systemd", "deploy.yaml"],
]
WORDS = [
    ["--api-key", MARKER],
    ["--api-key", MARKER, f"x{MARKER}", "--hf-token", MARKER],
    [f"--server.api-key={MARKER}", "--port", "http"],
    ["--api-kye", MARKER],
    ["--api-kye", MARKER, MARKER],
    [f"--api-kye={MARKER}"],
    [f"--api-key:{MARKER}"],
    ["--api-key", f"--{MARKER}"],
    ["--api-key.x", MARKER],
    ["--no-api-key", MARKER],
    ["-api-key", MARKER],
    ["--hf-token", MARKER, "--hf-token", MARKER],
    ["--api-key+", MARKER, "--prot", "1"],
    [f"--api-key+={MARKER},{MARKER}"],
    ["--hf-token+", MARKER],
    ["--api-key", f'["{MARKER}"'],
    ["--api-key", f'[["{MARKER}"]]'],
    ["--api-key", f'{{"env": "{MARKER}-x"}}'],
    ["--hf-token", f'{{"value": "{MARKER}"}}'],
    ["--server", f'{{"api_key": "{MARKER}"}}'],
    ["--kv-events-config", f'{{"api_key": "{MARKER}"}}'],
    ["--kv-transfer-config", f'{{"hf_token": ["{MARKER}"]}}'],
    ["--speculative-config.hf_token", MARKER],
    ["--speculative-config", f'{{"api_key": "{MARKER}"'],
    ["-O.api_key", MARKER],
]
ENVIRONMENTS = [
    {"ENGINE__SERVER__API_KEY": MARKER},
    {"ENGINE__SERVER__API_KEY": f"{MARKER},x\n{MARKER}", "ENGINE__SERVER__PORT": "http"},
    {"ENGINE__SERVER__API_KEY": f'["{MARKER}"', "ENGINE__MODEL__HF_TOKEN": f"\n{MARKER}"},
    {"ENGINE__SERVER__API_KEY": f'[["{MARKER}"]]', "ENGINE__SERVER__AUTH": "none"},
    {"ENGINE__SERVER__API_KYE": MARKER, "ENGINE_HF_TOKEN": MARKER, "ENGINE__SERVER": f'{{"api_key": "{MARKER}"}}'},
    {"ENGINE__SERVER__API_KEY__X": MARKER, "ENGINE__API_KEY": MARKER, "engine__server__api_key": MARKER},
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in [variable for variable in os.environ if variable.upper().startswith("ENGINE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("MARKER", MARKER)
    monkeypatch.setenv("KEY", f"also-{MARKER}")
    monkeypatch.setenv("EMPTY", "")
    write_model(Path("m"))
    Path("secret").write_text(MARKER)
    Path("base.yaml").write_text(SERVER + "api_key: Pa55word\n")
    Path("other.yaml").write_text(BASE)


def check(words: list[str], capfd: pytest.CaptureFixture[str]) -> int:
    """The exit code, after making sure that the secret is not in what was said."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capfd.readouterr()
    assert MARKER not in out + err, words
    assert MARKER[1:] not in out + err, words
    return int(ended.value.code or 0)


def write(content: str) -> None:
    Path("deploy.yaml").write_bytes(content.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.quick_cases(1)
def test_no_verb_shows_the_secret_of_a_deployment_that_is_right(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    write(RIGHT[name])
    assert check(["validate", "deploy.yaml"], capfd) == 0
    codes = [(verb[0], check(verb, capfd)) for verb in VERBS]
    assert [code for name, code in codes if name in ("config", "plan")] == [0] * 13


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.quick_cases(9, name=list(WRONG)[::4])
def test_no_finding_shows_a_secret(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    write(WRONG[name])
    for verb in (
        VERBS[1],
        VERBS[2],
        VERBS[11],
        VERBS[13],
        ["migrate", "deploy.yaml"],
        ["render", "k8s", "deploy.yaml"],
    ):
        check(verb, capfd)
    check(["validate", "other.yaml", "-f", "deploy.yaml"], capfd)


@pytest.mark.parametrize("words", slow_but(WORDS, *WORDS[::4]), ids=" ".join)
def test_no_verb_shows_the_secret_of_a_flag(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    write("model: {model: ./m}\n")
    for form in (FORMS[0], FORMS[1], FORMS[7], FORMS[11], FORMS[14]):
        check([form[0], "deploy.yaml", *form[1:], *words], capfd)
        check([form[0], *words, *form[1:], "-f", "deploy.yaml"], capfd)
    check(["diff", "deploy.yaml", *words], capfd)
    check(["diff", "other.yaml", "deploy.yaml", "-o", "json", *words], capfd)
    for output in ("yaml", "json"):
        check(["import", "-o", output, "vllm", "serve", "./m", *words], capfd)


FLAT = [
    "api-key: Pa55word\n",
    "api_key: [Pa55word, {x: Pa55word}]\nhf-token: Pa55word\nprot: 1\n",
    "api-kye: Pa55word\nx-free: {api-key: Pa55word}\nserver: {api_key: Pa55word}\n",
    "api-key: Pa55word\napi_key: Pa55word\n",
    "api-key: [Pa55word\n",
    "hf-token:\n\tPa55word\n",
    "api-key: !Pa55word\n",
    "api-key: 'Pa55word\n",
]


@pytest.mark.parametrize("content", FLAT)
@pytest.mark.quick_cases(2)
def test_no_verb_shows_the_secret_of_a_flat_file(content: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("flat.yaml").write_text(f"model: ./m\n{content}")
    for form in FORMS:
        check([*form, "--config", "flat.yaml"], capfd)
    for output in ("yaml", "json"):
        check(["import", "flat.yaml", "-o", output], capfd)


SCRIPTS = [
    "vllm serve ./m --api-key Pa55word",
    "export VLLM_API_KEY=Pa55word\nHF_TOKEN=Pa55word vllm serve ./m --api-kye Pa55word",
    "vllm serve ./m --api-key 'Pa55word",
    "vllm serve ./m --api-key=Pa55word | tee $(x --api-key Pa55word",
    "python -m sglang.launch_server --model-path ./m --api-key Pa55word --admin-api-key Pa55word",
    "llama-server -m ./m --api-key Pa55word --hf-token Pa55word --hft Pa55word",
    "LLAMA_API_KEY=Pa55word llama-server -m ./m",
    "docker run -e HF_TOKEN=Pa55word -e API_TOKEN=Pa55word vllm/vllm-openai --model ./m --api-key Pa55word",
    "nothing --api-key Pa55word",
    "--api-key Pa55word",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_import_shows_no_secret_of_a_launch(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("launch.sh").write_text(script)
    for words in (["launch.sh"], [script], script.split()):
        for output in ("yaml", "json"):
            check(["import", "-o", output, "--from", "vllm", *words], capfd)
            check(["import", "-o", output, *words], capfd)


@pytest.mark.parametrize("env", ENVIRONMENTS, ids=lambda env: " ".join(env))
@pytest.mark.slow
def test_no_verb_shows_the_secret_of_a_variable(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write("model: {model: ./m}\n")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    for verb in [
        *VERBS,
        ["explain", "server.api_key"],
        ["explain", "--all", "-o", "json"],
        ["init", "new.yaml", "--full"],
    ]:
        check(verb, capfd)
    assert MARKER not in Path("new.yaml").read_text()


def test_migrate_keeps_in_the_file_what_it_does_not_show(capfd: pytest.CaptureFixture[str]) -> None:
    write("server:\n  api_key: Pa55word\n  disable_log_requests: true\nmodel: {model: ./m}\n")
    assert check(["migrate", "deploy.yaml", "--write"], capfd) == 0
    text = Path("deploy.yaml").read_text()
    assert "api_key: Pa55word\n" in text
    assert "disable_log_requests" not in text
