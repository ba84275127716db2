"""Rules about the arguments of commands and the syntax of the command line. The format of a rule: ../rule.py."""

from __future__ import annotations

from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = ()

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R013",
        "a flat file contains long option names",
        (),
        "`--config FILE` reads YAML whose keys are option names without leading dashes; an unknown key is an error "
        "that suggests the most similar known one.",
    ),
    StatedRule(
        "R014",
        "layers have a fixed order",
        (),
        "Built-in default, preset, manifest files in order, the flat file of `--config`, environment, command line: "
        "later ones override earlier ones.",
    ),
    StatedRule(
        "R188",
        "pools of tokenizers",
        ("server.tokenizer_pool_size", "server.tokenizer_pool_type", "server.tokenizer_pool_extra_config"),
        "All three are ignored with a warning: the tokenizer uses threads, and there is no pool.",
    ),
    StatedRule(
        "R193",
        "the address of metrics needs enable_metrics",
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
        "a key on the command line overrides the one in the environment",
        (),
        "`engine chat --api-key` and `engine complete --api-key` override OPENAI_API_KEY.",
    ),
    StatedRule(
        "R196",
        "chat and complete use the first model of the server",
        (),
        "Unless --model-name is given.",
    ),
    StatedRule(
        "R197",
        "use_v2_block_manager has no effect",
        (),
        "`engine run-batch` accepts it with a warning, because scripts still contain it.",
    ),
)
