"""Rules about experts that several processes or replicas share. The format of a rule: ../rule.py."""

from __future__ import annotations

from ..rule import Rule

RULES: tuple[Rule, ...] = (
    Rule(
        id="R391",
        title="expert parallel needs a mixture of experts on several processes",
        fields=(
            *("parallel.enable_expert_parallel", "parallel.tensor_parallel_size"),
            "parallel.data_parallel_size",
        ),
        severity="warning",
        is_broken=lambda v: (
            v.parallel.enable_expert_parallel
            and v.files is not None
            and (v.parallel.tensor_parallel_size * v.parallel.data_parallel_size == 1 or not v.files.spec.has_experts)
        ),
        message="`parallel.enable_expert_parallel` has no effect: {no_placement}",
        why="Experts are placed on the replicas of `data_parallel_size`, or on the processes of "
        "`tensor_parallel_size`. Replicas of other models compute independently of each other.",
        fixes=("remove `enable_expert_parallel`, or set `data_parallel_size` or `tensor_parallel_size`",),
    ),
    Rule(
        id="R392",
        title="a placement of experts needs expert parallel",
        fields=("parallel.expert_placement_strategy", "parallel.enable_expert_parallel"),
        severity="warning",
        is_broken=lambda v: v.parallel.expert_placement_strategy != "linear" and not v.parallel.enable_expert_parallel,
        message="`parallel.expert_placement_strategy` has no effect without `enable_expert_parallel`",
        why="Otherwise each process has a part of every expert.",
        fixes=("set `enable_expert_parallel: true`, or remove `expert_placement_strategy`",),
    ),
    Rule(
        id="R142",
        title="expert load balancing needs expert parallelism",
        fields=("parallel.enable_eplb", "parallel.enable_expert_parallel", "parallel.tensor_parallel_size"),
        is_broken=lambda v: (
            v.parallel.enable_eplb and not (v.parallel.enable_expert_parallel and v.parallel.tensor_parallel_size > 1)
        ),
        message="`parallel.enable_eplb` needs `enable_expert_parallel` and a `tensor_parallel_size` above 1",
        why="Whole experts move between the processes of `tensor_parallel_size`.",
        fixes=("set both", "remove `enable_eplb`"),
    ),
    Rule(
        id="R143",
        title="redundant experts need expert load balancing",
        fields=("parallel.eplb_config", "parallel.enable_eplb"),
        is_broken=lambda v: v.parallel.expert_balance.num_redundant_experts > 0 and not v.parallel.enable_eplb,
        message="`parallel.eplb_config` has `num_redundant_experts`, and `enable_eplb` is false",
        why="The load decides which experts have copies.",
        fixes=("set `enable_eplb: true`, or remove `num_redundant_experts`",),
    ),
    Rule(
        id="R460",
        title="settings of expert load balancing need it",
        fields=("parallel.eplb_config", "parallel.enable_eplb"),
        severity="warning",
        is_broken=lambda v: (
            bool(v.parallel.eplb_config)
            and not v.parallel.enable_eplb
            and not v.parallel.expert_balance.num_redundant_experts
        ),
        message="`parallel.eplb_config` has no effect without `enable_eplb`",
        why="Experts stay in the process that has read them.",
        fixes=("set `enable_eplb: true`, or remove `eplb_config`",),
    ),
    Rule(
        id="R463",
        title="the load of experts is measured after they have moved",
        fields=("parallel.eplb_config",),
        is_broken=lambda v: v.parallel.expert_balance.window_size > v.parallel.expert_balance.step_interval,
        message="`parallel.eplb_config` has a `window_size` above its `step_interval`: {expert_window} and "
        "{expert_interval} steps",
        why="Tokens are counted between one placement of the experts and the next.",
        fixes=("raise `step_interval`, or lower `window_size`",),
    ),
)
