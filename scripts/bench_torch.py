#!/usr/bin/env python3
"""Puts normjit into models of `transformers`, and measures what that changes.

    scripts/bench_torch.py [--budget 120] [--layers 4] [--cases host,examples,bert,gpt2,vit,whisper] [--json out.json]

host      microseconds per call on the CPU, of torch.nn.LayerNorm and of normjit.torch.LayerNorm
examples  the models of examples/torch: beside eager and torch.compile
bert ...  models built from their configuration with random weights (nothing is downloaded), before and after
          replace_layer_norm. Outputs are compared in f32, f16 and bf16, in eager mode, under torch.compile and in a CUDA
          graph, and each way is timed: the median milliseconds of a call with one sample (latency; not for
          torch.compile, which would compile once more), and samples per second with many.

Models of all dtypes are compiled at once by processes of their own, which compare outputs, too; then what they have
compiled is timed by this one alone. What is not done when the budget (seconds) is used up is left out and named. One
table goes to stdout. Exit status: 0 done, 1 where outputs differ, 3 without PyTorch, transformers or a GPU.
"""
import argparse
import json
import multiprocessing
import os
import queue
import signal
import statistics
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "python"), os.path.join(ROOT, "examples", "torch")]

MODELS = ("bert", "gpt2", "vit", "whisper")
DTYPES = ("float32", "float16", "bfloat16")
# ||after - before|| / ||before||: roundings of so many layers
ALLOWED = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
MANY = 32  # samples


def build(name, layers):
    """A model with random weights, and a function from a number of samples to its input."""
    import torch
    import transformers as t
    torch.manual_seed(1)

    def tokens(limit, length):
        return lambda samples: torch.randint(0, limit, (samples, length), device="cuda")

    def values(*shape):
        return lambda samples: torch.randn(samples, *shape, device="cuda")
    depth = {} if layers is None else {"num_hidden_layers": layers}
    if name == "bert":
        model, inputs = t.BertModel(t.BertConfig(**depth), add_pooling_layer=False), tokens(30000, 128)
    elif name == "gpt2":
        model, inputs = t.GPT2Model(t.GPT2Config(use_cache=False, **depth)), tokens(50000, 128)
    elif name == "vit":
        model, inputs = t.ViTModel(t.ViTConfig(**depth), add_pooling_layer=False), values(3, 224, 224)
    else:
        config = t.WhisperConfig(d_model=384, encoder_layers=layers or 4, encoder_attention_heads=6, encoder_ffn_dim=1536)
        from transformers.models.whisper.modeling_whisper import WhisperEncoder
        model, inputs = WhisperEncoder(config), values(80, 3000)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.normal_(1.0, 0.25)
                module.bias.normal_(0.0, 0.25)
    return model.cuda().eval(), inputs


class Prepared:
    """A model before and after, in one dtype, and inputs for it."""

    def __init__(self, name, dtype, layers):
        import copy

        import torch
        from normjit.torch import LayerNorm, replace_layer_norm
        self.dtype = getattr(torch, dtype)
        model, self.make = build(name, layers)
        self.before = model.to(self.dtype)
        self.after = replace_layer_norm(copy.deepcopy(self.before))
        self.replaced = sum(isinstance(m, LayerNorm) for m in self.after.modules())
        self.left = sum(isinstance(m, torch.nn.LayerNorm) and not isinstance(m, LayerNorm) for m in self.after.modules())

    def inputs(self, samples):
        x = self.make(samples)
        return x.to(self.dtype) if x.is_floating_point() else x


def called(model):
    return lambda x: model(x)[0]


def compiled(model):
    import torch
    torch._dynamo.reset()
    return torch.compile(called(model), dynamic=False, fullgraph=True)


def graphed(model):
    """A function that replays a graph of one call."""
    import torch
    made = {}

    def run(x):
        if x.shape not in made:
            place, stream = x.clone(), torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    called(model)(place)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = called(model)(place)
            made[x.shape] = graph, place, y
        graph, place, y = made[x.shape]
        place.copy_(x)
        graph.replay()
        return y
    return run


MODES = {"eager": called, "compile": compiled, "graph": graphed}


def distance(after, before):
    return ((after.double() - before.double()).norm() / before.double().norm()).item()


