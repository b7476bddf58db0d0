# SPDX-License-Identifier: Apache-2.0
"""Where a norm with what stands around it, in one kernel of normjit, is faster than what Inductor makes of all. Written by
scripts/bench_fusion.py --write (NVIDIA H200)."""

# (norm, type of x): ranges of columns, both ends included. "layernorm" is of add + norm, "layernorm modulated" of
# norm * (1 + scale) + shift, and "layernorm gated" of that behind x * gate + residual.
FASTER: dict[tuple[str, str], tuple[tuple[int, int], ...]] = {
    ("layernorm", "bf16"): ((1152, 8192),),
    ("layernorm", "f16"): ((1152, 8192),),
    ("layernorm", "f32"): ((1152, 1536), (5120, 8192),),
    ("layernorm gated", "bf16"): ((1152, 3072), (5120, 8192),),
    ("layernorm gated", "f16"): ((1152, 3072), (5120, 8192),),
    ("layernorm gated", "f32"): ((768, 5120),),
    ("layernorm modulated", "bf16"): ((1152, 5120),),
    ("layernorm modulated", "f16"): ((1152, 3072), (5120, 5120),),
    ("layernorm modulated", "f32"): ((1152, 1536), (3072, 4096),),
    ("rmsnorm", "bf16"): ((1152, 1536), (5120, 5120),),
    ("rmsnorm", "f16"): ((1152, 1536), (5120, 5120),),
    ("rmsnorm", "f32"): ((5120, 5120),),
    ("rmsnorm gated", "bf16"): ((1152, 5120),),
    ("rmsnorm gated", "f16"): ((1152, 3072), (5120, 5120),),
    ("rmsnorm gated", "f32"): ((768, 2048),),
    ("rmsnorm modulated", "bf16"): ((1152, 5120),),
    ("rmsnorm modulated", "f16"): ((1152, 2048),),
    ("rmsnorm modulated", "f32"): ((1152, 1152),),
}
