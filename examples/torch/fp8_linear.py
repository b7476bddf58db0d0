#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MLP blocks in bf16, and the same with the product behind each norm in e4m3: sum, RMSNorm and quantization are one kernel, in
front of torch._scaled_mm.

    python3 examples/torch/fp8_linear.py

Once with a scale for the tensor, which calibration finds, and once with a scale for each row, which the kernel finds. Prints how
far the outputs are from those in bf16, and the time of each in a CUDA graph. Exits with 77 without PyTorch or a GPU of compute
capability 8.9 or more, and with 1 where outputs are too far off.
"""
import statistics
import sys

from side_by_side import needs_gpu

torch = needs_gpu()
from normjit.torch import add_rms_norm, add_rms_norm_quant, norm  # noqa: E402

F = torch.nn.functional
WIDTH, INNER, BLOCKS, TOKENS = 2048, 5632, 4, 4096
EPS, LARGEST, ALLOWED = 1e-5, 448.0, 5e-2


class Block:
    """What comes out of the block in front, and the sum of all that did before -> the same of this one."""

    def __init__(self, width, inner, device):
        def matrix(rows, columns):
            return (torch.randn(rows, columns, device=device) * columns ** -0.5).bfloat16()
        self.norm_weight = (1 + 0.1 * torch.randn(width, device=device)).bfloat16()
        self.up, self.down = matrix(2 * inner, width), matrix(width, inner)

    def __call__(self, x, residual):
        y, s = add_rms_norm(x, residual, self.norm_weight, EPS)
        return self.behind(F.linear(y, self.up)), s

    def behind(self, product):
        gate, up = product.chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.down)


class BlockIn8Bits:
    """The same. scale: of the tensor; without it each row has its own, and so has each output of the matrix."""

    def __init__(self, block, scale=None):
        self.block, self.scale = block, scale
        self.up, self.up_scale = in_8_bits(block.up, by_row=scale is None)

    def __call__(self, x, residual):
        if self.scale is None:
            y, s, scales = add_rms_norm_quant(x, residual, self.block.norm_weight, EPS)
            scales = scales[:, None]
        else:
            y, s = add_rms_norm_quant(x, residual, self.block.norm_weight, EPS, scale=self.scale)
            scales = self.scale
        product = torch._scaled_mm(y, self.up.t(), scale_a=scales, scale_b=self.up_scale, out_dtype=torch.bfloat16,
                                   use_fast_accum=True)
        return self.block.behind(product), s


def in_8_bits(matrix, by_row):
    """A matrix in e4m3, and what it was divided by: [1, rows], or one number."""
    largest = matrix.float().abs().amax(1, keepdim=True) if by_row else matrix.float().abs().amax().reshape(1)
    scale = largest / LARGEST
    divided = (matrix.float() / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return divided, scale.reshape(1, -1) if by_row else scale


def run(blocks, x, residual):
    for block in blocks:
        x, residual = block(x, residual)
    return x + residual


def calibrated(blocks, x, residual):
    """A scale for the norm of each block: its largest magnitude becomes the largest number of e4m3."""
    spec, scales = "rmsnorm/cols={}/bf16/eps={}/add/sum/w/amax".format(x.shape[1], EPS), []
    for block in blocks:
        largest = norm(spec, x, residual=residual, weight=block.norm_weight).amax
        scales.append(largest.reshape(1) / LARGEST)
        x, residual = block(x, residual)
    return scales


def microseconds(blocks, x, residual, repeats=30):
    """The median of replays of a graph of all blocks."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # outside of the capture: kernels are compiled and loaded
            run(blocks, x, residual)
    torch.cuda.current_stream().wait_stream(side)
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        kept = run(blocks, x, residual)
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    del kept
    return statistics.median(times)


def models(blocks, x, residual):
    """Blocks by name; the inputs are for the calibration."""
    scales = calibrated(blocks, x, residual)
    return {"bf16": blocks, "e4m3, a scale for the tensor": [BlockIn8Bits(*pair) for pair in zip(blocks, scales)],
            "e4m3, a scale for each row": [BlockIn8Bits(block) for block in blocks]}


def compare(device, time, sizes=(WIDTH, INNER, BLOCKS, TOKENS)):
    """Prints the table; whether all outputs are near those in bf16. time: a function like microseconds()."""
    width, inner, count, tokens = sizes
    torch.manual_seed(1)
    blocks = [Block(width, inner, device) for _ in range(count)]
    first, second = ([torch.randn(tokens, width, device=device).bfloat16() for _ in range(2)] for _ in range(2))
    near = True
    print("{} blocks of {} x {} on {} tokens".format(count, width, inner, tokens))
    with torch.no_grad():
        named = models(blocks, *first)
        wanted = run(blocks, *second).float()
        for name, model in named.items():
            off = ((run(model, *second).float() - wanted).norm() / wanted.norm()).item()
            print("  {:<30}{:9.1f} us   output differs by {:.2%}".format(name, time(model, *second), off))
            near = near and off <= ALLOWED
    if not near:
        print("which is more than {:.0%}".format(ALLOWED))
    return near


if __name__ == "__main__":
    if torch.version.hip is not None or torch.cuda.get_device_capability() < (8, 9):
        print("Skipped: products in e4m3 need an NVIDIA GPU of compute capability 8.9 or more")
        sys.exit(77)
    sys.exit(0 if compare("cuda", microseconds) else 1)
