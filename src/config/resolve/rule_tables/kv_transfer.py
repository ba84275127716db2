"""Rules about KV blocks that engines read from each other. The format of a rule: ../rule.py."""

from __future__ import annotations

from ...schema.kv_transfer import (
    BUILT_IN,
    HOST_BYTES,
    LMCACHE_HOST,
    LMCACHE_LIMIT,
    LMCACHE_PORT,
    MOONCAKE_PROTOCOL,
    SHARED_PATH,
)
from ...suggest import close, did_you_mean
from ..import_path import split_import_path
from ..rule import Rule
from ..values import Values

_EXTRA = "kv_transfer.kv_connector_extra_config"
_MODULE = "kv_transfer.kv_connector_module_path"
MAX_PORT = 65535
_OF_TCP = ("kv_transfer.kv_ip", "kv_transfer.kv_port", "kv_transfer.kv_buffer_size")


_OF_PREFILL_SERVERS = (
    "kv_transfer.prefill_min_tokens",
    "kv_transfer.prefill_timeout",
    "kv_transfer.prefill_api_key",
)


def _connector_meant(v: Values) -> str:
    """Connectors of this build whose names resemble the one that is written."""
    meant = did_you_mean(close(v.kv_transfer.kv_connector or "", BUILT_IN))
    return f" ({meant})" if meant else ""


