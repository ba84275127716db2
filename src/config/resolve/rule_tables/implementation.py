"""Rules about models of the transformers library and code from the hub. The format of a rule: ../rule.py."""

from __future__ import annotations

from ....model.through_transformers import is_known_class
from ...checkpoint.model_files import is_hub_id
from ...checkpoint.repository_code import COMMIT
from ..rule import Rule
from ..values import Values


def _has_repository_code(v: Values) -> bool:
    return v.files is not None and v.files.code is not None


def _is_through_transformers(v: Values) -> bool:
    return v.files is not None and v.files.implementation == "transformers"


def _is_known(v: Values) -> bool:
    return v.files is not None and is_known_class(v.files.spec.architecture)


RULES: tuple[Rule, ...] = (
    Rule(
        id="R298",
        title="models of the transformers library run on CPUs",
        fields=("model.model_impl", "device.device"),
        needs_model=True,
        about_machine=True,  # on which `device: auto` depends
        is_broken=lambda v: _is_through_transformers(v) and v.device.device == "cuda",
        message="this model runs through the transformers library, which this build supports on CPUs only",
        why="The attention function, the KV cache and the linear layers that its modules are given are those of a CPU.",
        fixes=("write `device: cpu`",),
    ),
    Rule(
        id="R299",
        title="models of the transformers library are not batch-invariant",
        fields=("model.batch_invariant", "model.model_impl"),
        needs_model=True,
        is_broken=lambda v: _is_through_transformers(v) and v.model.batch_invariant,
        message="`model.batch_invariant` does not hold for a model that runs through the transformers library",
        why="Its modules use operations of torch whose order of sums depends on the number of rows.",
        fixes=("remove `model.batch_invariant`",),
    ),
    Rule(
        id="R300",
        title="architectures through the transformers library are tested or probed",
        fields=("model.model_impl",),
        severity="warning",
        needs_model=True,
        is_broken=lambda v: _is_through_transformers(v) and (_has_repository_code(v) or not _is_known(v)),
        message="this build is not tested with `{architecture}` on the modules of the transformers library",
        why=(
            "The start compares a small random model of a class of the library with the library itself, and code of a "
            "repository with nothing."
        ),
        fixes=("compare some answers with those of transformers",),
    ),
    Rule(
        id="R302",
        title="code from the hub is pinned",
        fields=("model.trust_remote_code", "model.code_revision", "model.model"),
        is_broken=lambda v: (
            v.model.trust_remote_code
            and v.model.model_impl == "transformers"
            and (v.files is None or _has_repository_code(v))
            and is_hub_id(v.located("model.model"))
            and not COMMIT.fullmatch(v.model.code_revision or "")
        ),
        message="`model.trust_remote_code` runs code of `{model}`, and `model.code_revision` is no commit",
        why="A branch or tag can change, and the next start would run other code with all rights of this process.",
        fixes=(
            "write the commit whose code you have read, 40 hexadecimal digits, as `model.code_revision`",
            "or download the repository and name its directory as `model.model`",
        ),
    ),
    Rule(
        id="R303",
        title="a revision of code needs code from the hub",
        fields=("model.code_revision", "model.trust_remote_code", "model.model"),
        severity="warning",
        is_broken=lambda v: (
            v.model.code_revision is not None
            and not (v.model.trust_remote_code and is_hub_id(v.located("model.model")))
        ),
        message="`model.code_revision` has no effect: no code from the hub is run",
        why="It selects the commit whose code `model.trust_remote_code` allows.",
        fixes=("remove it",),
    ),
    Rule(
        id="R304",
        title="trust_remote_code needs a model with code",
        fields=("model.trust_remote_code",),
        severity="warning",
        needs_model=True,
        is_broken=lambda v: v.model.trust_remote_code and not _has_repository_code(v),
        message="`model.trust_remote_code` has no effect: config.json names no code (`auto_map`)",
        why="The option allows the code that config.json names as the model's class.",
        fixes=("remove it",),
    ),
)
