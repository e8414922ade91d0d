"""Kernels for pages stay within WebGPU's default of eight bindings, that of scalars included."""

import pytest
from rows import few

from weft import load
from weft.backends import wgsl
from weft.hub.box import box_folder
from weft.models.run.compiled_runner import CompiledRunner, model_caps
from weft.web.targets import WEBGPU


@pytest.mark.parametrize("scheme", few(["int4-zero", "q4_k"], "q4_k"))
def test_integer_products_leave_a_binding_to_the_scalars(scheme: str) -> None:
    model = load(box_folder(), device="cpu", quant=scheme, act_dtype="int8", max_batch=1)
    runner = model.runner()
    assert isinstance(runner, CompiledRunner)
    caps = model_caps(WEBGPU)
    for kind in ("prefill", "decode"):
        for kernel in runner.program(kind, WEBGPU).kernels:
            assert len(wgsl.plan(kernel, caps).bindings) <= caps.max_bindings  # raises beyond
