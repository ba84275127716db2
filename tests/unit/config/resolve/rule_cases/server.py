"""Rules about `server`: the command lines that break each one, and those that keep it.

MODEL, FILE and so on stand for paths; see test_rules.py. SMALL_CASES run on a machine that has too little.
"""

from __future__ import annotations

TLS = "--ssl-keyfile k.pem --ssl-certfile c.pem"
CASES: dict[str, tuple[list[str], list[str]]] = {
    "R018": (
        ["--tool-call-parser herms"],
        [
            "--tool-call-parser hermes",
            "--tool-call-parser none",
            "--tool-call-parser qwen25",
            "--tool-call-parser mine --tool-parser-plugin ./mine.yaml",
        ],
    ),
    "R019": (["--enable-log-outputs"], ["--enable-log-outputs --enable-log-requests", "--enable-log-requests"]),
    "R021": (["--max-log-len 0"], ["--max-log-len 0 --enable-log-requests", "--enable-log-requests"]),
    "R022": (
        ["--return-tokens-as-token-ids --max-logprobs 0"],
        ["--return-tokens-as-token-ids", "--return-tokens-as-token-ids --max-logprobs 1", "--max-logprobs 0"],
    ),
    "R024": (["--chat-template nowhere.jinja"], ["--chat-template FILE", "--chat-template {{messages}}"]),
    "R201": (
        ["--host 0.0.0.0", "--host ::", "--host example.org", "--host 192.168.0.1"],
        [
            "--host 127.0.0.9",
            "--host ::1",
            "--host localhost",
            "--host 0.0.0.0 --auth none",
            "--host :: --api-key k",
            "--host :: --api-keys-file keys.yaml",
            "--host :: --uds a.sock",
        ],
    ),
    "R297": (
        ["--routes-without-key /v1/completions --api-key k", "--routes-without-key /metrics,/config --api-key k"],
        ["--routes-without-key /metrics,/version,/load,/v1/models --api-key k"],
    ),
    "R271": (
        ["--routes-without-key /metrics"],
        ["--routes-without-key /metrics,/version --api-key k", "--routes-without-key /metrics --api-keys-file k.yaml"],
    ),
    "R184": (
        ["--collect-detailed-traces all"],
        ["--collect-detailed-traces all --otlp-traces-endpoint http://localhost:4318"],
    ),
    "R185": (
        [
            "--show-hidden-metrics-for-version 0.11",
            "--show-hidden-metrics-for-version 0.8 --observability.metric-dialects []",
        ],
        ["--show-hidden-metrics-for-version 0.8", "--show-hidden-metrics-for-version 0.7.3"],
    ),
    "R186": (
        ["--kv-events-config.enable-kv-cache-events true --no-enable-prefix-caching"],
        ["--kv-events-config.enable-kv-cache-events true", "--no-enable-prefix-caching"],
    ),
    "R390": (
        [
            "--kv-events-config.enable-kv-cache-events true --kv-events-config.replay-endpoint tcp://*:5558 -dp 2",
            "--kv-events-config.enable-kv-cache-events true --kv-events-config.replay-endpoint tcp://*:5557",
        ],
        [
            "--kv-events-config.enable-kv-cache-events true --kv-events-config.replay-endpoint tcp://*:5559 -dp 2",
            "--kv-events-config.enable-kv-cache-events true --kv-events-config.replay-endpoint tcp://*:5558",
            "--kv-events-config.replay-endpoint tcp://*:5557",
        ],
    ),
    "R345": (
        ["-asc 2 --disable-frontend-multiprocessing"],
        ["-asc 2", "--disable-frontend-multiprocessing"],
    ),
    "R346": (["-asc 2 --responses-store memory"], ["-asc 2", "--responses-store memory"]),
    "R347": (
        ["""--model-aliases {"claude-*":"other"}"""],
        ["""--served-model-name other --model-aliases {"claude-*":"other"}"""],
    ),
    "R208": (["--auth none --api-key k", "--auth none --api-keys-file keys.yaml"], ["--auth none", "--api-key k"]),
    "R226": (
        [
            "--skip-tokenizer-init --chat-template-content-format openai",
            "--skip-tokenizer-init --trust-request-chat-template",
            "--skip-tokenizer-init --exclude-tools-when-tool-choice-none",
            "--skip-tokenizer-init --enable-tokenizer-info-endpoint",
        ],
        ["--skip-tokenizer-init", "--enable-tokenizer-info-endpoint --trust-request-chat-template"],
    ),
    "R213": (["--body-idle-timeout 121s"], ["--body-idle-timeout 120s"]),
    "R214": (["--on-engine-death exit --max-engine-restarts 4"], ["--on-engine-death exit --max-engine-restarts 3"]),
    "R215": (
        ["--disable-frontend-multiprocessing --on-engine-death restart"],
        ["--disable-frontend-multiprocessing", "--disable-frontend-multiprocessing --on-engine-death exit"],
    ),
}
CASES |= {
    "R016": (
        ["--uds /run/api.sock --port 8001", "--uds /run/api.sock --host 0.0.0.0"],
        ["--uds /run/api.sock", "--uds /run/api.sock --host 127.0.0.1 --port 8000", "--port 8001"],
    ),
    "R026": (["--ssl-keyfile k.pem", "--ssl-certfile c.pem"], ["--ssl-keyfile k.pem --ssl-certfile c.pem"]),
    "R027": (["--enable-ssl-refresh"], ["--enable-ssl-refresh --ssl-keyfile k.pem --ssl-certfile c.pem"]),
    "R028": (
        [f"{TLS} --ssl-cert-reqs 1", f"{TLS} --ssl-cert-reqs 2"],
        [TLS, f"{TLS} --ssl-cert-reqs 2 --ssl-ca-certs a.pem"],
    ),
    "R268": (["--ssl-ciphers ECDHE+AESGCM"], [f"{TLS} --ssl-ciphers ECDHE+AESGCM"]),
    "R269": (
        [f"{TLS} --ssl-ciphers none-such", f"{TLS} --ssl-ciphers a:b", f"{TLS} --ssl-ciphers \0"],
        [f"{TLS} --ssl-ciphers ECDHE-RSA-AES256-GCM-SHA384:none-such", f"{TLS} --ssl-ciphers DEFAULT"],
    ),
    "R270": (
        ["--disable-access-log-for-endpoints health", "--disable-access-log-for-endpoints /health,version"],
        ["--disable-access-log-for-endpoints /health,/version"],
    ),
    "R029": (
        ["--allow-credentials --allowed-origins *"],
        ["--allow-credentials --allowed-origins https://a.example", "--allowed-origins *"],
    ),
    "R035": (["--log-config-file nowhere.json", "--log-config-file FILE"], ["--log-config-file JSON"]),
    "R267": (
        [f"--allowed-origins {origin}" for origin in ("https://a.example/", "a.example", "https://a.example/chat")],
        [f"--allowed-origins {origin}" for origin in ("*", "null", "https://a.example", "http://[::1]:3000")],
    ),
    "R511": (
        ["--engine none --enable-admin-routes", "--engine none --responses-store memory"],
        ["--engine none", "--enable-admin-routes"],
    ),
    "R510": (
        ["--engine none --api-server-count 2", "--engine none --skip-tokenizer-init"],
        ["--engine none", "--api-server-count 2"],
    ),
    "R497": (
        [f"--allowed-hosts {name}" for name in ("http://a.example", "a.example:8000", "a.example/")],
        [f"--allowed-hosts {name}" for name in ("*", "a.example", "10.0.0.1", "fe80::1")],
    ),
    "R260": (
        ["--allow-credentials", "--allowed-methods POST", "--allowed-headers Authorization"],
        ["--allowed-methods POST --allowed-origins *"],
    ),
    "R261": (
        ["--max-incomplete-header-bytes 1KiB"],
        ["--max-incomplete-header-bytes 32KiB", "--max-header-bytes 1MiB"],
    ),
    "R262": (
        ["--log-config-file JSON --log-level debug", "--log-config-file JSON --http-log-level error"],
        ["--log-config-file JSON", "--log-config-file JSON --log-level info", "--log-level debug"],
    ),
    "R263": ([f"{TLS} --ssl-ca-certs a.pem"], [f"{TLS} --ssl-ca-certs a.pem --ssl-cert-reqs 1"]),
    "R264": (["--ssl-ca-certs a.pem --ssl-cert-reqs 2"], [f"{TLS} --ssl-ca-certs a.pem --ssl-cert-reqs 2"]),
    "R294": (
        ["--max-total-request-bytes 31MiB"],
        ["--max-total-request-bytes 32MiB", "--max-total-request-bytes 31MiB --max-request-bytes 1MiB"],
    ),
    "R296": (
        ["--max-connections 10 --max-connections-per-client 11"],
        ["--max-connections 10 --max-connections-per-client 10", "--max-connections 10"],
    ),
}
SMALL_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R295": (["--max-connections 961"], ["--max-connections 960", "--max-connections auto"]),
}
