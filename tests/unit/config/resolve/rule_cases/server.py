"""Rules about `server`: the command lines that break each one, and those that keep it.

MODEL, FILE and so on stand for paths; see test_rules.py. SMALL_CASES run on a machine that has too little.
"""

from __future__ import annotations

CASES: dict[str, tuple[list[str], list[str]]] = {
    "R019": (["--enable-log-outputs"], ["--enable-log-outputs --enable-log-requests", "--enable-log-requests"]),
    "R021": (["--max-log-len 0"], ["--max-log-len 0 --enable-log-requests", "--enable-log-requests"]),
    "R022": (
        ["--return-tokens-as-token-ids --max-logprobs 0"],
        ["--return-tokens-as-token-ids", "--return-tokens-as-token-ids --max-logprobs 1", "--max-logprobs 0"],
    ),
    "R024": (["--chat-template nowhere.jinja"], ["--chat-template FILE", "--chat-template {{messages}}"]),
    "R201": (
        ["--host 0.0.0.0", "--host ::", "--host example.org", "--host 192.168.0.1"],
        ["--host 127.0.0.9", "--host ::1", "--host localhost", "--host 0.0.0.0 --auth none", "--host :: --api-key k"],
    ),
    "R208": (["--auth none --api-key k"], ["--auth none", "--api-key k"]),
    "R213": (["--body-idle-timeout 121s"], ["--body-idle-timeout 120s"]),
    "R214": (["--on-engine-death exit --max-engine-restarts 3"], ["--on-engine-death exit", "--max-engine-restarts 3"]),
    "R215": (
        ["--disable-frontend-multiprocessing --on-engine-death restart"],
        ["--disable-frontend-multiprocessing", "--disable-frontend-multiprocessing --on-engine-death exit"],
    ),
}
SMALL_CASES: dict[str, tuple[list[str], list[str]]] = {}
