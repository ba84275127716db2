"""sentence-transformers on torch, and the same model in ONNX Runtime and OpenVINO, with its batches sorted by length.

ONNX Runtime and OpenVINO compute the body; tokenising, the mean and the norm are numpy's here, as their users write it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer, __version__
from tokenizers import Tokenizer

BATCH = 32


class Engine:
    def __init__(
        self, folder: str, *, cores: int, cache: str, backend: str, dtype: str | None = None, quantised: bool = False
    ) -> None:
        torch.set_num_threads(cores)
        kwargs = {} if dtype is None else {"model_kwargs": {"torch_dtype": getattr(torch, dtype)}}
        self.model = SentenceTransformer(folder, device="cpu", **kwargs)
        self.version = f"sentence-transformers {__version__}"
        self._run: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
        if backend == "torch":
            return
        self._tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self._tokenizer.no_padding()  # its own padding would fill texts up to 128 tokens
        self._tokenizer.enable_truncation(self.model.max_seq_length)
        path = Path(cache) / f"{Path(folder).name}-{'int8' if quantised else 'float32'}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._export(path, quantised)
        self._run = (_onnx if backend == "onnx" else _openvino)(path, cores)
        self.version = backend

    def embed(self, texts: list[str]) -> Sequence[Any]:
        if self._run is None:
            return self.model.encode(texts, batch_size=BATCH, show_progress_bar=False)
        encoded = self._tokenizer.encode_batch(texts)
        order = sorted(range(len(texts)), key=lambda place: len(encoded[place].ids))
        found: list[Any] = [None] * len(texts)
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            width = max(len(encoded[place].ids) for place in places)
            ids, mask = np.zeros((len(places), width), np.int64), np.zeros((len(places), width), np.int64)
            for row, place in enumerate(places):
                own = encoded[place].ids
                ids[row, : len(own)], mask[row, : len(own)] = own, 1
            hidden = self._run(ids, mask)
            pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
            for row, place in enumerate(places):
                found[place] = pooled[row]
        return found

    def _export(self, path: Path, quantised: bool) -> None:
        if path.exists():
            return
        body = self.model[0].auto_model.eval()
        ids = torch.ones(2, 8, dtype=torch.int64)
        plain = path if not quantised else path.with_name(path.name.replace("int8", "float32"))
        if not plain.exists():
            axes = {name: {0: "batch", 1: "length"} for name in ("input_ids", "attention_mask", "last_hidden_state")}
            names = ["input_ids", "attention_mask"]
            torch.onnx.export(
                _Body(body),
                (ids, ids),
                str(plain),
                input_names=names,
                output_names=["last_hidden_state"],
                dynamic_axes=axes,
                dynamo=False,
            )
        if quantised:
            from onnxruntime.quantization import QuantType, quantize_dynamic

            quantize_dynamic(str(plain), str(path), weight_type=QuantType.QInt8, per_channel=True)


class _Body(torch.nn.Module):
    def __init__(self, body: torch.nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def _onnx(path: Path, cores: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda ids, mask: session.run(None, {"input_ids": ids, "attention_mask": mask})[0]


def _openvino(path: Path, cores: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    import openvino

    compiled = openvino.compile_model(str(path), "CPU", {"INFERENCE_NUM_THREADS": cores, "PERFORMANCE_HINT": "LATENCY"})
    return lambda ids, mask: compiled({"input_ids": ids, "attention_mask": mask})[0]
