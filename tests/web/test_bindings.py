"""Kernels for pages stay within WebGPU's default of eight storage buffers."""

import pytest
from rows import few

from weft import load
from weft.backends import wgsl
from weft.hub.box import box_folder
from weft.models.run.compiled_runner import CompiledRunner, model_caps
from weft.web.targets import WEBGPU


@pytest.mark.parametrize("scheme", few(["int4-zero", "q4_k"], "q4_k"))
def test_integer_products_keep_within_the_storage_buffers(scheme: str) -> None:
    model = load(box_folder(), device="cpu", quant=scheme, act_dtype="int8", max_batch=1)
    runner = model.runner()
    assert isinstance(runner, CompiledRunner)
    caps = model_caps(WEBGPU)
    for kind in ("prefill", "decode"):
        for kernel in runner.program(kind, WEBGPU).kernels:
            bindings = wgsl.plan(kernel, caps).bindings  # an error beyond
            storage = [b for b in bindings if b.writable is not None]
            assert len(storage) <= caps.max_bindings
