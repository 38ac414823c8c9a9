"""What is compiled for a GPU and a TPU that are not present: memory, and the kernel engines."""

import pytest

from agentic_bpt.blockwise.core import CoreConfig
from tests.blockwise.absent_device import compiled_for, why_not

needs_gpu_target = pytest.mark.skipif(bool(why_not("h100-80gb")), reason=str(why_not("h100-80gb")))
needs_tpu_target = pytest.mark.skipif(bool(why_not("tpu-v5e")), reason=str(why_not("tpu-v5e")))


@needs_gpu_target
def test_temporaries_on_an_h100_stay_within_14_sequences():
    """The floor is 2 K + 3 = 9 sequences; copies of loop carries come on top."""
    config = CoreConfig(layers=3, width=128, engine="portable")
    found = compiled_for("h100-80gb", config, batch=1, positions=16_384)["bytes"]
    assert found["temporaries"] <= 14 * 16_384 * config.width * 4


@needs_tpu_target
def test_a_tpu_holds_one_copy_of_what_is_saved():
    """Two copies, laid out for two products, made it 14 sequences."""
    config = CoreConfig(layers=3, width=128, engine="portable")
    found = compiled_for("tpu-v5e", config, batch=1, positions=64_000)["bytes"]
    assert found["temporaries"] <= 10 * 64_000 * config.width * 4


@needs_gpu_target
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(2, 1, 64), (1, 1, 128), (4, 2, 256)])
@pytest.mark.parametrize("scheme", ["memory_efficient", "blockwise"])
def test_cudnn_compiles_for_an_h100(scheme, heads, kv_heads, width):
    shape = {"layers": 2, "width": width, "heads": heads, "kv_heads": kv_heads}
    config = CoreConfig(**shape, scheme=scheme, dtype="bfloat16", engine="cudnn")
    text = compiled_for("h100-80gb", config, batch=2, positions=1_000)["text"]
    assert "__cudnn$fmhaSoftmaxBackward" in text


@needs_tpu_target
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(2, 1, 64), (1, 1, 128), (4, 2, 1024)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_splash_compiles_for_a_tpu_v5e(dtype, heads, kv_heads, width):
    shape = {"layers": 2, "width": width, "heads": heads, "kv_heads": kv_heads}
    config = CoreConfig(**shape, dtype=dtype, engine="splash")
    text = compiled_for("tpu-v5e", config, batch=2, positions=1_000)["text"]
    assert "tpu_custom_call" in text
