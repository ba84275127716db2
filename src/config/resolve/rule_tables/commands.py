"""Rules about the arguments of commands and the syntax of the command line. How a rule is written: ../rule.py."""

from __future__ import annotations

from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = ()

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R013",
        "a flat file holds long option names",
        (),
        "`--config FILE` reads YAML whose keys are option names without dashes in front; an unknown key is an error "
        "that names the nearest known one.",
    ),
    StatedRule(
        "R014",
        "each layer has its place",
        (),
        "Built-in default, preset, manifest files in order, the flat file of `--config`, environment, command line: "
        "the later one counts.",
    ),
    StatedRule(
        "R188",
        "pools of tokenizers",
        ("server.tokenizer_pool_size", "server.tokenizer_pool_type", "server.tokenizer_pool_extra_config"),
        "All three are dropped with a warning: the tokenizer uses threads by itself.",
    ),
    StatedRule(
        "R193",
        "the address of a batch's metrics needs the metrics",
        (),
        "`engine run-batch --url` and `--port` are refused without `--enable-metrics`.",
    ),
    StatedRule(
        "R194",
        "a batch is read from and written to files or URLs",
        (),
        "`engine run-batch`: an input URL is fetched with GET, an output URL written with PUT; `--output-tmp-dir` "
        "only matters for an output URL.",
    ),
    StatedRule(
        "R195",
        "a key on the command line beats the one in the environment",
        (),
        "`engine chat --api-key` and `engine complete --api-key` come before OPENAI_API_KEY.",
    ),
    StatedRule(
        "R196",
        "chat and complete take the first model of the server",
        (),
        "Unless --model-name says which.",
    ),
    StatedRule(
        "R197",
        "use_v2_block_manager changes nothing",
        (),
        "`engine run-batch` accepts it with a warning, as scripts still carry it.",
    ),
)
