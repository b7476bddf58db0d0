#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts normjit into models of `transformers`, and measures what that changes.

    scripts/bench_torch.py [--budget 125] [--layers 4] [--cases host,training,examples,bert,gpt2,vit,whisper]
                           [--json out.json]

host      microseconds per call on the CPU, of LayerNorm and RMSNorm, by torch.nn and by normjit.torch
training  microseconds per eager training step (forward and backward of one layer in bf16), of both, in interleaved runs;
          this case and host need no transformers
examples  the models of examples/torch: beside eager and torch.compile
bert ...  models built from their configuration with random weights (nothing is downloaded), before and after
          replace_layer_norm. Outputs are compared in f32, f16 and bf16, in eager mode, under torch.compile and in a CUDA
          graph, and each way is timed: the median milliseconds of a call with one sample (latency; not for
          torch.compile, which would compile once more), and samples per second with many. Convolutions are
          deterministic and without TF32, in one layout, so that before and after differ in the LayerNorms only.

Each model in each dtype has a process of its own. All compile and compare at once; then one after another times the
programs that it has, alone on the GPU. What is not done when the budget (seconds since the start) is used up is left out
and named. One table goes to stdout, and what is wrong goes behind it and to stderr; --json has all that is known at any
time. Exit status: 0 done, 1 where something is wrong, 2 where a case could not be measured, 3 without PyTorch, transformers
or a GPU.
"""
import argparse
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import statistics
import sys
import time

from bench_report import Report

BEGAN = time.monotonic()  # the imports of PyTorch and transformers count, too

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "python"), os.path.join(ROOT, "examples", "torch")]

MODELS = ("bert", "gpt2", "vit", "whisper")
DTYPES = ("float32", "float16", "bfloat16")
# ||after - before|| / ||before||: roundings of so many layers
ALLOWED = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
ALLOWED_DIFFERENCE = 1e-5  # of an example
MANY = 64  # samples; in 16 bits BERT and GPT-2 in eager mode wait for the CPU even then
TURN = 15  # seconds, within which a process has timed its programs
TRAINING = ((4096, 768), (256, 768))  # rows and columns
TRAINING_RUNS, TRAINING_STEPS = 5, 2000


def build(name, layers):
    """A model with random weights, made on the GPU, and a function from a number of samples to its input."""
    import torch
    torch.manual_seed(1)
    with torch.device("cuda"), torch.no_grad():
        model, inputs = model_of(name, layers)
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.normal_(1.0, 0.25)
                module.bias.normal_(0.0, 0.25)
    return model.cuda().eval(), inputs


def model_of(name, layers):
    import torch
    import transformers as t

    def tokens(limit, length):
        return lambda samples: torch.randint(0, limit, (samples, length), device="cuda")

    def values(*shape):
        return lambda samples: torch.randn(samples, *shape, device="cuda")
    depth = {} if layers is None else {"num_hidden_layers": layers}
    if name == "bert":
        return t.BertModel(t.BertConfig(**depth), add_pooling_layer=False), tokens(30000, 128)
    if name == "gpt2":
        return t.GPT2Model(t.GPT2Config(use_cache=False, **depth)), tokens(50000, 128)
    if name == "vit":
        return t.ViTModel(t.ViTConfig(**depth), add_pooling_layer=False), values(3, 224, 224)
    from transformers.models.whisper.modeling_whisper import WhisperEncoder
    config = t.WhisperConfig(d_model=384, encoder_layers=layers or 4, encoder_attention_heads=6, encoder_ffn_dim=1536)
    return WhisperEncoder(config), values(80, 3000)


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
    import torch._inductor.config
    torch._inductor.config.layout_optimization = False  # it goes by the size of a graph, which a LayerNorm changes
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


MODES = {"eager": called, "graph": graphed, "compile": compiled}  # the slowest to check comes last


def distance(after, before):
    return ((after.double() - before.double()).norm() / before.double().norm()).item()


def text_of(error):
    return " ".join("{}: {}".format(type(error).__name__, error).split())[:1000]


def check(models, found, say):
    """Finds a distance for each mode, or why there is none, and says all so far after each; returns the programs before
    and after of those that have one."""
    x, programs = models.inputs(MANY), {}
    for mode, make in MODES.items():
        try:
            before, after = make(models.before), make(models.after)
            wanted = before(x).clone()
            found["distance"][mode] = distance(after(x), wanted)
            programs[mode] = before, after
        except Exception as error:  # the other modes go on
            found["errors"][mode] = text_of(error)
        say(found)
    return programs


def prepare():
    """PyTorch in this process, of which there are as many as cores."""
    import torch
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False


def serve(task, pipe):
    """A process: says what its check has found so far and whether that is all, waits to be told for how long to time a call, and says a row for each mode.
    The last message of all is None."""
    name, dtype, layers = task
    found = {"model": name, "dtype": dtype, "replaced": 0, "left": 0, "distance": {}, "errors": {}}
    try:
        prepare()
        models = Prepared(name, dtype, layers)
        found["replaced"], found["left"] = models.replaced, models.left
        programs = check(models, found, lambda found: pipe.send((found, False)))
    except Exception as error:
        programs = {}
        found["errors"].update((mode, text_of(error)) for mode in MODES if mode not in found["distance"])
    pipe.send((found, True))
    with contextlib.suppress(EOFError):  # where the parent has ended
        seconds = pipe.recv()
        for mode, pair in programs.items():
            pipe.send(time_mode(models, mode, pair, {"model": name, "dtype": dtype, "mode": mode}, seconds))
        pipe.send(None)
        pipe.recv()  # its end must not disturb the next one


class Worker:
    """A process that serves a task."""

    def __init__(self, context, task):
        self.name, self.dtype, self.found = "{} {}".format(*task[:2]), task[1], {}
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(task, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def hear(self, deadline):
        """Its next message. Raises TimeoutError, or EOFError where it has ended."""
        if not self.pipe.poll(max(0, deadline - time.monotonic())):
            raise TimeoutError("no answer in time")
        try:
            return self.pipe.recv()
        except OSError as why:
            raise EOFError from why

    def end(self):
        self.process.kill()
        self.process.join(10)

    def why(self, error):
        """Ends it, and says why it failed."""
        self.end()
        return "{}: {}".format(self.name, "its process ended with status {}".format(self.process.exitcode)
                               if isinstance(error, EOFError) else text_of(error))


@contextlib.contextmanager
def workers_of(tasks):
    context, workers = multiprocessing.get_context("spawn"), []
    try:
        for task in tasks:
            workers.append(Worker(context, task))
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join(10)


def collect_checks(workers, report, deadline):
    """Those of the workers that have checked until the deadline; the others are ended."""
    pending, checked = {worker.pipe: worker for worker in workers}, []
    while pending and time.monotonic() < deadline:
        for pipe in multiprocessing.connection.wait(list(pending), deadline - time.monotonic()):
            worker, last = pending[pipe], True
            try:
                found, last = worker.hear(deadline)
                if not worker.found:
                    report["checks"].append(worker.found)
                worker.found.update(found)
                checked += [worker] * last
            except (EOFError, TimeoutError) as error:
                report["failed"].append("check of " + worker.why(error))
            if last:
                del pending[pipe]
            report.store()
    for worker in pending.values():
        worker.end()
        known = [*worker.found.get("distance", ()), *worker.found.get("errors", ())]
        report["left_out"] += ["check of {} {}".format(worker.name, mode) for mode in MODES if mode not in known]
    return checked


def collect_times(workers, report, deadline):
    """One worker after another, while all others wait."""
    workers = sorted(workers, key=lambda worker: -DTYPES.index(worker.dtype))  # bf16 first
    for turn, worker in enumerate(workers):
        modes, left = list(worker.found["distance"]), deadline - time.monotonic()
        turn_ends = min(deadline + 1, time.monotonic() + TURN)
        try:
            if left > 1:
                seconds = min(0.25, left / (len(workers) - turn) / 15)  # 10 medians, and as much again to warm up
                worker.pipe.send(seconds)
                while (row := worker.hear(turn_ends)) is not None:
                    report["times"].append(row)
                    modes.remove(row["mode"])
                    report.store()
        except TimeoutError:
            worker.end()  # else it would disturb the next one
        except (EOFError, OSError) as error:
            report["failed"].append("time of " + worker.why(EOFError(error)))
        report["left_out"] += ["time of {} {}".format(worker.name, mode) for mode in modes]
        report.store()


# ---- Time

def call_milliseconds(programs, x, seconds):
    """The median of single calls of each; they take turns, so that both see the same machine."""
    import torch
    for run in programs:
        for _ in range(3):
            run(x)
    torch.cuda.synchronize()
    times, end_by = [[] for _ in programs], time.monotonic() + seconds * len(programs)
    while len(times[-1]) < 5 or time.monotonic() < end_by:
        for run, some in zip(programs, times):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run(x)
            end.record()
            end.synchronize()
            some.append(begin.elapsed_time(end))
    return [statistics.median(some) for some in times]


def time_mode(models, mode, programs, row, seconds):
    """Adds "latency_ms": [before, after] and "samples_per_s": [before, after] to a row; "error" where it ends earlier."""
    try:
        if mode != "compile":
            row["latency_ms"] = call_milliseconds(programs, models.inputs(1), seconds)
        row["samples_per_s"] = [MANY * 1e3 / ms for ms in call_milliseconds(programs, models.inputs(MANY), seconds)]
    except Exception as error:
        row["error"] = text_of(error)
    return row


def host_overhead(found):
    """Adds microseconds of CPU time per call, the GPU's not waited for: the least of several rounds."""
    import torch
    from normjit.torch import LayerNorm, add_rms_norm, layer_norm, norm, rms_norm
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
    with torch.inference_mode():
        found["module, inference_mode"] = pair(lambda m, f: lambda: m(x))
    with torch.no_grad():
        found["module, no_grad"] = pair(lambda m, f: lambda: m(x))
        found["function, no_grad"] = pair(lambda m, f: lambda: f(x, (256,), m.weight, m.bias))
        operator = torch.ops.normjit.layer_norm.default
        native = torch.ops.aten.native_layer_norm.default
        found["operator, no_grad"] = [microseconds(lambda: native(x, (256,), theirs.weight, theirs.bias, 1e-5)),
                                      microseconds(lambda: operator(x, 1, ours.weight, ours.bias, 1e-5))]
        weight, their_rms_norm = ours.weight, torch.nn.functional.rms_norm
        found["rms_norm, no_grad"] = [microseconds(lambda: their_rms_norm(x, (256,), weight)),
                                      microseconds(lambda: rms_norm(x, (256,), weight))]
        found["norm of a text, no_grad"] = [found["rms_norm, no_grad"][0],
                                            microseconds(lambda: norm("rmsnorm/cols=256/f32/w", x, weight=weight))]
        found["sum and rms_norm, no_grad"] = [microseconds(lambda: their_rms_norm(x + grad, (256,), weight)),
                                              microseconds(lambda: add_rms_norm(x, grad, weight))]
    found["module, forward of training"] = pair(lambda m, f: lambda: m(x))
    found["module, forward and backward"] = pair(lambda m, f: lambda: m(x).backward(grad))


