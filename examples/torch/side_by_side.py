# SPDX-License-Identifier: Apache-2.0
"""Two models beside each other: the same outputs, and the time that each takes."""
import collections
import os
import statistics
import sys

# name: what it is. old, new: classes with one constructor. arguments: of it. make: a new input on the GPU.
Example = collections.namedtuple("Example", "name old new arguments make")


def needs_gpu():
    """PyTorch, or the end of the program."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
    try:
        import torch
    except ImportError:
        print("Skipped: no PyTorch here")
        sys.exit(77)
    if not torch.cuda.is_available():
        print("Skipped: no GPU for PyTorch here")
        sys.exit(77)
    return torch


def both(example):
    """Old and new with the same parameters, which are random."""
    import torch
    torch.manual_seed(1)
    old, new = (kind(*example.arguments).cuda().eval() for kind in (example.old, example.new))
    with torch.no_grad():
        for name, parameter in old.named_parameters():
            if "norm" in name or name.startswith("ln"):
                parameter.normal_(1.0 if name.endswith("weight") else 0.0, 0.25)
    new.load_state_dict(old.state_dict())
    return old, new


def difference(old, new, x):
    """The least t with which torch.allclose(new(x), old(x), rtol=t, atol=t) holds, with one deterministic convolution in full
    f32 for both."""
    import torch
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        wanted = old(x)
        return ((new(x) - wanted).abs_() / wanted.abs_().add_(1)).max().item()


def milliseconds(model, inputs, repeats=20):
    """The median of single calls, each on another input than the one before, so that no cache has it."""
    import torch
    times = []
    with torch.no_grad():
        for i in range(3):
            model(inputs[i % len(inputs)])
        for i in range(repeats):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            model(inputs[i % len(inputs)])
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def compare(example, with_compile=True, found=None):
    """{"difference": ..., "eager_ms": ..., "compile_ms": ..., "normjit_ms": ...}; found: a dictionary that gets each as it
    comes."""
    import torch
    old, new = both(example)
    inputs = [example.make() for _ in range(3)]
    found = {} if found is None else found
    found["name"] = example.name
    found["difference"] = difference(old, new, inputs[0])
    found["eager_ms"] = milliseconds(old, inputs)
    found["normjit_ms"] = milliseconds(new, inputs)
    if with_compile:
        found["compile_ms"] = milliseconds(torch.compile(old, dynamic=False), inputs)
    return found


def show(example):
    """Prints a table; the exit status: 1 where the outputs differ."""
    found = compare(example)
    print(found["name"])
    for key, text in (("eager_ms", "PyTorch eager"), ("compile_ms", "torch.compile"), ("normjit_ms", "normjit")):
        print("  {:<14}{:9.3f} ms".format(text, found[key]))
    right = found["difference"] <= 1e-5
    print("  outputs differ by {:.2g}{}".format(found["difference"], "" if right else ", which is more than 1e-5"))
    return 0 if right else 1
