"""transformers' Llama, greedy and one sequence: eager with a growing cache, or a static cache and
torch.compile on the decode step."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

from gpulab.cases import Decode


class Llama:
    """A loaded model; `prefill` and `decode` each start from an empty cache."""

    def __init__(self, folder: str, device: torch.device, d: Decode, compiled: bool) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self.model = model.to(device).eval()
        self.device, self.d, self.static = device, d, compiled
        make = torch.Generator().manual_seed(0)
        vocab = self.model.config.vocab_size
        self.ids = torch.randint(3, vocab, (1, d.prompt), generator=make).to(device)
        self.forward: Any = self.model.forward
        self.one: Any = self.model.forward
        if compiled:
            self.forward = torch.compile(self.model.forward, dynamic=False)
            mode = "reduce-overhead" if device.type == "cuda" else "default"
            self.one = torch.compile(self.model.forward, mode=mode, dynamic=False, fullgraph=True)
        self.kept: Any = None

    def _cache(self) -> Any:
        """An empty cache; the static one is made once, so that a compiled step keeps its place."""
        if not self.static:
            return DynamicCache(config=self.model.config)
        if self.kept is None:
            self.kept = StaticCache(config=self.model.config, max_cache_len=self.d.context)
        self.kept.reset()
        return self.kept

    def _run(self, forward: Any, ids: torch.Tensor, at: torch.Tensor, cache: Any) -> torch.Tensor:
        out = forward(
            input_ids=ids, position_ids=at[None], past_key_values=cache,
            use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        chosen: torch.Tensor = out.logits[:, -1].argmax(-1, keepdim=True)
        return chosen

    @torch.inference_mode()
    def prefill(self) -> None:
        """All tokens of the prompt at once."""
        at = torch.arange(self.d.prompt, device=self.device)
        int(self._run(self.forward, self.ids, at, self._cache()))

    @torch.inference_mode()
    def decode(self) -> None:
        """`gen` steps of one token from position 0; each token is read, as weft's is."""
        cache, token = self._cache(), self.ids[:, :1]
        for i in range(self.d.gen):
            at = torch.tensor([i], device=self.device)
            token = self._run(self.one, token.clone(), at, cache)
            int(token)
