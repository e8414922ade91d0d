"""PyTorch's ATen operators as functions of weft's tensors: TABLE, filled by the other files
here."""

from weft.core.text import markdown
from weft.importers.aten import (  # noqa: F401  (importing fills the table)
    activations,
    arithmetic,
    counting,
    creation,
    derivatives,
    images,
    indexing,
    layers,
    movement,
    products,
    reductions,
    symbols,
)
from weft.importers.aten.table import TABLE, AtenRule, entry

__all__ = ["TABLE", "AtenRule", "entry", "listed"]


def listed() -> str:
    """The operators as docs/torch.md has them: a Markdown table by kind, overloads in brackets."""
    rows = []
    for kind in (arithmetic, activations, reductions, products, layers, images, movement, indexing,
                 counting, creation, derivatives):  # fmt: skip
        names: dict[str, list[str]] = {}
        for full, found in TABLE.items():
            if found.run.__module__ == kind.__name__ and full.startswith("aten."):
                _, name, overload = full.split(".")
                names.setdefault(name, []).append(overload)
        texts = (
            f"`{name}`" if overloads == ["default"] else f"`{name}` ({', '.join(overloads)})"
            for name, overloads in sorted(names.items())
        )
        rows.append([kind.__name__.rpartition(".")[2], ", ".join(texts)])
    return markdown(["kind", "operators"], rows)
