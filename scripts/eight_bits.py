# SPDX-License-Identifier: Apache-2.0
"""Results of 8 and 4 bits in PyTorch: what a spec computes behind its norm (docs/algebra.md), and how far two such results
differ.

`spec` is what fields() of compare_with_pytorch.py makes of a text. Of the scales of blocks, e8m0 and e4m3 are bytes. So are
results of 4 bits: [rows, columns / 2] bytes of two, the even column in the lower half.
"""
import collections

import torch
import torch.nn.functional as F

TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "s8": torch.int8, "e2m1": torch.uint8}
ALSO = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "s8": 127.0, "e2m1": 6.0}
FORMATS, LAYOUTS = ("p2", "e8m0", "e4m3"), ("cols", "cols4", "sw")
PADDING = {"rows": (1, 1), "cols": (4, 1), "cols4": (4, 4), "sw": (128, 4)}  # of rows and blocks


def nearest(y, out):
    """To 8 or 4 bits; what is beyond their largest number becomes it."""
    if out == "e2m1":
        return in_pairs(nearest_of_e2m1(y))
    if out == "s8":
        return y.round().clamp(-128, 127).to(torch.int8)
    return y.clamp(-LARGEST[out], LARGEST[out]).to(TYPES[out])


def nearest_of_e2m1(y):
    """The 4 bits of each number, of 0, 0.5, 1, 1.5, 2, 3, 4, 6: halfway between two of them is the one of even bits."""
    magnitude, bits = y.abs(), torch.zeros_like(y, dtype=torch.uint8)
    for below, halfway in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)):
        bits += magnitude >= halfway if below % 2 else magnitude > halfway
    return torch.where(y.isnan(), 7, bits | y.signbit().to(torch.uint8) << 3)


def in_pairs(bits):
    return bits[..., ::2] | bits[..., 1::2] << 4


def out_of_pairs(pairs):
    return torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2)


def quantized(spec, y, given, of=None):
    """The outputs that follow from the result y, [rows, columns] in f32; `given` has the spec's other inputs. `of`: what scales
    are those of, where it is not y itself."""
    out, of, found = spec["out"], y if of is None else of, {}
    if spec["also"]:
        found["also"] = y.to(ALSO[spec["also"]])
    if spec["amax"]:
        found["amax"] = y.abs().amax()
    if spec["q"] == "tensor":
        y = y * (given["tensor_scale"] if spec["inverse"] else given["tensor_scale"].reciprocal())
    if spec["q"] == "row":
        largest = of.abs().amax(-1, keepdim=True)
        if spec["upper_bound"]:
            largest = torch.minimum(largest, given["upper_bound"])
        scale = (largest / LARGEST[out]).clamp(min=2.0 ** -23 if out == "s8" else 1 / (512 * LARGEST[out]))
        y = y * scale.reciprocal() if out == "s8" else y / scale
        found["row_scale"] = scale.squeeze(-1)
    if spec["q"] == "block":
        blocks, of = (part.view(len(y), -1, spec["block"]) for part in (y, of))
        scale, stored = block_scales(spec, of.abs().amax(-1), given)
        divides = spec["scale_format"] == "f32" and out != "s8"
        factor = scale.reciprocal()
        if spec["scale_format"] == "e4m3":
            factor = torch.where(scale == 0, 0.0, given["global_scale"] / scale)
        y = (blocks / scale[..., None] if divides else blocks * factor[..., None]).view(y.shape)
        found["block_scale"] = laid_out(spec, stored)
    found["y"] = nearest(y, out)
    return found


def block_scales(spec, largest, given):
    """What blocks are divided by, of e4m3 times global_scale, and how it is stored."""
    if spec["scale_format"] == "e4m3":
        stored = nearest(given["global_scale"] * (largest * (1 / LARGEST[spec["out"]])), "e4m3")
        return stored.float(), stored.view(torch.uint8)
    scale = largest.clamp(min=1e-10) / LARGEST[spec["out"]]
    if spec["scale_format"] == "f32":
        return scale, scale
    bits = (scale.view(torch.int32) + 0x7fffff) & 0x7f800000  # up to a power of two
    scale = bits.view(torch.float32)
    return scale, (bits >> 23).to(torch.uint8) if spec["scale_format"] == "e8m0" else scale


