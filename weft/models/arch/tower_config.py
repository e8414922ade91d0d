"""Vision towers as plain data: every family as one set of choices. Sizes are in elements."""

from __future__ import annotations

from typing import Literal

from weft.core.dtypes import DType, float32
from weft.core.packed import Form
from weft.core.records import dataclass

TowerActivation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu", "relu"]
Projects = Literal[
    "",  # nothing: the tower's vectors
    "mlp",  # two layers (LLaVA)
    "normed",  # a norm, two layers (ViP-LLaVA)
    "mean",  # means of blocks, a norm, one matrix (Gemma 3)
    "averaged",  # means of blocks, two layers (Phi-4)
    "pooled",  # means of blocks, a norm without weights, one matrix (Gemma 4)
    "bare",  # a norm without weights, one matrix (Gemma 4 without a tower)
    "blocks",  # blocks side by side, one matrix (Idefics 3)
    "normed blocks",  # blocks, a norm, two layers (InternVL)
    "merger",  # a norm, blocks, two layers (Qwen-VL)
    "patch merger",  # a norm, blocks through a matrix, two layers (Mistral 3)
    "head",  # a vector per picture (CLIP, SigLIP)
]


@dataclass(frozen=True)
class Projector:
    """The layers that turn a tower's vectors into the text model's, `width` wide. `block`
    neighbours along each side become one; `columns` are the patches of a side where it is fixed.
    `deep` are the layers after which mergers of their own take vectors (Qwen3-VL)."""

    kind: Projects = ""
    width: int = 0
    block: int = 1
    act: TowerActivation = "gelu"
    eps: float = 1e-5
    bias: bool = True
    rms: bool = False
    deep: tuple[int, ...] = ()
    hidden: int = 0  # of a head with attention (SigLIP's)
    newline: bool = False  # a vector ends each line of tiles (LLaVA-NeXT)
    most_tiles: int = 0  # a grid of more is resampled (LLaVA-OneVision); 0: any
    standard: bool = False  # pooled vectors are standardised


@dataclass(frozen=True)
class TowerConfig:
    """A vision tower: patches, layers of attention over all of them, norms before each part."""

    family: str
    hidden: int
    layers: int
    heads: int
    ffn: int
    patch: int
    image: int  # pixels of a side, where the table of positions fixes it; 0: any
    channels: int = 3
    frames: int = 1  # a patch is repeated so often in time (Qwen-VL)
    norm: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    act: TowerActivation = "gelu"
    gated: bool = False
    fused_qkv: bool = False
    leads: int = 0  # vectors before the patches: the class, registers
    class_position: bool = True  # the class has a row in the table of positions
    table: int = 0  # rows of a side of the table of positions; 0: none
    masked: bool = False  # a tile may be filled in part, and the table is spread over that (Phi-4)
    axes: int = 0  # rows of two tables that are added, by column and by row (Gemma 4)
    patch_bias: bool = True
    patch_norms: bool = False  # of a patch's pixels and of its vector (Gemma 4 without a tower)
    qkv_bias: bool = True
    key_bias: bool = True  # keys too, where queries have one
    out_bias: bool = True
    mlp_bias: bool = True
    qk_norm: Literal["", "whole", "head"] = ""  # of queries and keys
    v_norm: bool = False  # of each head's values, without weights
    scale: float = 0.0  # of attention; 0: 1 / sqrt(head_dim)
    post_norms: bool = False  # after each part of a layer too
    clips: bool = False  # inputs and outputs of linear layers are clipped
    first_norm: bool = False  # before the layers
    last_norm: bool = False  # after them
    layer_scale: bool = False
    ropes: bool = False  # a rope that turns by row and column
    theta: float = 10000.0
    centred: bool = False  # it counts from the middle, in halves of the picture (DINOv3)
    alternating: bool = False  # its frequencies take turns between rows and columns (Pixtral)
    window: int = 0  # patches of a side of a window, in most layers (Qwen2.5-VL)
    full: tuple[int, ...] = ()  # layers that see everything, if others have a window
    text: bool = False  # a tower of text: rows are the embeddings of tokens already
    causal: bool = False  # a row sees none after it
    taken: tuple[int, ...] = ()  # layers after which vectors are taken, side by side; (): the last
    keeps_leads: bool = False  # they go to the projector too
    projector: Projector = Projector()
    act_dtype: DType = float32
    forms: tuple[tuple[str, Form], ...] = ()  # towers are not packed

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def placed(self) -> bool:
        """True if a table says the patches' places."""
        return bool(self.table or self.axes)

    @property
    def matrix(self) -> str:
        """The role of a matrix, whose dtype all have. A tower of text has no patches, and one of
        patches alone no layers."""
        return "0.o.w" if self.layers else "patch.w"

    @property
    def depth(self) -> int:
        """The number of layers that are computed."""
        return max(self.taken) if self.taken else self.layers

    @property
    def row(self) -> int:
        """The numbers of a patch."""
        if self.text:
            return self.hidden
        return self.channels * self.frames * self.patch * self.patch

    @property
    def across(self) -> int:
        """The patches of a side, where it is fixed."""
        return self.image // self.patch

    @property
    def deep(self) -> int:
        """The mergers other than the last one."""
        return len(self.projector.deep)
