"""Rules about `kv_transfer`: the command lines that break each one, and those that keep it; see test_rules.py."""

from __future__ import annotations


def _set(**values: str) -> str:
    """Flags of options in the section."""
    return " ".join(f"--kv-transfer-config.{name.replace('_', '-')}={value}" for name, value in values.items())


TCP = _set(kv_connector="TcpConnector")
PRODUCER = f"{TCP} {_set(kv_role='kv_producer')}"
CONSUMER = f"{TCP} {_set(kv_role='kv_consumer')}"
SHARED = _set(kv_connector="SharedStorageConnector")
FOLDER = _set(kv_connector_extra_config='{"shared_storage_path":"/tmp/kv"}')
OFFLOADING = _set(kv_connector="OffloadingConnector")
OWN = _set(kv_connector="mypackage.stores:OwnStore")
OWN_SETTING = _set(kv_connector_extra_config='{"bucket":"kv"}')
MODULE = _set(kv_connector_module_path="mypackage.stores")
BYTES = _set(kv_connector_extra_config='{"cpu_bytes_to_use":1048576}')
LMCACHE = _set(kv_connector="LMCacheMPConnector")
PORT = _set(kv_connector_extra_config='{"lmcache.mp.port":5556}')
SERVERS = _set(prefill_servers="http://10.0.0.4:8000")
BARE_CASES: dict[str, tuple[list[str], list[str]]] = {"R512": ([LMCACHE], [TCP, OWN])}
CASES: dict[str, tuple[list[str], list[str]]] = {
    "R403": (
        [SHARED, _set(kv_connector="ExampleConnector")],
        [f"{SHARED} {FOLDER}", f"{SHARED} --kv-directory /tmp/kv", TCP],
    ),
    "R404": (
        [
            *(FOLDER, f"{TCP} {FOLDER}", f"{OFFLOADING} {FOLDER}", BYTES, f"{TCP} {BYTES}", f"{TCP} {OWN_SETTING}"),
            *(f"{TCP} {PORT}", f"{LMCACHE} {BYTES}"),
        ],
        [
            f"{OWN} {OWN_SETTING}",
            f"{LMCACHE} {PORT}",
            f"{SHARED} {FOLDER}",
            f"{_set(kv_connector='ExampleConnector')} {FOLDER}",
            TCP,
            f"{OFFLOADING} {BYTES}",
        ],
    ),
    "R475": (
        [_set(kv_connector="TcpConector"), _set(kv_connector="OwnStore")],
        [OWN, f"{_set(kv_connector='OwnStore')} {MODULE}", TCP],
    ),
    "R476": (
        [MODULE, f"{TCP} {MODULE}", f"{OWN} {MODULE}"],
        [OWN, f"{_set(kv_connector='OwnStore')} {MODULE}", TCP],
    ),
    "R479": (
        [f"{_set(kv_connector='OwnStore')} {_set(kv_connector_module_path=name)}" for name in ("my-stores", "a/b.py")],
        [f"{_set(kv_connector='OwnStore')} {MODULE}", OWN],
    ),
    "R477": (
        [f"{OWN} --kv-directory /tmp/kv"],
        [OWN, f"{OWN} --kv-offloading-size 1", f"{TCP} --kv-directory /tmp/kv"],
    ),
    "R454": (
        [f"{LMCACHE} --kv-directory /tmp/kv"],
        [LMCACHE, f"{LMCACHE} --kv-offloading-size 1", f"{TCP} --kv-directory /tmp/kv"],
    ),
    "R452": ([OFFLOADING], [f"{OFFLOADING} {BYTES}", "--kv-offloading-size 1", TCP]),
    "R453": (
        [f"{OFFLOADING} --kv-offloading-size 1", f"{OFFLOADING} {BYTES} --kv-offloading-size 1"],
        [f"{OFFLOADING} {BYTES}", f"{TCP} --kv-offloading-size 1", f"{SHARED} {FOLDER} --kv-offloading-size 1"],
    ),
    "R405": (
        [f"{SHARED} {FOLDER} --kv-directory /tmp/other"],
        [f"{SHARED} {FOLDER} --kv-directory /tmp/kv", f"{SHARED} {FOLDER}", f"{SHARED} --kv-directory /tmp/other"],
    ),
    "R406": (
        [
            _set(kv_ip="10.0.0.4"),
            _set(kv_port="5700"),
            _set(kv_buffer_size="8GiB"),
            f"{CONSUMER} {_set(kv_port='5700')}",
            f"{SHARED} {FOLDER} {_set(kv_port='5700')}",
        ],
        ["", CONSUMER, f"{TCP} {_set(kv_ip='10.0.0.4', kv_port='5700')}", f"{PRODUCER} {_set(kv_buffer_size='2GiB')}"],
    ),
    "R407": (
        [f"{TCP} {_set(kv_ip='0.0.0.0')}", f"{PRODUCER} {_set(kv_ip='::')}"],
        [TCP, f"{TCP} {_set(kv_ip='10.0.0.4')}", f"{CONSUMER} {_set(kv_ip='0.0.0.0')}"],
    ),
    "R414": (
        ["--kv-transfer-config.kv-connector TcpConnector --kv-transfer-config.kv-port 65535 -dp 2"],
        [
            "--kv-transfer-config.kv-connector TcpConnector --kv-transfer-config.kv-port 65534 -dp 2",
            "--kv-transfer-config.kv-port 65535 -dp 2",
        ],
    ),
    "R408": (
        [
            _set(kv_role="kv_producer"),
            _set(kv_role="kv_consumer"),
            f"{OFFLOADING} {BYTES} {_set(kv_role='kv_producer')}",
        ],
        ["", PRODUCER, f"{SHARED} {FOLDER} {_set(kv_role='kv_both')}", f"{LMCACHE} {_set(kv_role='kv_producer')}"],
    ),
    "R409": (
        [SERVERS, f"{PRODUCER} {SERVERS}"],
        ["", PRODUCER, f"{TCP} {SERVERS}", f"{CONSUMER} {SERVERS}", f"{SHARED} {FOLDER} {SERVERS}"],
    ),
    "R410": (
        [_set(prefill_min_tokens="9"), f"{TCP} {_set(prefill_timeout='9s')}", f"{TCP} {_set(prefill_api_key='sk-1')}"],
        [TCP, f"{TCP} {SERVERS}", f"{TCP} {SERVERS} {_set(prefill_min_tokens='9', prefill_api_key='sk-1')}"],
    ),
}
