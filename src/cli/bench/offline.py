"""latency and throughput: the engine in this process, without a server."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...config.digest import digest
from ...config.exit_codes import EXIT_WRONG_COMMAND_LINE
from ...engine.api import SamplingParams
from ...offline.llm import LLM
from ..count_progress import count_progress
from ..prepare import read, resolve_here
from ..startup_view import StartupView
from .figures import Sample, figures, spread
from .measured import BenchError, Measurement
from .workload import Job, Shape, token_jobs


def measure_latency(
    files: Sequence[str],
    overrides: Sequence[str],
    view: StartupView,
    *,
    input_len: int,
    output_len: int,
    batch_size: int,
    num_iters: int,
    num_warmup: int,
    seed: int,
) -> Measurement:
    """One batch after another, each with new prompts."""
    shape = Shape(input_len, output_len)
    bench = _Bench(files, overrides, view, shape)
    with bench.llm:
        for number in range(num_warmup):
            bench.run(token_jobs(batch_size, shape, bench.vocab_size, seed, batch=-1 - number))
        samples: list[Sample] = []
        times: list[float] = []
        with count_progress("batches", num_iters) as show:
            for number in range(num_iters):
                found, seconds = bench.run(token_jobs(batch_size, shape, bench.vocab_size, seed, batch=number))
                samples += found
                times.append(seconds)
                show(len(times))
        return bench.measurement({**figures(samples, sum(times)), "batch_s": spread(times)})


def measure_throughput(
    files: Sequence[str],
    overrides: Sequence[str],
    view: StartupView,
    *,
    input_len: int,
    output_len: int,
    num_prompts: int,
    length_spread: float,
    prefix_len: int,
    num_warmup: int,
    seed: int,
) -> Measurement:
    """All prompts together; the engine runs as many as it can. Times include waiting."""
    shape = Shape(input_len, output_len, length_spread, prefix_len)
    bench = _Bench(files, overrides, view, shape)
    with bench.llm:
        if num_warmup:
            bench.run(token_jobs(num_warmup, shape, bench.vocab_size, seed, batch=-1))
        samples, seconds = bench.run(token_jobs(num_prompts, shape, bench.vocab_size, seed), show_progress=True)
        return bench.measurement(figures(samples, seconds))


class _Bench:
    """A loaded model that runs jobs."""

    def __init__(self, files: Sequence[str], overrides: Sequence[str], view: StartupView, shape: Shape) -> None:
        with view:
            deployment = read(files, overrides, view)
            resolved = resolve_here(deployment, view)
            if shape.longest > resolved.model.max_model_len:
                message = (
                    f"requests of up to {shape.longest} tokens do not fit into the context of "
                    f"{resolved.model.max_model_len}: lower --input-len or --output-len"
                )
                raise BenchError(message, EXIT_WRONG_COMMAND_LINE)
            if resolved.topology.num_served > 1:
                message = (
                    "this benchmark measures one replica: remove `data_parallel_size`, or use `engine bench serve`"
                )
                raise BenchError(message, EXIT_WRONG_COMMAND_LINE)
            view.begin("engine")
            self.llm = LLM.of(resolved)
        self.vocab_size = self.llm.info.vocab_size
        self._config_hash = digest(deployment)
        self._model = resolved.model.model

    def run(self, jobs: Sequence[Job], *, show_progress: bool = False) -> tuple[list[Sample], float]:
        prompts = [job.prompt for job in jobs]
        sampling = [
            SamplingParams(max_tokens=job.output_len, ignore_eos=True, temperature=0, detokenize=False) for job in jobs
        ]
        began = time.perf_counter()
        outputs = self.llm.generate(prompts, sampling, use_tqdm=show_progress)
        seconds = time.perf_counter() - began
        samples = [
            Sample(
                num_input=len(output.prompt_token_ids),
                num_output=len(output.outputs[0].token_ids),
                first_token_s=output.metrics.first_token_s or 0.0,
                end_s=output.metrics.finished_s or 0.0,
            )
            for output in outputs
        ]
        return samples, seconds

    def measurement(self, results: dict[str, object]) -> Measurement:
        info = self.llm.info
        engine = {
            "device": info.device,
            "dtype": info.dtype,
            "weights_bytes": info.weights_bytes,
            "kv_cache_bytes": info.kv_cache_bytes,
            "max_num_seqs": info.max_num_seqs,
            "max_num_batched_tokens": info.max_num_batched_tokens,
            "kernels": info.kernels,
        }
        return Measurement(
            model=self._model, results=results, config_hash=self._config_hash, details={"engine": engine}
        )