RULES: tuple[Rule, ...] = (
    Rule(
        id="R452",
        title="offloading needs a size",
        fields=("kv_transfer.kv_connector", _EXTRA, "cache.kv_offloading_size"),
        is_broken=lambda v: (
            v.kv_transfer.is_offloading
            and HOST_BYTES not in v.kv_transfer.kv_connector_extra_config
            and not v.is_written("cache.kv_offloading_size")
        ),
        message="`kv_transfer.kv_connector: OffloadingConnector` needs a size",
        why="It is the host memory that KV blocks are kept in.",
        fixes=(
            "write `cache.kv_offloading_size: 16` instead of the connector",
            f"set `kv_connector_extra_config: {{{{{HOST_BYTES}: BYTES}}}}`",
        ),
    ),
    Rule(
        id="R453",
        title="there is one memory for blocks of this engine",
        fields=("cache.kv_offloading_size", "kv_transfer.kv_connector"),
        is_broken=lambda v: v.kv_transfer.is_offloading and v.is_written("cache.kv_offloading_size"),
        message="`cache.kv_offloading_size` and `kv_transfer.kv_connector: OffloadingConnector` are the same",
        why="The option is the short form of the connector.",
        fixes=("remove `kv_connector`", "or remove `kv_offloading_size`"),
    ),
    Rule(
        id="R403",
        title="shared storage needs its folder",
        fields=("kv_transfer.kv_connector", _EXTRA, "cache.kv_directory"),
        is_broken=lambda v: v.kv_transfer.is_shared_folder and v.cache.kv_directory is None,
        message="`kv_transfer.kv_connector: {kv_connector}` needs a folder",
        why="Engines write blocks to this folder, and read those of others there.",
        fixes=(f"set `kv_transfer.kv_connector_extra_config: {{{{{SHARED_PATH}: FOLDER}}}}`, or `cache.kv_directory`",),
    ),
    Rule(
        id="R404",
        title="further settings belong to a connector",
        fields=(_EXTRA, "kv_transfer.kv_connector"),
        is_broken=lambda v: bool(set(v.kv_transfer.kv_connector_extra_config) - v.kv_transfer.settings_of_connector),
        message=f"`{_EXTRA}` has a setting that the connector lacks: {SHARED_PATH} is a setting of "
        f"SharedStorageConnector, {HOST_BYTES} of OffloadingConnector, {MOONCAKE_PROTOCOL} of MooncakeConnector, "
        f"{LMCACHE_HOST}, {LMCACHE_PORT} and {LMCACHE_LIMIT} of LMCacheMPConnector",
        why="Each connector has settings of its own; those of the others are options.",
        fixes=("remove the setting", "set the `kv_connector` that has it"),
    ),
    Rule(
        id="R475",
        title="a connector of your own is in a module",
        fields=("kv_transfer.kv_connector", _MODULE),
        is_broken=lambda v: (
            v.kv_transfer.kv_connector_module_path is None
            and bool(own := v.kv_transfer.own_connector)
            and split_import_path(own) is None
        ),
        said=lambda v: {"connector_meant": _connector_meant(v)},
        message="`kv_transfer.kv_connector: {kv_connector}` is not a connector of this build{connector_meant}, and no "
        "module is named",
        why="A class of your own is imported from its module.",
        fixes=(f"write {', '.join(BUILT_IN[:-1])} or {BUILT_IN[-1]}", "or write the class as `package.module:Class`"),
    ),
    Rule(
        id="R476",
        title="a module has a connector",
        fields=(_MODULE, "kv_transfer.kv_connector"),
        is_broken=lambda v: (
            v.kv_transfer.kv_connector_module_path is not None
            and (not v.kv_transfer.own_connector or bool({*":."} & {*(v.kv_transfer.kv_connector or "")}))
        ),
        message=f"`{_MODULE}: {{kv_connector_module_path}}` is for a class of this module, and `kv_connector` is "
        "{kv_connector}",
        why="Connectors of this build are in no module of yours, and an import path has its module.",
        fixes=("set `kv_connector` to the name of the class, without its module", f"or remove `{_MODULE}`"),
    ),
    Rule(
        id="R479",
        title="a module of a connector can be imported",
        fields=(_MODULE, "kv_transfer.kv_connector"),
        is_broken=lambda v: (
            v.kv_transfer.kv_connector_module_path is not None
            and bool(own := v.kv_transfer.own_connector)
            and split_import_path(own) is None
        ),
        message="`{kv_connector}` in `{kv_connector_module_path}` is not a class in a Python module",
        why="The engine imports the module by its name, and not by the name of a file or of a distribution.",
        fixes=("write the module as `import` does, `package.module`, and the name of the class alone",),
    ),
    Rule(
        id="R477",
        title="blocks are in a folder or in a store of your own",
        fields=("kv_transfer.kv_connector", _MODULE, "cache.kv_directory"),
        is_broken=lambda v: bool(v.kv_transfer.own_connector) and v.cache.kv_directory is not None,
        message="`kv_transfer.kv_connector: {kv_connector}` and `cache.kv_directory` are two stores of the same blocks",
        why="Both are for blocks that outlive the engine; `cache.kv_offloading_size` may be set beside either.",
        fixes=("remove one of them",),
    ),
    Rule(
        id="R454",
        title="files or LMCache keep the blocks of prompts",
        fields=("cache.kv_directory", "kv_transfer.kv_connector"),
        is_broken=lambda v: v.kv_transfer.is_lmcache and v.is_written("cache.kv_directory"),
        message="`cache.kv_directory` and `kv_transfer.kv_connector: LMCacheMPConnector` keep the same blocks twice",
        why="A block outside the engine is in one place; LMCache itself writes files (`lmcache server --l2-adapter`).",
        fixes=("remove `kv_directory`", "remove `kv_connector`"),
    ),
    Rule(
        id="R405",
        title="there is one folder of blocks",
        fields=(_EXTRA, "cache.kv_directory"),
        is_broken=lambda v: (
            v.is_written("cache.kv_directory")
            and v.kv_transfer.is_shared_folder
            and v.cache.kv_directory != v.decisions.shared_folder
            and v.decisions.shared_folder is not None
        ),
        message=f"`cache.kv_directory` and the {SHARED_PATH} of `{_EXTRA}` are two folders",
        why="Both are the folder in which blocks are stored.",
        fixes=("remove one of them",),
    ),
    Rule(
        id="R406",
        title="settings of the connectors between engines need one",
        fields=(*_OF_TCP, "kv_transfer.kv_connector", "kv_transfer.kv_role"),
        severity="warning",
        is_broken=lambda v: not v.kv_transfer.buffer_bytes and any(map(v.is_written, _OF_TCP)),
        message="`kv_transfer.kv_ip`, `kv_port` and `kv_buffer_size` have no effect: no other engine reads blocks from "
        "this one",
        why="An engine keeps blocks for others with `TcpConnector`, `NixlConnector` or `MooncakeConnector`, unless it "
        "is a `kv_consumer`.",
        fixes=("remove them", "set `kv_connector: TcpConnector`"),
    ),
    Rule(
        id="R407",
        title="other engines need an address",
        fields=("kv_transfer.kv_ip", "kv_transfer.kv_connector", "kv_transfer.kv_role"),
        is_broken=lambda v: bool(v.kv_transfer.buffer_bytes) and v.kv_transfer.kv_ip in ("0.0.0.0", "::", "*"),
        message="`kv_transfer.kv_ip: {kv_ip}` is not an address that other engines can connect to",
        why="The answer to a prompt that is computed for others names this address.",
        fixes=("write the address of this machine in the private network, or of the pod",),
    ),
    Rule(
        id="R414",
        title="each replica has a port for other engines",
        fields=(
            "kv_transfer.kv_port",
            "parallel.data_parallel_size",
            "kv_transfer.kv_connector",
            "kv_transfer.kv_role",
        ),
        is_broken=lambda v: (
            bool(v.kv_transfer.buffer_bytes) and v.kv_transfer.port_at_rank(v.topology.replicas[-1]) > MAX_PORT
        ),
        message="`kv_transfer.kv_port: {kv_port}` is too high: each replica uses the port plus its rank, and the "
        "highest port is 65535",
        why="A replica listens on a port of its own.",
        fixes=("write a lower `kv_port`",),
    ),
    Rule(
        id="R408",
        title="a role needs a connector",
        fields=("kv_transfer.kv_role", "kv_transfer.kv_connector"),
        severity="warning",
        is_broken=lambda v: v.is_written("kv_transfer.kv_role") and not v.kv_transfer.has_roles,
        message="`kv_transfer.kv_role` has no effect without a `kv_transfer.kv_connector` between engines",
        why="Without such a connector no block leaves the engine, and none comes from another.",
        fixes=("set `kv_connector`, or remove `kv_role`",),
    ),
    Rule(
        id="R409",
        title="blocks of prefill servers are read",
        fields=("kv_transfer.prefill_servers", "kv_transfer.kv_connector", "kv_transfer.kv_role"),
        is_broken=lambda v: bool(v.kv_transfer.prefill_servers) and not v.kv_transfer.reads,
        message="`kv_transfer.prefill_servers` needs a `kv_connector`, and a `kv_role` that reads blocks",
        why="What a prefill server computes is of use only to an engine that reads its blocks.",
        fixes=("set `kv_connector: TcpConnector` and `kv_role: kv_consumer`", "remove `prefill_servers`"),
    ),
    Rule(
        id="R410",
        title="settings of prefill servers need them",
        fields=(*_OF_PREFILL_SERVERS, "kv_transfer.prefill_servers"),
        severity="warning",
        is_broken=lambda v: not v.kv_transfer.prefill_servers and any(map(v.is_written, _OF_PREFILL_SERVERS)),
        message="`kv_transfer.prefill_min_tokens`, `prefill_timeout` and `prefill_api_key` have no effect without "
        "`prefill_servers`",
        why="They say how prompts are sent to these servers.",
        fixes=("set `prefill_servers`, or remove them",),
    ),
)