def training_steps(found):
    """Adds for each shape the microseconds of a step in each run, of PyTorch and of normjit, which take turns."""
    import torch
    from normjit.torch import LayerNorm
    for rows, columns in TRAINING:
        x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        grad = torch.randn_like(x)
        modules = [kind(columns, device="cuda", dtype=torch.bfloat16) for kind in (torch.nn.LayerNorm, LayerNorm)]
        row = {"rows": rows, "columns": columns, "us": [[], []]}
        found.append(row)

        def run(module, steps):
            for _ in range(steps):
                module(x).backward(grad)
                x.grad = module.weight.grad = module.bias.grad = None
            torch.cuda.synchronize()
        for module in modules:
            run(module, TRAINING_STEPS // 10)
        for _ in range(TRAINING_RUNS):
            for module, times in zip(modules, row["us"]):
                begin = time.perf_counter()
                run(module, TRAINING_STEPS)
                times.append((time.perf_counter() - begin) / TRAINING_STEPS * 1e6)


# ---- The report

def new_report(path, **about):
    return Report(path, faults, **about, host_us={}, training=[], examples=[], checks=[], times=[])


def faults(report):
    """What is wrong, a sentence each."""
    for e in report["examples"]:
        if "difference" in e and not e["difference"] <= ALLOWED_DIFFERENCE:
            yield "{}: outputs differ by {:.2g}, allowed is {:.0e}".format(e["name"], e["difference"], ALLOWED_DIFFERENCE)
    for c in report["checks"]:
        name = "{model} {dtype}".format(**c)
        for mode, error in c["errors"].items():
            yield "{} {}: {}".format(name, mode, error)
        for mode, distance in c["distance"].items():
            if not distance <= ALLOWED[c["dtype"]]:
                yield "{} {}: outputs differ by {:.2g}, allowed is {:.0e}".format(name, mode, distance, ALLOWED[c["dtype"]])
        if c["distance"] and (c["left"] or not c["replaced"]):
            yield "{}: {} LayerNorms were replaced and {} were not".format(name, c["replaced"], c["left"])
    for r in report["times"]:
        if "error" in r:
            yield "time of {model} {dtype} {mode}: {error}".format(**r)


def cells(row, key, form):
    """Before and after."""
    found = [form.format(value) for value in row.get(key, ())]
    return (found + 2 * ["error" if "error" in row else "-"])[:2]


def table(report):
    lines = []
    if report["host_us"]:
        lines += ["| host, us per call | PyTorch | normjit |", "|---|---|---|"]
        lines += ["| {} | {:.2f} | {:.2f} |".format(name, *pair) for name, pair in report["host_us"].items()] + [""]
    if report["training"]:
        lines += ["| eager training step, bf16 | PyTorch us | normjit us | speed of normjit over PyTorch's | in each run |",
                  "|---" * 5 + "|"]
        for r in report["training"]:
            ratios = [theirs / ours for theirs, ours in zip(*r["us"])]
            medians = [statistics.median(times) if times else float("nan") for times in (*r["us"], ratios)]
            lines.append("| {} x {} | {:.1f} | {:.1f} | {:.3f} | {} |".format(
                r["rows"], r["columns"], *medians, " ".join("{:.3f}".format(ratio) for ratio in ratios)))
        lines.append("")
    if report["examples"]:
        lines += ["| example | eager ms | torch.compile ms | normjit ms | outputs differ by |", "|---|---|---|---|---|"]
        for e in report["examples"]:
            found = ["{:.3f}".format(e[key]) if key in e else "-" for key in ("eager_ms", "compile_ms", "normjit_ms")]
            differ = "{:.2g}".format(e["difference"]) if "difference" in e else "-"
            lines.append("| {} | {} | {} |".format(e["name"], " | ".join(found), differ))
        lines.append("")
    if report["checks"]:
        lines += ["| model | dtype | replaced | " + " | ".join(MODES) + " | allowed |", "|---" * (len(MODES) + 4) + "|"]
        for c in sorted(report["checks"], key=lambda c: (c["model"], DTYPES.index(c["dtype"]))):
            found = ["{:.1e}".format(c["distance"][m]) if m in c["distance"] else "error" if m in c["errors"] else "-"
                     for m in MODES]
            lines.append("| {} | {} | {} of {} | {} | {:.0e} |".format(
                c["model"], c["dtype"], c["replaced"], c["replaced"] + c["left"], " | ".join(found), ALLOWED[c["dtype"]]))
        lines.append("")
    if report["times"]:
        lines += ["| model | dtype | mode | latency ms, before | after | samples/s, before | after | gain |", "|---" * 8 + "|"]
        for r in report["times"]:
            speed = r.get("samples_per_s", ())
            gain = "{:.3f}".format(speed[1] / speed[0]) if len(speed) == 2 else "-"
            lines.append("| " + " | ".join([r["model"], r["dtype"], r["mode"], *cells(r, "latency_ms", "{:.3f}"),
                                            *cells(r, "samples_per_s", "{:.0f}"), gain]) + " |")
        lines.append("")
    if report["left_out"]:
        lines.append("Left out, for want of time: " + ", ".join(report["left_out"]))
    return "\n".join(lines)


def remarks(report):
    """The lines behind the table."""
    return "\n".join(report.remarks())


# ---- All of it

def run_examples(report, deadline):
    import conv_transpose_model
    import layer_norm_model
    import torch
    from side_by_side import compare
    for module in (layer_norm_model, conv_transpose_model):
        left = deadline - time.monotonic()
        if left < 5:
            report["left_out"].append(module.EXAMPLE.name)
            continue
        with report.step(module.EXAMPLE.name):
            found = {"name": module.EXAMPLE.name}
            report["examples"].append(found)
            compare(module.EXAMPLE, with_compile=left > 10, found=found)
    torch.cuda.empty_cache()


def run_models(names, layers, report, end):
    tasks = [(name, dtype, layers) for name in names for dtype in DTYPES]
    with workers_of(tasks) as workers:
        left = end - time.monotonic()
        checked = collect_checks(workers, report, end - 0.28 * left)  # of 100 s 28 for 12 processes to time
        collect_times(checked, report, end)


def run(arguments, report):
    """Fills the report."""
    end = BEGAN + arguments.budget - 3  # to end the processes in
    if "host" in arguments.cases:
        with report.step("host"):
            host_overhead(report["host_us"])
    if "training" in arguments.cases:
        with report.step("training"):
            training_steps(report["training"])
    if "examples" in arguments.cases:
        with report.step("examples"):
            run_examples(report, end)
    names = [name for name in MODELS if name in arguments.cases]
    if names:
        with report.step("models"):
            run_models(names, arguments.layers, report, end)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--budget", type=float, default=300, help="seconds, of all")
    parser.add_argument("--layers", type=int, help="of each model; its own number unless given")
    parser.add_argument("--cases", default=",".join(("host", "training", "examples") + MODELS), help="separated by commas")
    parser.add_argument("--json", help="a file for all that was found")
    arguments = parser.parse_args()
    arguments.cases = arguments.cases.split(",")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # there are as many processes as cores
    try:
        import torch
        if set(MODELS) & set(arguments.cases):
            import transformers  # noqa: F401
    except ImportError as missing:
        print("Skipped: {}".format(missing), file=sys.stderr)
        return 3
    if not torch.cuda.is_available():
        print("Skipped: no GPU for PyTorch here", file=sys.stderr)
        return 3
    report = new_report(arguments.json, torch=torch.__version__, device=torch.cuda.get_device_name(), layers=arguments.layers)
    report.write()  # an error here costs nothing yet
    try:
        with report.time_limit(BEGAN + arguments.budget - time.monotonic(), "what was under way at the end, and all behind it"):
            run(arguments, report)
    finally:
        print("\n".join(part for part in (table(report), remarks(report)) if part), flush=True)
        print(remarks(report), end="\n" if remarks(report) else "", file=sys.stderr)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
