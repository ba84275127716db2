"""Rules about `lora`: the command lines that break each one, and those that keep it."""

from __future__ import annotations

_ON = "--enable-lora"
_DUMMY = "--load-format dummy --skip-tokenizer-init"
# `Qwen/none` is not on this machine: the adapters are not read
_UNREAD = f"{_ON} --model Qwen/none"

CASES: dict[str, tuple[list[str], list[str]]] = {
    "R012": (
        [
            f"{_UNREAD} --lora-modules a=x a=y",
            f"{_UNREAD} --lora-modules a=x --modules.a.path y",
            f"{_UNREAD} --lora-modules Qwen/none=x",
            f"{_UNREAD} --served-model-name a --lora-modules a=x",
            f'{_UNREAD} --model-aliases {{"a":"Qwen/none"}} --lora-modules a=x',
            *(f"{_UNREAD} --lora-modules {item}" for item in ("a", "a=", "..=x", "a/../b=x", "a/b/c=x", "a%2f=x")),
            *(
                f"{_UNREAD} --lora-modules {item}"
                for item in ('{"name":"a"}', '{"name":"a","path":1}', '{"name":"a","path":"x","rank":8}', "{")
            ),
        ],
        [
            *(f"{_UNREAD} --lora-modules {item}" for item in ("a=x", "a=x b=y", "org/a=x", "a.b-c_1=x=y")),
            *(
                f"{_UNREAD} --lora-modules {item}"
                for item in (
                    '{"name":"a","path":"x"}',
                    '{"name":"a","path":"x","base_model_name":"m","is_3d_lora_weight":true}',
                    '[{"name":"a","path":"x"},{"name":"b","path":"y"}]',
                )
            ),
            f"{_UNREAD} --modules.a.path x",
            f'{_UNREAD} --model-aliases {{"a*":"Qwen/none"}} --lora-modules a=x',  # the pattern is for others
        ],
    ),
    "R161": (
        ["--max-loras 4", "--max-lora-rank 64", "--lora-target-modules q_proj", "--resolver-folder x"],
        ["", f"{_ON} --max-loras 4", "--max-loras 1"],
    ),
    "R162": (
        ["--lora-modules a=x", "--modules.a.path x", "--enable-lora-routes"],
        ["", _ON, f"{_UNREAD} --lora-modules a=x", f"{_ON} --enable-lora-routes"],
    ),
    "R163": (
        [f"{_ON} --max-loras 4 --max-cpu-loras 3"],
        [f"{_ON} --max-loras 4", *(f"{_ON} --max-loras 4 --max-cpu-loras {number}" for number in (4, 9, 0, -1))],
    ),
    "R164": (
        [f"{_ON} --dtype bfloat16 --lora-dtype float32", f"{_ON} --dtype float32 --lora-dtype bfloat16"],
        [_ON, f"{_ON} --dtype bfloat16 --lora-dtype bfloat16", f"{_ON} --dtype float32 --lora-dtype auto"],
    ),
    "R532": (
        [f"{_ON} --enable-lora-routes --api-server-count 2"],
        [f"{_ON} --enable-lora-routes", f"{_ON} --api-server-count 2"],
    ),
    "R530": (
        [f"{_ON} --model-impl transformers --model MIXTURE {_DUMMY}"],
        [_ON, f"{_ON} --model MIXTURE {_DUMMY}", f"--model-impl transformers --model MIXTURE {_DUMMY}"],
    ),
    "R531": ([f"{_ON} --device cuda"], [_ON, "--device cuda"]),
}
