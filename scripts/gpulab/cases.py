"""The measured cases, by the names of the peers' scripts; needs neither weft nor PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

ITEM = {"f32": 4, "bf16": 2}


@dataclass(frozen=True)
class Case:
    """One benchmark. `work` counts FLOPs ("gflops"; of attention's full square "gflops_full") or
    bytes read once and written once ("gbs"). `op` and `shape` say what to compute, `part` when."""

    name: str
    part: str
    op: str
    dtype: str
    shape: tuple[int, ...]
    unit: str = ""
    work: float = 0.0

    @property
    def operands(self) -> list[tuple[int, ...]]:
        """The shapes that an operation takes."""
        whole, row = self.shape, self.shape[1:]
        found = {"matmul": [whole] * 2, "chain": [whole] * 2, "attention": [whole] * 3,
                 "layernorm": [whole, row, row]}  # fmt: skip
        return found.get(self.op, [whole])


def matmul(n: int, dtype: str) -> Case:
    """n x n times n x n."""
    name = f"matmul_{n}" if dtype == "f32" else f"matmul_{dtype}_{n}"
    return Case(name, "matmul", "matmul", dtype, (n, n), "gflops", 2.0 * n**3)


def rows(op: str, r: int, c: int) -> Case:
    """An operation on r x c float32; "chain" reads two arrays and writes one."""
    arrays = 3 if op == "chain" else 2
    millions = round(r * c / 2**20)
    name = f"{op}_{millions}m" if op.startswith("gelu") and millions else f"{op}_{r}x{c}"
    return Case(name, "rows", op, "f32", (r, c), "gbs", 4.0 * arrays * r * c)


def attention(h: int, t: int, d: int, dtype: str) -> Case:
    """Causal self-attention, forward, one sequence of t positions and h heads of width d."""
    kind = "" if dtype == "f32" else f"{dtype}_"
    name = f"attn_causal_{kind}1x{h}x{t}x{d}"
    shape = (1, h, t, d)
    return Case(name, "attention", "attention", dtype, shape, "gflops_full", 4.0 * h * t * t * d)


ROWS = ("softmax", "layernorm", "gelu_erf", "gelu_tanh", "chain")


def ops(quick: bool = False) -> list[Case]:
    """Single operations; `quick` are small ones for a rehearsal."""
    sizes = (128, 256) if quick else (512, 1024, 2048, 4096, 8192)
    found = [matmul(n, dtype) for dtype in ("f32", "bf16") for n in sizes]
    for r, c in ((512, 768),) if quick else ((4096, 4096), (8192, 8192)):
        found += [rows(op, r, c) for op in ROWS]
    if quick:
        return found + [attention(2, 256, d, "bf16") for d in (64, 128)]
    found += [attention(16, 4096, d, "bf16") for d in (64, 128)]
    return [*found, attention(12, 1024, 64, "f32")]


# -- models ---------------------------------------------------------------------------------------

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 8192, "vocab_size": 32000, "tie_word_embeddings": True,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "hidden_act": "silu", "dtype": "bfloat16", "torch_dtype": "bfloat16",
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SMALL = LLAMA | {
    "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 256, "vocab_size": 512,
}  # fmt: skip


@dataclass(frozen=True)
class Decode:
    """A decoder: its config, the prompt of a prefill and the tokens of a decode, both measured from
    position 0 in one sequence."""

    name: str
    config: dict[str, object]
    prompt: int
    gen: int

    @property
    def context(self) -> int:
        return self.prompt + self.gen


def decoder(quick: bool = False) -> Decode:
    """The llama-1b shape of the peers; `quick` a tiny one."""
    return Decode("llama-tiny", SMALL, 64, 16) if quick else Decode("llama-1b", LLAMA, 2048, 64)


@dataclass(frozen=True)
class Train:
    """The GPT whose training step is measured: the fields of weft.conform.gpt.GptSizes."""

    name: str
    layers: int
    width: int
    heads: int
    context: int
    batch: int
    vocab: int
    soak: int  # steps over which memory must not grow

    @property
    def tokens(self) -> int:
        return self.batch * self.context


def trainee(quick: bool = False) -> Train:
    """GPT-2 124M's shape; `quick` a tiny one."""
    if quick:
        return Train("gpt-tiny", 2, 64, 2, 32, 2, 128, 60)
    return Train("gpt2-124m", 12, 768, 12, 1024, 8, 50257, 1000)


def model_cases(quick: bool = False) -> list[Case]:
    """Prefill and decode of the decoder, from position 0."""
    d = decoder(quick)
    return [
        Case(f"{d.name}_pp{d.prompt}", "model", "prefill", "bf16", (d.prompt,)),
        Case(f"{d.name}_tg{d.gen}", "model", "decode", "bf16", (d.gen,)),
    ]


def train_cases(quick: bool = False) -> list[Case]:
    """The training step, bf16 products and float32 weights."""
    t = trainee(quick)
    return [Case(f"{t.name}_train_bf16", "train", "train", "bf16", (t.batch, t.context))]


def every(quick: bool = False) -> dict[str, Case]:
    """All cases by name."""
    return {c.name: c for c in (*ops(quick), *model_cases(quick), *train_cases(quick))}
