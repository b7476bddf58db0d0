#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Did a change leave the kernels' machine code as it was? Compares what two builds of the tool make of the same layers.

    scripts/compare_machine_code.py BEFORE AFTER [--spec TEXT]... [--arch LIST] [--list] [--keep DIR]

BEFORE and AFTER are the tool (build/normjit) before and after the change, or cache directories that it has filled.
Each tool prebuilds the same layers for the same architectures into a cache of its own: 13 layers, 4 architectures and
all plans that the planner chooses, about 340 kernels; needs NVRTC and no GPU. Compared is, kernel by kernel, the
section with the instructions; names of kernels, debug information and the place of sections do not count. A kernel is

    same        byte for byte
    parameters  the same instructions in the same order, which read their parameters at other offsets
    other       anything else; listed with the number of instructions before and after
    missing     on one side only: the planner chooses another plan, or has another spec

Exit code: 0 when all are the same or differ in the offsets of parameters only, else 1.
"""
import argparse
import collections
import pathlib
import struct
import subprocess
import sys
import tempfile

LAYERS = [
    "layernorm/cols=64/f32/wb/gelu",
    "layernorm/cols=39/bf16/wb",
    "layernorm/cols=1023/f16/wb",
    "layernorm/cols=1024/bf16/wb/stats",
    "layernorm/cols=4096/bf16/wb",
    "layernorm/cols=4096/bf16/w=f32/wb/gelu_tanh",
    "layernorm/cols=768/f32/out=f16/w/silu/scale=0.5",
    "layernorm/cols=8192/f32/wb",
    "layernorm/cols=2085/f64/wb",
    "layernorm/cols=4097/f16/wb/relu",
    "layernorm/cols=65536/f32/wb",
    "layernorm/cols=50257/bf16",
    "layernorm/cols=4194304/f32/wb/stats",
]
ARCHITECTURES = "sm_75,sm_80,sm_90,sm_120"

# What 0.1 called the words of a plan.
FORMERLY = {
    "packed_rows": "warp_rows", "tiled_rows": "staged_rows", "resident_row": "block_row",
    "streamed_row": "persistent_row", "two_reads": "split_row", "lanes": "threads_per_row",
    "slices": "blocks_per_row", "shifted": "unaligned",
}


def plan_of(text):
    words = (word.partition("=") for word in text.split())
    return " ".join(FORMERLY.get(key, key) + equals + value for key, equals, value in words)


def read_entry(path):
    """The facts of a cache entry and its body."""
    data = path.read_bytes()
    header, _, body = data.partition(b"\n\n")
    lines = (line.partition(": ") for line in header.decode().splitlines()[1:])
    return {key: value for key, _, value in lines}, body


def instructions(elf):
    """The one .text section of a cubin: 16 bytes an instruction."""
    offset, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, offset + i * size) for i in range(count)]
    table = sections[names][4]

    def name(section):
        begin = table + section[0]
        return elf[begin:elf.index(b"\0", begin)].decode()

    found = [section for section in sections if name(section).startswith(".text.")]
    if not found:
        raise ValueError("a cubin without code")
    # A call that is not inlined has a section of its own on some compilers; then they count together.
    return b"".join(elf[section[4]:section[4] + section[5]] for section in found)


def without_parameter_offsets(code):
    """The instructions with the offset of an operand in constant bank 0 set to zero (bits 40 to 53 of sm_70 and later;
    the bank in bits 54 to 58)."""
    out = bytearray(code)
    for at in range(0, len(code) - 15, 16):
        low, = struct.unpack_from("<Q", code, at)
        form = (low >> 9) & 7  # 5: the constant stands in the place of the third operand, 3: of the second
        load = low & 0xFFF in (0xB82, 0x7AC, 0xAB9, 0x9C3)  # LDC, LDCU, ULDC and such
        if form in (3, 5, 6) or load:
            bank = (low >> 54) & 31
            if bank == 0:
                low &= ~(0x3FFF << 40)
                struct.pack_into("<Q", out, at, low)
    return bytes(out)


def kernels_of(source, specs, archs, keep):
    """{(spec, plan, arch): code} of a cache directory, or of what a tool makes."""
    source = pathlib.Path(source)
    if not source.is_dir():
        made = pathlib.Path(keep)
        command = [str(source), "prebuild", *specs, "--arch", archs, "--cache-dir", str(made), "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit("{} failed:\n{}".format(" ".join(command), done.stderr[-2000:]))
        source = made
    kernels = {}
    for path in sorted(source.glob("*.njk")):
        facts, body = read_entry(path)
        if facts.get("code") == "cubin":
            kernels[facts["spec"], plan_of(facts["plan"]), facts["arch"]] = instructions(body)
    return kernels


def compare(before, after):
    verdicts = {}
    for key in sorted(before.keys() | after.keys()):
        a, b = before.get(key), after.get(key)
        if a is None or b is None:
            verdicts[key] = "missing", "only {}".format("after" if a is None else "before")
        elif a == b:
            verdicts[key] = "same", ""
        elif without_parameter_offsets(a) == without_parameter_offsets(b):
            verdicts[key] = "parameters", ""
        else:
            verdicts[key] = "other", "{} -> {} instructions".format(len(a) // 16, len(b) // 16)
    return verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", help="the tool before the change, or a cache directory")
    parser.add_argument("after", help="the tool after it, or a cache directory")
    parser.add_argument("--spec", action="append", help="a layer instead of the 13; may be given again")
    parser.add_argument("--arch", default=ARCHITECTURES, help="architectures (%(default)s)")
    parser.add_argument("--list", action="store_true", help="list all kernels, not only those that are other or missing")
    parser.add_argument("--keep", help="a directory that keeps both caches, as before/ and after/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(options.keep or scratch)
        specs = options.spec or LAYERS
        sides = [kernels_of(side, specs, options.arch, root / name)
                 for side, name in ((options.before, "before"), (options.after, "after"))]
    if not sides[0] or not sides[1]:
        sys.exit("nothing to compare: one side has no kernel")
    verdicts = compare(*sides)
    for (spec, plan, arch), (verdict, detail) in verdicts.items():
        if options.list or verdict in ("other", "missing"):
            print("{:<10}  {:<7}  {}  {}  {}".format(verdict, arch, spec, plan, detail))
    counts = collections.Counter(verdict for verdict, _ in verdicts.values())
    print("{} kernels: {}".format(len(verdicts), ", ".join(
        "{} {}".format(counts[name], name) for name in ("same", "parameters", "other", "missing"))))
    return 1 if counts["other"] or counts["missing"] else 0


if __name__ == "__main__":
    sys.exit(main())
