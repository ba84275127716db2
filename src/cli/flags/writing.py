"""Flags of the verbs that write deployments, files for supervisors, and models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from .types import YamlOrJson


@dataclass(frozen=True, slots=True)
class InitFlags:
    file: Annotated[str, typer.Argument(metavar="FILE", help="File to write; - prints it.")] = "deploy.yaml"
    minimal: Annotated[bool, typer.Option("--minimal", help="About a dozen lines; this is the default.")] = False
    full: Annotated[bool, typer.Option("--full", help="Every option with its description, at its default.")] = False
    model: Annotated[str, typer.Option("--model", help="Hub id, directory or builtin:tiny.")] = "builtin:tiny"
    preset: Annotated[str | None, typer.Option("--preset", metavar="PRESET", help="Preset to extend.")] = None
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False


@dataclass(frozen=True, slots=True)
class ImportFlags:
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="WHAT", help="A command line in quotes or after --, a script, or a flat YAML file."),
    ] = None
    engine: Annotated[
        Literal["vllm", "sglang", "llama.cpp", "tgi", "tei", "infinity", "ollama", "stoker"] | None,
        typer.Option("--from", help="Engine that the options belong to; by default detected."),
    ] = None
    output: YamlOrJson = "yaml"
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if an option has no counterpart.")] = False


@dataclass(frozen=True, slots=True)
class RenderFlags:
    form: Annotated[Literal["k8s", "kserve", "compose", "systemd"], typer.Argument(help="What runs the deployment.")]
    file: Annotated[str, typer.Argument(metavar="FILE", help="The deployment.")]
    image: Annotated[
        str | None,
        typer.Option("--image", help="Container image; by default stoker:VERSION, or stoker:VERSION-cuda for a GPU."),
    ] = None
    name: Annotated[str | None, typer.Option("--name", help="Name of all objects; by default that of FILE.")] = None
    namespace: Annotated[str | None, typer.Option("--namespace", help="Kubernetes namespace.")] = None
    replicas: Annotated[int | None, typer.Option("--replicas", help="Pods, each with the whole model.")] = None
    nodes: Annotated[
        int | None, typer.Option("--nodes", help="k8s: nodes that share the replicas of data_parallel_size.")
    ] = None
    inference_pool: Annotated[
        bool, typer.Option("--inference-pool", help="k8s: add an InferencePool and an HTTPRoute to it.")
    ] = False
    gateway: Annotated[
        str | None, typer.Option("--gateway", help="Gateway of the route; by default inference-gateway.")
    ] = None
    endpoint_picker: Annotated[
        str | None, typer.Option("--endpoint-picker", help="Service of the endpoint picker; by default NAME-epp.")
    ] = None
    model_uri: Annotated[
        str | None,
        typer.Option("--model-uri", help="kserve: where the model is; by default the repository on the hub."),
    ] = None
    program: Annotated[str | None, typer.Option("--program", help="Path of `engine`, for systemd.")] = None


@dataclass(frozen=True, slots=True)
class ConnectFlags:
    url: Annotated[
        str | None, typer.Option("--url", help="Address of the server as clients see it; by default host and port.")
    ] = None
    catalogue: Annotated[
        bool, typer.Option("--catalogue", help="For codex: the file that describes the model, instead.")
    ] = False


@dataclass(frozen=True, slots=True)
class QuantizeFlags:
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, directory or builtin:tiny.")]
    to: Annotated[
        Literal[
            "int4",
            "int8",
            "fp8",
            "gguf:f16",
            "gguf:bf16",
            "gguf:q8_0",
            "gguf:q6_k",
            "gguf:q5_k_m",
            "gguf:q4_k_m",
            "gguf:q4_0",
        ],
        typer.Option(
            "--to",
            help="int4: in groups, activations stay. int8, fp8: a scale per output and per token. gguf: one file for "
            "llama.cpp, of a type or mixture that it names.",
        ),
    ]
    target: Annotated[
        str,
        typer.Option(
            "--output-dir",
            "-o",
            metavar="PATH",
            help="Folder to write, which must be new or empty; with gguf, the file, which must be new.",
        ),
    ]
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, tag or commit of a hub id; by default the main branch.")
    ] = None
    perplexity: Annotated[
        str | None,
        typer.Option("--perplexity", metavar="FILE", help="Compute the perplexity of this text before and after."),
    ] = None
    pre_tokenizer: Annotated[
        str | None,
        typer.Option(
            "--pre-tokenizer",
            metavar="NAME",
            help="For gguf: llama.cpp's name of the pattern that cuts text into words, if it is not found.",
        ),
    ] = None
    output: Annotated[Literal["text", "json"], typer.Option("--output", help="Output format.")] = "text"


@dataclass(frozen=True, slots=True)
class SaveShardedFlags:
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Hub id, directory or builtin:tiny; with --as-loaded also a deployment or a GGUF file.",
        ),
    ]
    target: Annotated[
        str, typer.Option("--output-dir", "-o", metavar="PATH", help="Folder to write, which must be new or empty.")
    ]
    as_loaded: Annotated[
        bool,
        typer.Option(
            "--as-loaded",
            help="Write the weights as this machine's kernels hold them for the deployment: a start maps them.",
        ),
    ] = False
    force: Annotated[bool, typer.Option("--force", help="Replace a sharded state that is there.")] = False
    max_part_size: Annotated[
        str, typer.Option("--max-part-size", metavar="SIZE", help="Of the tensors of one file.")
    ] = "5GB"
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, tag or commit of a hub id; by default the main branch.")
    ] = None
    output: Annotated[Literal["text", "json"], typer.Option("--output", help="Output format.")] = "text"