def check(task):
    """(name, dtype, layers) -> what a worker has found: per mode the distance, or why there is none."""
    import torch
    name, dtype, layers = task
    found = {"model": name, "dtype": dtype, "distance": {}, "errors": {}}
    with torch.no_grad():
        models = Prepared(name, dtype, layers)
        found["replaced"], found["left"] = models.replaced, models.left
        x = models.inputs(MANY)
        for mode, make in MODES.items():
            try:
                wanted = make(models.before)(x).clone()
                found["distance"][mode] = distance(make(models.after)(x), wanted)
            except Exception as error:  # the other modes go on
                found["errors"][mode] = " ".join("{}: {}".format(type(error).__name__, error).split())[:300]
    return found


def check_into(task, results):
    results.put(check(task))


def check_all(tasks, deadline):
    """One process a task, all at once; what they found until the deadline."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=check_into, args=(task, results), daemon=True) for task in tasks]
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # of each: there are as many processes as cores
    for process in processes:
        process.start()
    del os.environ["TORCHINDUCTOR_COMPILE_THREADS"]
    found = []
    while len(found) < len(tasks) and time.monotonic() < deadline:
        try:
            found.append(results.get(timeout=0.5))
        except queue.Empty:
            if not any(process.is_alive() for process in processes):
                break
    for process in processes:
        process.kill()
    return found


# ---- Time

def call_milliseconds(run, x, seconds=0.25):
    """The median of single calls."""
    import torch
    for _ in range(3):
        run(x)
    torch.cuda.synchronize()
    times, end_by = [], time.monotonic() + seconds
    while len(times) < 5 or time.monotonic() < end_by:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run(x)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def time_model(name, dtype, layers, modes, deadline):
    """Rows: {"mode": ..., "latency_ms": [before, after], "samples_per_s": [before, after]}."""
    import torch
    rows = []
    with torch.no_grad():
        models = Prepared(name, dtype, layers)
        one, many = models.inputs(1), models.inputs(MANY)
        for mode in modes:
            if time.monotonic() > deadline:
                break
            row = {"model": name, "dtype": dtype, "mode": mode, "samples_per_s": []}
            try:
                for model in (models.before, models.after):
                    run = MODES[mode](model)
                    if mode != "compile":
                        row.setdefault("latency_ms", []).append(call_milliseconds(run, one))
                    row["samples_per_s"].append(MANY / call_milliseconds(run, many) * 1e3)
            except Exception as error:
                row = {"model": name, "dtype": dtype, "mode": mode, "error": str(error).split("\n")[0][:200]}
            rows.append(row)
    return rows


def host_overhead():
    """Microseconds of CPU time per call, the GPU's not waited for: the least of several rounds."""
    import torch
    from normjit.torch import LayerNorm, layer_norm
    x = torch.randn(16, 256, device="cuda")
    theirs, ours = torch.nn.LayerNorm(256, device="cuda"), LayerNorm(256, device="cuda")
    grad = torch.randn_like(x)
    functional = torch.nn.functional.layer_norm

    def microseconds(call, calls=2000, rounds=5):
        call()
        best = float("inf")
        for _ in range(rounds):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            best = min(best, (time.perf_counter() - begin) / calls * 1e6)
        return best

    def pair(make):
        return [microseconds(make(theirs, functional)), microseconds(make(ours, layer_norm))]
    found = {}
    with torch.inference_mode():
        found["module, inference_mode"] = pair(lambda m, f: lambda: m(x))
    with torch.no_grad():
        found["module, no_grad"] = pair(lambda m, f: lambda: m(x))
        found["function, no_grad"] = pair(lambda m, f: lambda: f(x, (256,), m.weight, m.bias))
        operator = torch.ops.normjit.layer_norm.default
        native = torch.ops.aten.native_layer_norm.default
        found["operator, no_grad"] = [microseconds(lambda: native(x, (256,), theirs.weight, theirs.bias, 1e-5)),
                                      microseconds(lambda: operator(x, 1, ours.weight, ours.bias, 1e-5))]
    found["module, forward of training"] = pair(lambda m, f: lambda: m(x))
    found["module, forward and backward"] = pair(lambda m, f: lambda: m(x).backward(grad))
    return found


# ---- The table

