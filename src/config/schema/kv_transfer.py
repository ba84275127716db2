"""Section `kv_transfer`: KV blocks that engines read from each other, for prefill and decode apart."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from .refused import with_refused
from .section import Section, about
from .types import Count, Duration, Secret, Size, Text, Whole, parse_one_or_more

SHARED_PATH = "shared_storage_path"  # in kv_connector_extra_config
HOST_BYTES = "cpu_bytes_to_use"  # there too
MOONCAKE_PROTOCOL = "mooncake_protocol"
LMCACHE_HOST, LMCACHE_PORT = "lmcache.mp.host", "lmcache.mp.port"
LMCACHE_LIMIT = "lmcache.mp.mq_timeout"  # seconds
SHARED_FOLDER = ("SharedStorageConnector", "ExampleConnector")
BuiltIn = Literal[
    "TcpConnector",
    "NixlConnector",
    "MooncakeConnector",
    "SharedStorageConnector",
    "ExampleConnector",
    "OffloadingConnector",
    "LMCacheMPConnector",
]
BUILT_IN: tuple[str, ...] = get_args(BuiltIn)
_LMCACHE_HOST_PATTERN = r"^(tcp://)?([^\s/:\[\]]+|\[[0-9A-Fa-f:.]+\])$"
_FOLDER = "`cache.kv_directory` on storage that both engines reach"
_TCP = "write `TcpConnector`, which reads blocks over TCP, or " + _FOLDER
_REFUSED = {
    "MooncakeStoreConnector": "write `MooncakeConnector`, which reads blocks from other engines, or " + _FOLDER,
    "MoRIIOConnector": _TCP,
    "P2pNcclConnector": _TCP,
    "LMCacheConnectorV1": "LMCache in the process of the engine needs CUDA and older packages; write "
    "`LMCacheMPConnector`, which uses an LMCache server",
    "MultiConnector": "write `TcpConnector`, and `cache.kv_directory` or `kv_offloading_size` beside it",
}


def _with_port(url: str) -> str:
    """Raises ValueError if its port, or the brackets of its host, cannot be read."""
    if urlsplit(url).port == 0:
        raise ValueError("port 0 is none")
    return url


def _not_refused(name: str) -> str:
    """Raises ValueError for a class that only another engine can use."""
    if name in _REFUSED:
        raise ValueError("not available in this build")
    return name


OwnConnector = Annotated[Text, AfterValidator(_not_refused)]
Url = Annotated[str, Field(pattern=r"^https?://[^\s/?#@\x00-\x1f\x7f]+/?$"), AfterValidator(_with_port)]


@with_refused("kv_transfer")
class KVTransferConfig(Section):
    """Transfer of KV cache between engines."""

    json_flags: ClassVar[tuple[str, ...]] = ("--kv-transfer-config",)

    kv_connector: BuiltIn | OwnConnector | None = Field(
        None,
        description=(
            "How KV blocks get from the engine that computes a prompt (prefill) to the one that generates the answer "
            "(decode). With `TcpConnector` an engine keeps them in host memory, and others read them over TCP; "
            "`NixlConnector` does the same with NIXL, over RDMA where there is any (extra `nixl`), and "
            "`MooncakeConnector` with the transfer engine of Mooncake (extra `mooncake`). "
            "`SharedStorageConnector` (also called `ExampleConnector`) writes them to a folder on storage that all "
            "of them reach. Requests name the blocks in `kv_transfer_params`. `OffloadingConnector` is the long form "
            "of `cache.kv_offloading_size`: the engine keeps blocks for itself. `LMCacheMPConnector` keeps the blocks "
            "of all prompts in an LMCache server on the same machine (package `stoker-lmcache`). The import path of a "
            "class, `package.module:Class`, stores them wherever this class does. Unset, no block leaves the engine."
        ),
        examples=["TcpConnector"],
        json_schema_extra=about(refused=_REFUSED),
    )
    kv_connector_module_path: Text | None = Field(
        None,
        description=(
            "Module of the class that `kv_connector` names, if that is a connector of your own: `OwnStore` in "
            "`mypackage.stores` is `mypackage.stores:OwnStore`. The engine imports it, and it stores KV blocks for "
            "this engine and for others. engine/kv_stores/connector.py lists its methods."
        ),
        examples=["mypackage.stores"],
    )
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"] = Field(
        "kv_both",
        description=(
            "`kv_producer` computes prompts for others and reads no blocks, `kv_consumer` reads blocks and keeps none "
            "for others, `kv_both` does both. A request that asks for the other role is an error."
        ),
        examples=["kv_producer"],
    )
    kv_ip: Text = Field(
        "127.0.0.1",
        description=(
            "With `TcpConnector`, `NixlConnector`, `MooncakeConnector`: address of this machine at which other engines "
            "read its blocks. "
            "They get this address, so `0.0.0.0` is none. Everyone who reaches it can read the blocks of a "
            "prompt that he knows: use a private network."
        ),
        examples=["10.0.0.4"],
    )
    kv_port: Whole = Field(
        5600,
        ge=1,
        le=65535,
        description="With the same connectors: port of `kv_ip`. It grows by the rank of the replica.",
        examples=[5600],
    )
    kv_buffer_size: Size = Field(
        2**30,
        description=(
            "With the same connectors: host memory for blocks that other engines may read. Those that "
            "were not used for the longest time make room for new ones, so it should hold the prompts that are "
            "between prefill and decode: one that is gone is computed again."
        ),
        examples=["8GiB"],
        json_schema_extra=about(unit="bytes"),
    )
    kv_connector_extra_config: dict[str, Any] = Field(
        {},
        description=(
            "With `SharedStorageConnector`: `shared_storage_path`, the folder. It is the same as `cache.kv_directory`. "
            "With `OffloadingConnector`: `cpu_bytes_to_use`, the same as `cache.kv_offloading_size`, in bytes. With "
            "`MooncakeConnector`: `mooncake_protocol`, `tcp` (default) or `rdma`. With `LMCacheMPConnector`: "
            f"`{LMCACHE_HOST}` and `{LMCACHE_PORT}` of the server (localhost, 5555), and `{LMCACHE_LIMIT}`, the "
            "seconds without an answer after which prompts are computed (3). With a class of your own: its keyword"
            " arguments, which are checked against its `settings_schema` if it has one."
        ),
        examples=[{"shared_storage_path": "/mnt/kv"}],
        json_schema_extra=about(
            json_schema={
                "type": "object",
                "properties": {
                    SHARED_PATH: {"type": "string", "minLength": 1},
                    HOST_BYTES: {"type": "integer", "minimum": 1},
                    MOONCAKE_PROTOCOL: {"enum": ["tcp", "rdma"]},
                    LMCACHE_HOST: {"type": "string", "pattern": _LMCACHE_HOST_PATTERN},
                    LMCACHE_PORT: {"type": "integer", "minimum": 1, "maximum": 65535},
                    LMCACHE_LIMIT: {"type": "number", "minimum": 0.1, "maximum": 600},
                },
            },
        ),
    )
    kv_load_failure_policy: Literal["recompute"] = Field(
        "recompute",
        description="What happens to a request whose blocks cannot be read: their tokens are computed.",
        examples=["recompute"],
        json_schema_extra=about(refused={"fail": "a request is not failed for blocks that can be computed"}),
    )

    prefill_servers: Annotated[tuple[Url, ...], BeforeValidator(parse_one_or_more)] = Field(
        (),
        description=(
            "Addresses of servers that compute the prompts of this one's requests: each prompt goes to the one with "
            "the fewest, and this server reads its KV blocks and generates the answer. A prompt is computed here if "
            "none of them answers. No other proxy is needed."
        ),
        examples=[["http://10.0.0.4:8000", "http://10.0.0.5:8000"]],
        json_schema_extra=about(reload="process"),
    )
    prefill_min_tokens: Count = Field(
        256,
        description="Prompts of fewer tokens are not sent to `prefill_servers`: computing them here takes less time.",
        examples=[1024],
        json_schema_extra=about(reload="process", unit="tokens"),
    )
    prefill_timeout: Duration = Field(
        60.0,
        gt=0,
        description=(
            "Time that one of `prefill_servers` may take for a prompt; then it is computed here. It must be longer "
            "than the longest prompt takes there, with those that wait before it."
        ),
        examples=["120s"],
        json_schema_extra=about(reload="process", unit="seconds"),
    )
    prefill_api_key: Secret | None = Field(
        None,
        description="API key that is sent to `prefill_servers`.",
        examples=[{"env": "PREFILL_KEY"}],
        json_schema_extra=about(reload="process"),
    )

    @property
    def is_between_engines(self) -> bool:
        """Whether blocks go from the memory of one engine to another's."""
        return self.kv_connector in ("TcpConnector", "NixlConnector", "MooncakeConnector")

    @property
    def mooncake_protocol(self) -> str:
        return str(self.kv_connector_extra_config.get(MOONCAKE_PROTOCOL, "tcp"))

    @property
    def is_shared_folder(self) -> bool:
        return self.kv_connector in SHARED_FOLDER

    @property
    def is_lmcache(self) -> bool:
        return self.kv_connector == "LMCacheMPConnector"

    @property
    def is_offloading(self) -> bool:
        """Whether it keeps blocks only for this engine."""
        return self.kv_connector == "OffloadingConnector"

    @property
    def own_connector(self) -> str:
        """Import path of the class that stores blocks; empty if it is one of this build, or if none is named."""
        if self.kv_connector is None or self.kv_connector in BUILT_IN:
            return ""
        module = self.kv_connector_module_path
        return self.kv_connector if module is None else f"{module}:{self.kv_connector}"

    @property
    def connector_class(self) -> str:
        """Import path of the class that stores blocks, of the user's own or of a package; empty without one."""
        return "stoker_lmcache:LmcacheBlocks" if self.is_lmcache else self.own_connector

    @property
    def is_storage(self) -> bool:
        """Whether blocks are kept where other engines may read them, too."""
        return self.is_shared_folder or self.is_lmcache or bool(self.own_connector)

    @property
    def has_roles(self) -> bool:
        """Whether other engines take part."""
        return self.is_between_engines or self.is_storage

    @property
    def settings_of_connector(self) -> frozenset[str]:
        """Keys of `kv_connector_extra_config` that have an effect. A class of the user's own checks its settings."""
        if self.own_connector:
            return frozenset(self.kv_connector_extra_config)
        found: set[str] = set()
        if self.is_shared_folder:
            found.add(SHARED_PATH)
        if self.is_offloading:
            found.add(HOST_BYTES)
        if self.kv_connector == "MooncakeConnector":
            found.add(MOONCAKE_PROTOCOL)
        if self.is_lmcache:
            found |= {LMCACHE_HOST, LMCACHE_PORT, LMCACHE_LIMIT}
        return frozenset(found)

    @property
    def reads(self) -> bool:
        """Whether requests may name blocks of other engines."""
        return self.has_roles and self.kv_role != "kv_producer"

    @property
    def writes(self) -> bool:
        """Whether requests may have blocks kept for other engines."""
        return self.has_roles and self.kv_role != "kv_consumer"

    @property
    def buffer_bytes(self) -> int:
        """Host memory that it takes."""
        return self.kv_buffer_size if self.is_between_engines and self.writes else 0

    def port_at_rank(self, rank: int) -> int:
        return self.kv_port + rank
