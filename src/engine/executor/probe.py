"""A probe at the start: whether an architecture of the transformers library that is not in the tests' table runs right.

A small random model of it generates text, computed by the library alone and by this engine with its modules: in chunks,
with several requests in a step, from a shared prefix. Both must give the same.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...config import (
    DeploymentError,
    ModelFiles,
    ModelFilesError,
    Resolved,
    load_deployment,
    read_machine_spec,
    read_model_files,
    resolve_deployment,
)
from ..api import EngineOutput, EngineRequest, RequestInputs, SamplingParams
from ..core import Scheduler
from ..runner.load_runner import load_runner
from .scheduler import scheduler_settings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LARGEST_DIFFERENCE = 1e-2  # of log-probabilities in float32: sharp attention makes rounding large
_NUM_GENERATED = 6
_NUM_SHARED = 17  # tokens that prompts begin with: more than a block, and than a step takes
_FIRST = 4  # tokens before it are of padding in many models, some of which count positions without them
_PROMPTS = [[*range(_FIRST, _FIRST + _NUM_SHARED), *range(40, 40 + rest)] for rest in (1, 5, 9)]


def probe(files: ModelFiles) -> None:
    """Raises ModelFilesError with the difference, or with the part of the model that cannot be served."""
    from ..models import hf_build, hf_small

    architecture = files.spec.architecture
    config_class, model_class = hf_build.classes(files)
    try:
        model = hf_small.small_model(files.config_json, config_class, model_class)
        difference = _compared(model, architecture)
    except DeploymentError:
        raise
    except Exception as error:  # modelling code raises anything
        message = f"a small random model of `{architecture}` cannot be run: {hf_build.line_of(error)}"
        raise ModelFilesError(message, code="M304") from error
    if not difference <= LARGEST_DIFFERENCE:  # also if it is not a number
        raise ModelFilesError(
            f"`{architecture}` is not served: log-probabilities of a small random model of it differ by "
            f"{difference:.2g} from those of the transformers library",
            code="M304",
        )


def _compared(model: PreTrainedModel, architecture: str) -> float:
    """The largest difference between log-probabilities of this engine and those of the library, for all prompts."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="stoker-probe-") as folder:
        model.save_pretrained(folder)
        _name_class(Path(folder), architecture)
        outputs = _generated(_small_deployment(Path(folder)))
    return max(_difference(model, *each) for each in zip(_PROMPTS, outputs, strict=True))


def _name_class(folder: Path, architecture: str) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"architectures": [architecture]}), "utf-8")


def _small_deployment(folder: Path) -> Resolved:
    """Few blocks of few tokens, and steps that are shorter than a prompt."""
    manifest = {
        "apiVersion": "stoker/v1",
        "kind": "Deployment",
        "model": {
            "model": str(folder),
            "model_impl": "transformers",
            "dtype": "float32",
            "max_model_len": 64,
            "skip_tokenizer_init": True,
        },
        "cache": {"block_size": 16, "num_gpu_blocks_override": 32},
        "scheduler": {"max_num_seqs": len(_PROMPTS), "max_num_batched_tokens": 11},
        "device": {"device": "cpu"},
    }
    file = folder / "deployment.yaml"
    file.write_text(json.dumps(manifest), "utf-8")
    deployment = load_deployment([file], env={})
    return resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())


def _generated(resolved: Resolved) -> list[EngineOutput]:
    """An output for each prompt. After the first prompt, the others find its block in the prefix cache."""
    runner, scheduler = load_runner(resolved), Scheduler(scheduler_settings(resolved))
    runner.warm_up()
    done: dict[str, EngineOutput] = {}
    for first, batch in ((True, _PROMPTS[:1]), (False, _PROMPTS[1:])):
        for prompt in batch:
            sampling = SamplingParams(
                temperature=0,
                max_tokens=_NUM_GENERATED,
                ignore_eos=True,
                logprobs=0,
                prompt_logprobs=0 if first else None,  # its tokens are computed, also those of cached blocks
            )
            request_id = str(_PROMPTS.index(prompt))
            scheduler.add(EngineRequest(request_id=request_id, inputs=RequestInputs(prompt, sampling)))
        while scheduler.has_work:
            plan = scheduler.schedule()
            assert plan is not None, "work is left and none of it was scheduled"
            for output in scheduler.finish_step(plan, runner.execute(plan)):
                if output.request_id in done:
                    done[output.request_id].merge(output)
                else:
                    done[output.request_id] = output
    return list(done.values())


def _difference(model: PreTrainedModel, prompt: list[int], output: EngineOutput) -> float:
    """The largest difference between log-probabilities of the output and those of the library, in one pass."""
    tokens = torch.tensor(prompt + output.token_ids)
    with torch.inference_mode():
        expected = model(input_ids=tokens[None], use_cache=False).logits[0].log_softmax(-1)
    found = [*(output.prompt_logprobs or [None] * len(prompt)), *(output.logprobs or [])]
    differences = [
        abs(entry.logprobs[0] - float(expected[position - 1, entry.token_ids[0]]))
        for position, entry in enumerate(found)
        if entry is not None
    ]
    greedy = [float(expected[position].max()) for position in range(len(prompt) - 1, len(tokens) - 1)]
    chosen = [entry.logprobs[0] for entry in output.logprobs or []]
    return max(differences + [best - mine for best, mine in zip(greedy, chosen, strict=True)])