def table(report):
    lines = []
    if report["host_us"]:
        lines += ["| host, us per call | PyTorch | normjit |", "|---|---|---|"]
        lines += ["| {} | {:.2f} | {:.2f} |".format(name, *pair) for name, pair in report["host_us"].items()] + [""]
    if report["examples"]:
        lines += ["| example | eager ms | torch.compile ms | normjit ms | outputs differ by |", "|---|---|---|---|---|"]
        for e in report["examples"]:
            compiled_ms = "{:.3f}".format(e["compile_ms"]) if "compile_ms" in e else "-"
            lines.append("| {name} | {eager_ms:.3f} | {compiled} | {normjit_ms:.3f} | {difference:.2g} |".format(
                compiled=compiled_ms, **e))
        lines.append("")
    if report["checks"]:
        lines += ["| model | dtype | replaced | " + " | ".join(MODES) + " | allowed |", "|---" * (len(MODES) + 4) + "|"]
        for c in sorted(report["checks"], key=lambda c: (c["model"], DTYPES.index(c["dtype"]))):
            cells = ["{:.1e}".format(c["distance"][m]) if m in c["distance"] else c["errors"].get(m, "-")[:60] for m in MODES]
            replaced = "{} of {}".format(c["replaced"], c["replaced"] + c["left"])
            lines.append("| {} | {} | {} | {} | {:.0e} |".format(c["model"], c["dtype"], replaced, " | ".join(cells),
                                                               ALLOWED[c["dtype"]]))
        lines.append("")
    if report["times"]:
        lines += ["| model | dtype | mode | latency ms, before | after | samples/s, before | after | gain |", "|---" * 8 + "|"]
        for r in report["times"]:
            if "error" in r:
                lines.append("| {model} | {dtype} | {mode} | {error} | | | | |".format(**r))
                continue
            latency = ["{:.3f}".format(ms) for ms in r.get("latency_ms", ())] or ["-", "-"]
            speed = r["samples_per_s"]
            lines.append("| {} | {} | {} | {} | {} | {:.0f} | {:.0f} | {:.3f} |".format(
                r["model"], r["dtype"], r["mode"], *latency, *speed, speed[1] / speed[0]))
        lines.append("")
    if report["left_out"]:
        lines.append("Left out, for want of time: " + ", ".join(report["left_out"]))
    return "\n".join(lines)


def is_wrong(report):
    return any(c["distance"][m] > ALLOWED[c["dtype"]] for c in report["checks"] for m in c["distance"]) or any(
        e["difference"] > 1e-5 for e in report["examples"])


def run(arguments, report):
    """Fills the report, which is whole at any time."""
    began = time.monotonic()
    left = lambda: arguments.budget - (time.monotonic() - began)  # noqa: E731
    if "host" in arguments.cases:
        report["host_us"] = host_overhead()
    names = [name for name in MODELS if name in arguments.cases]
    tasks = [(name, dtype, arguments.layers) for name in names for dtype in DTYPES]
    if tasks:
        report["checks"] = check_all(tasks, began + 0.6 * arguments.budget)
        done = {(c["model"], c["dtype"]) for c in report["checks"]}
        report["left_out"] += ["check of {} {}".format(*task[:2]) for task in tasks if task[:2] not in done]
    if "examples" in arguments.cases:
        import conv_transpose_model
        import layer_norm_model
        from side_by_side import compare
        for module in (layer_norm_model, conv_transpose_model):
            if left() < 5:
                report["left_out"].append(module.EXAMPLE.name)
                continue
            report["examples"].append(compare(module.EXAMPLE, with_compile=left() > 25))
    for dtype in ("bfloat16", "float16", "float32"):
        for name in names:
            modes = ["eager", "graph"] + ["compile"] * (dtype == "bfloat16")
            rows = time_model(name, dtype, arguments.layers, modes, began + arguments.budget - 4) if left() > 6 else []
            report["times"] += rows
            report["left_out"] += ["time of {} {} {}".format(name, dtype, mode) for mode in modes[len(rows):]]


class OutOfTime(BaseException):
    """No step's own error."""


def end(*_):
    raise OutOfTime


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--budget", type=float, default=300, help="seconds")
    parser.add_argument("--layers", type=int, help="of each model; its own number unless given")
    parser.add_argument("--cases", default=",".join(("host", "examples") + MODELS), help="separated by commas")
    parser.add_argument("--json", help="a file for all that was found")
    arguments = parser.parse_args()
    arguments.cases = arguments.cases.split(",")
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as missing:
        print("Skipped: {}".format(missing), file=sys.stderr)
        return 3
    if not torch.cuda.is_available():
        print("Skipped: no GPU for PyTorch here", file=sys.stderr)
        return 3
    report = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "layers": arguments.layers,
              "host_us": {}, "examples": [], "checks": [], "times": [], "left_out": []}
    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, arguments.budget)
    try:
        run(arguments, report)
    except OutOfTime:
        report["left_out"].append("what was under way at the end, and all behind it")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(table(report), flush=True)
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump(report, file, indent=1)
    return 1 if is_wrong(report) else 0


if __name__ == "__main__":
    sys.exit(main())