def padded(spec, rows):
    """(rows, blocks) with the padding of their scales."""
    sizes = zip((rows, spec["cols"] // spec["block"]), PADDING[spec["scale_layout"]])
    return tuple(-(-size // multiple) * multiple for size, multiple in sizes)


def scale_shape(spec, rows):
    rows, blocks = padded(spec, rows)
    return {"rows": (rows, blocks), "cols": (blocks, rows), "cols4": (blocks // 4, rows, 4),
            "sw": (rows // 128, blocks // 4, 512)}[spec["scale_layout"]]


def laid_out(spec, scales):
    """[rows, blocks] as the spec lays them out."""
    rows, blocks = padded(spec, len(scales))
    if scales.shape != (rows, blocks):
        scales = F.pad(scales, (0, blocks - scales.shape[1], 0, rows - scales.shape[0]))
    if spec["scale_layout"] == "cols":
        scales = scales.t()
    elif spec["scale_layout"] == "cols4":
        scales = scales.view(rows, -1, 4).transpose(0, 1)
    elif spec["scale_layout"] == "sw":
        scales = scales.view(-1, 4, 32, blocks // 4, 4).permute(0, 3, 2, 1, 4).reshape(-1, blocks // 4, 512)
    return scales.contiguous()


def by_rows(spec, stored, rows):
    """The inverse: [rows, blocks] of the scales of so many rows."""
    if spec["q"] == "row":
        return stored.reshape(rows, 1)
    count, blocks = padded(spec, rows)
    if spec["scale_layout"] == "cols":
        stored = stored.t()
    elif spec["scale_layout"] == "cols4":
        stored = stored.transpose(0, 1).reshape(count, blocks)
    elif spec["scale_layout"] == "sw":
        stored = stored.reshape(-1, blocks // 4, 32, 4, 4).permute(0, 3, 2, 1, 4).reshape(count, blocks)
    return stored[:rows, :spec["cols"] // spec["block"]]


# --- How far results differ

def codes(y):
    """Numbers as whole numbers that count their steps, NaN far away. In 4 bits there is none, and -0 is a step below 0."""
    if y.dtype == torch.uint8:
        bits = out_of_pairs(y).to(torch.int16)
        return torch.where(bits > 7, 7 - bits, bits)
    if y.dtype == torch.int8:
        return y.to(torch.int16)
    bits = y.contiguous().view(torch.uint8).to(torch.int16)
    magnitude = bits & 0x7f
    largest = 0x7e if y.dtype == torch.float8_e4m3fn else 0x7b
    magnitude = torch.where(magnitude > largest, 10000, magnitude)
    return torch.where(bits > 0x7f, -magnitude, magnitude)


def steps_of_scales(got, want):
    """Units of the last place; of bytes their difference."""
    if got.dtype != torch.uint8:
        got, want = (scales.contiguous().view(torch.int32) for scales in (got, want))
    return (got.to(torch.int64) - want.to(torch.int64)).abs()


# steps: the largest difference of y where scales agree. same: how many elements of y have the same bits. Likewise of scales.
Differences = collections.namedtuple("Differences", "steps same elements scale_steps same_scales scales within")


def differences(spec, got, want, rows, scale_ulps):
    """Of y and its scales, by name. Within: one step of y, in at most 1 % of the elements; so many ulps of a scale. A largest
    magnitude that was rounded the other way may move 1 % of the scales, or one of few, by a unit of bf16, or to the next power
    of two or number of e4m3; their elements are left out."""
    steps = (codes(got["y"]) - codes(want["y"])).abs()
    same, name, close = int((steps == 0).sum()), {"row": "row_scale", "block": "block_scale"}.get(spec["q"]), True
    scale_steps = torch.zeros(0)
    if name:
        scale_steps = steps_of_scales(*(by_rows(spec, side[name], rows) for side in (got, want)))
        form = spec["scale_format"] if spec["q"] == "block" else "f32"
        moved = scale_steps > (scale_ulps if form == "f32" else 0)
        most = {"f32": 1 << 17, "p2": 1 << 23, "e8m0": 1, "e4m3": 1}[form]
        close = int(scale_steps.max()) <= most and int(moved.sum()) <= max(1, moved.numel() // 100)
        steps = steps.view(rows, moved.shape[1], -1).masked_fill(moved[..., None], 0)
    worst = int(steps.max())
    within = close and worst <= 1 and int((steps > 0).sum()) <= max(1, steps.numel() // 100)
    return Differences(worst, same, steps.numel(), int(scale_steps.max()) if name else 0, int((scale_steps == 0).sum()),
                       scale_steps.numel(), within)
