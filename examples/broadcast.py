#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One process compiles for all: a pack that rank 0 broadcasts, and that every rank adds as a layer.

    python3 examples/broadcast.py build/normjit                                     # starts two ranks by itself
    torchrun --nproc-per-node 2 examples/broadcast.py build/normjit

The argument is the tool; without it the one in PATH is taken. No GPU is needed: the ranks say where they would find their
kernels. Exits with 77 without PyTorch, the tool, or a compiler.
"""
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import normjit  # noqa: E402
from normjit import _library  # noqa: E402

SPEC, ARCH = "layernorm/cols=4096/bf16/wb", "sm_90"
RANKS = 2
SKIPPED = 77
NO_COMPILER = 3  # exit status of the tool


def skip(why):
    print("Skipped: " + why)
    sys.exit(SKIPPED)


def make_pack(tool, folder):
    """The bytes of a pack with the kernels of SPEC, and its signature where there is a key; None without a compiler."""
    path = os.path.join(folder, "kernels.njp")
    key = os.environ.get("NORMJIT_SIGN_KEY")
    environment = {**os.environ, "NORMJIT_CACHE_DIR": os.path.join(folder, "cache"), "NORMJIT_MODE": "eager"}
    for command in ["prebuild"], ["export", path, *(["--sign"] if key else [])]:
        done = subprocess.run([tool, *command, SPEC, "--arch", ARCH], env=environment, capture_output=True, text=True)
        if done.returncode == NO_COMPILER:
            return None
        if done.returncode != 0:
            sys.exit(done.stderr)
    with open(path, "rb") as file:
        pack = file.read()
    if not key:
        return pack, None
    with open(path + ".minisig") as file:
        return pack, file.read()


def look():
    """How many kernels of SPEC this process does not find; and where it finds the others."""
    report = json.loads(_library.text_of("normjit_why", _library.service(), ctypes.byref(_library.parse_spec(SPEC)),
                                         ARCH.encode()))
    return report["missing"], sorted({kernel["tier"] for kernel in report["kernels"] if kernel["tier"]})


def run(rank, tool):
    """One rank. Its cache is empty, and it works from caches only, so it compiles nothing."""
    import torch.distributed as dist
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(NORMJIT_CACHE_DIR=os.path.join(folder, "rank"), NORMJIT_MODE="cached-only")
        dist.init_process_group("gloo")
        box = [make_pack(tool, folder) if rank == 0 else None]
        dist.broadcast_object_list(box, src=0)
        if box[0] is None:
            dist.destroy_process_group()
            skip("no compiler here")
        before, _ = look()
        normjit.add_layer(*box[0])
        after, tiers = look()
        print("rank {}: {} bytes; {} kernels missing before, {} after; found in {}".format(
            rank, len(box[0][0]), before, after, ", ".join(tiers)), flush=True)
        dist.barrier()
        dist.destroy_process_group()
        if before == 0 or after != 0:
            sys.exit("rank {}: the layer does not serve".format(rank))


def start(rank, tool, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS))
    run(rank, tool)


def main():
    tool = sys.argv[1] if len(sys.argv) > 1 else shutil.which("normjit")
    if not tool:
        skip("no normjit in PATH")
    try:
        import torch.distributed
        import torch.multiprocessing as mp
    except ImportError:
        skip("no PyTorch here")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        skip("this PyTorch has no gloo")
    if "RANK" in os.environ:
        run(int(os.environ["RANK"]), tool)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        mp.spawn(start, (tool, port), nprocs=RANKS)
    except mp.ProcessExitedException as ended:
        sys.exit(ended.exit_code)


if __name__ == "__main__":
    main()
