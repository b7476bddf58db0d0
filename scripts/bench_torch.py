#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts normjit into models of `transformers` and a diffusion transformer, and measures what that changes.

    scripts/bench_torch.py [--seconds 125] [--cases host,training,examples]
                           [--models bert,gpt2,vit,whisper,llama,convnext,dit,dit-norms]
                           [--modes eager,graph,compile] [--dtypes float32,float16,bfloat16] [--layers 4] [--fuse table]
                           [--tiny] [--json out.json]

host      microseconds per call on the CPU, of LayerNorm and RMSNorm, by torch.nn and by normjit.torch
training  microseconds per eager training step (forward and backward of one layer in bf16), of both, in interleaved runs;
          this case and host need no transformers
examples  the models of examples/torch: beside eager and torch.compile

The models are built from their configuration with random weights (nothing is downloaded): BERT base, GPT-2, ViT base, the
encoder of Whisper small, a Llama of 1B, ConvNeXt-T, and the blocks of DiT-XL/2; before and after replace_norms(fuse=True). "dit" calls
modulated_layer_norm and gate_residual_modulate instead, "dit-norms" leaves its modulation to PyTorch and the pass. Outputs are
compared in f32, f16 and bf16, in eager mode, in a CUDA graph and under torch.compile, and each way is timed: the milliseconds of
a call with one sample (latency; not for torch.compile, which would compile once more), and samples per second with many; medians
of five runs, in which before and after take turns. Convolutions are deterministic and without TF32, so that before and after
differ in the norms only.

Each model in each dtype has a process of its own. All compile and compare at once; then one after another times the
programs that it has, alone on the GPU. What is not done when the seconds since the start are used up is left out and named.
One table goes to stdout, and what is wrong goes behind it and to stderr; --json has all that is known at any time. --fuse all
fuses at all widths, not at those that _fusion_table.py has; no fuses nowhere. --tiny is for tests: models of two small layers,
and where there is no GPU, on the CPU, above a libnormjit that computes there. Exit status: 0 done, 1 where something is wrong, 2
where a case could not be measured, 3 without PyTorch, transformers or a GPU.
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

CASES = ("host", "training", "examples")
MODELS = ("bert", "gpt2", "vit", "whisper", "llama", "convnext", "dit", "dit-norms")
DTYPES = ("float32", "float16", "bfloat16")
# ||after - before|| / ||before||: roundings of so many layers
ALLOWED = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
ALLOWED_DIFFERENCE = 1e-5  # of an example
MANY = {"whisper": 16, "llama": 16, "dit": 32, "dit-norms": 32}  # samples; of the others
MANY_OF_OTHERS = 64  # in 16 bits BERT and GPT-2 in eager mode wait for the CPU even then
RUNS = 5  # each of calls for this part of the time
TURN = 20  # seconds, within which a process has timed its programs
TRAINING = ((4096, 768), (256, 768))  # rows and columns
TRAINING_RUNS, TRAINING_STEPS = 5, 2000


def device():
    """Without a GPU, for --tiny."""
    import torch
    return "cuda" if torch.cuda.is_available() else "cpu"


def many(name, tiny):
    return 4 if tiny else MANY.get(name, MANY_OF_OTHERS)


def build(name, layers, tiny):
    """A model with random weights, made on the GPU, and a function from a number of samples to its input."""
    import torch
    torch.manual_seed(1)
    with torch.device(device()), torch.no_grad():
        model, inputs = model_of(name, 2 if tiny else layers, tiny)
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm) and module.weight is not None:
                module.weight.normal_(1.0, 0.25)
                module.bias.normal_(0.0, 0.25)
    return model.to(device()).eval(), inputs


def model_of(name, layers, tiny):
    import torch

    def tokens(limit, length):
        return lambda samples: torch.randint(0, limit, (samples, 16 if tiny else length), device=device())

    def values(*shape):
        return lambda samples: torch.randn(samples, *shape, device=device())
    if name.startswith("dit"):
        columns, heads = (64, 2) if tiny else (1152, 16)
        return dit(layers or 28, columns, heads), values(16 if tiny else 256, columns)
    import transformers as t
    depth = {} if layers is None else {"num_hidden_layers": layers}
    width = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128} if tiny else {}
    if name == "bert":
        return t.BertModel(t.BertConfig(vocab_size=30000, **depth, **width), add_pooling_layer=False), tokens(30000, 128)
    if name == "gpt2":
        width = {"n_embd": 64, "n_head": 2} if tiny else {}
        return t.GPT2Model(t.GPT2Config(use_cache=False, **depth, **width)), tokens(50000, 128)
    if name == "llama":
        width = width or {"hidden_size": 2048, "num_attention_heads": 32, "intermediate_size": 8192}
        config = t.LlamaConfig(use_cache=False, vocab_size=32000, num_hidden_layers=layers or 16,
                               num_key_value_heads=2 if tiny else 8, rms_norm_eps=1e-5, **width)
        return t.LlamaModel(config), tokens(32000, 512)
    if name == "vit":
        size = 32 if tiny else 224
        return t.ViTModel(t.ViTConfig(image_size=size, **depth, **width), add_pooling_layer=False), values(3, size, size)
    if name == "convnext":  # --layers are blocks of each stage
        size = {"hidden_sizes": [8, 16, 24, 32]} if tiny else {}
        size.update({} if layers is None else {"depths": [layers] * 4})
        return t.ConvNextModel(t.ConvNextConfig(layer_scale_init_value=1.0, **size)), values(3, *(2 * [64 if tiny else 224]))
    from transformers.models.whisper.modeling_whisper import WhisperEncoder
    columns, heads = (64, 2) if tiny else (768, 12)
    config = t.WhisperConfig(d_model=columns, encoder_layers=layers or 12, encoder_attention_heads=heads,
                             encoder_ffn_dim=4 * columns, max_source_positions=32 if tiny else 1500)
    return WhisperEncoder(config), values(80, 64 if tiny else 3000)


def dit(layers, columns, heads):
    """The blocks of a diffusion transformer, with a condition for each sample: its first token. `fused` says who modulates."""
    import torch
    from normjit.torch import gate_residual_modulate, modulated_layer_norm
    functional = torch.nn.functional

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (torch.nn.LayerNorm(columns, 1e-6, elementwise_affine=False) for _ in range(2))
            self.heads, self.out = torch.nn.Linear(columns, 3 * columns), torch.nn.Linear(columns, columns)
            self.up, self.down = torch.nn.Linear(columns, 4 * columns), torch.nn.Linear(4 * columns, columns)
            self.condition = torch.nn.Linear(columns, 6 * columns)

        def attend(self, x):
            q, k, v = self.heads(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

        def spread(self, x):
            return self.down(functional.gelu(self.up(x), approximate="tanh"))

    class Blocks(torch.nn.Module):
        fused = False

        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block() for _ in range(layers))

        def forward(self, x):
            condition = functional.silu(x[:, 0])
            return (self.by_normjit if self.fused else self.by_pytorch)(x, condition),

        def by_pytorch(self, x, condition):
            for block in self.blocks:
                part = block.condition(condition).unsqueeze(1).chunk(6, -1)
                x = x + part[2] * block.attend(block.first(x) * (1 + part[1]) + part[0])
                x = x + part[5] * block.spread(block.second(x) * (1 + part[4]) + part[3])
            return x

        def by_normjit(self, x, condition):
            behind = None  # the gate and the result of the block before
            for block in self.blocks:
                part = block.condition(condition).unsqueeze(1).chunk(6, -1)
                if behind is None:
                    y = modulated_layer_norm(x, part[1], part[0])
                else:
                    y, x = gate_residual_modulate(behind[1], behind[0], x, part[1], part[0], rounding="sum")
                y, x = gate_residual_modulate(block.attend(y), part[2], x, part[4], part[3], rounding="sum")
                behind = part[5], block.spread(y)
            return x + behind[0] * behind[1]
    return Blocks()


class Prepared:
    """A model before and after, in one dtype, and inputs for it."""

    def __init__(self, name, dtype, layers, tiny, fuse):
        import copy

        import torch
        from normjit.torch import replace_norms
        self.dtype, self.many = getattr(torch, dtype), many(name, tiny)
        model, self.make = build(name, layers, tiny)
        self.before = model.to(self.dtype)
        self.after = replace_norms(copy.deepcopy(self.before), fuse=fuse != "no")
        if fuse == "all":
            fuse_everywhere()
        if name == "dit":
            self.after.fused = True
        changed = [type(ours) is not type(theirs) for ours, theirs in zip(self.after.modules(), self.before.modules())
                   if type(theirs).__name__.endswith("Norm")]
        self.replaced, self.left = changed.count(True), changed.count(False)

    def inputs(self, samples):
        x = self.make(samples)
        return x.to(self.dtype) if x.is_floating_point() else x


def fuse_everywhere():
    from normjit.torch import _fusion, _fusion_table
    _fusion_table.FASTER.update({(norm + form, text): ((1, 2 ** 31 - 1),) for norm in ("layernorm", "rmsnorm")
                                 for form in _fusion.FORMS for text in ("f16", "bf16", "f32")})


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


def check(models, modes, found, say):
    """Finds a distance for each mode, or why there is none, and says all so far after each; returns the programs before
    and after of those that have one."""
    x, programs = models.inputs(models.many), {}
    for mode in modes:
        make = MODES[mode]
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
    name, dtype, modes, layers, tiny, fuse = task
    found = {"model": name, "dtype": dtype, "replaced": 0, "left": 0, "distance": {}, "errors": {}}
    try:
        prepare()
        models = Prepared(name, dtype, layers, tiny, fuse)
        found["replaced"], found["left"] = models.replaced, models.left
        programs = check(models, modes, found, lambda found: pipe.send((found, False)))
    except Exception as error:
        programs = {}
        found["errors"].update((mode, text_of(error)) for mode in modes if mode not in found["distance"])
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
        self.name, self.dtype, self.modes, self.found = "{} {}".format(*task[:2]), task[1], task[2], {}
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
        report["left_out"] += ["check of {} {}".format(worker.name, mode) for mode in worker.modes if mode not in known]
    return checked


def collect_times(workers, report, deadline):
    """One worker after another, while all others wait."""
    workers = sorted(workers, key=lambda worker: -DTYPES.index(worker.dtype))  # bf16 first
    for turn, worker in enumerate(workers):
        modes, left = list(worker.found["distance"]), deadline - time.monotonic()
        turn_ends = min(deadline + 1, time.monotonic() + TURN)
        try:
            if left > 1:
                seconds = min(1, left / (len(workers) - turn) / 15)  # 10 medians, and as much again to warm up
                worker.pipe.send(seconds)
                while (row := worker.hear(turn_ends)) is not None:
                    report["times"].append(row)
                    print(line_of(row), file=sys.stderr, flush=True)
                    modes.remove(row["mode"])
                    report.store()
        except TimeoutError:
            worker.end()  # else it would disturb the next one
        except (EOFError, OSError) as error:
            report["failed"].append("time of " + worker.why(EOFError(error)))
        report["left_out"] += ["time of {} {}".format(worker.name, mode) for mode in modes]
        report.store()


# ---- Time

def run_milliseconds(run, x, calls):
    """Of a call, in a run of several."""
    import torch
    if device() == "cpu":
        began = time.perf_counter()
        for _ in range(calls):
            run(x)
        return (time.perf_counter() - began) * 1e3 / calls
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        run(x)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def call_milliseconds(programs, x, seconds):
    """Of calls of each program, in each of the runs; the programs take turns, so that both see the same machine."""
    slowest = max(run_milliseconds(run, x, 3) for run in programs for _ in range(2))  # the first ones warm up
    calls = max(1, int(seconds * 1e3 / RUNS / slowest))
    runs = [[run_milliseconds(run, x, calls) for run in programs] for _ in range(RUNS)]
    return [list(times) for times in zip(*runs)]


def time_mode(models, mode, programs, row, seconds):
    """Adds "latency_ms": [before, after], "samples_per_s": [before, after] and their ratio in each run to a row; "error" where it
    ends earlier."""
    try:
        if mode != "compile":
            row["latency_ms"] = [statistics.median(times)
                                 for times in call_milliseconds(programs, models.inputs(1), seconds / 2)]
        runs = call_milliseconds(programs, models.inputs(models.many), seconds)
        row["samples_per_s"] = [models.many * 1e3 / statistics.median(times) for times in runs]
        row["ratios"] = [before / after for before, after in zip(*runs)]
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
            yield "{}: {} norms were replaced and {} were not".format(name, c["replaced"], c["left"])
    for r in report["times"]:
        if "error" in r:
            yield "time of {model} {dtype} {mode}: {error}".format(**r)


def cells(row, key, form):
    """Before and after."""
    found = [form.format(value) for value in row.get(key, ())]
    return (found + 2 * ["error" if "error" in row else "-"])[:2]


def line_of(row):
    """Of the table of times."""
    ratios = row.get("ratios", ())
    gain = "{:.3f}".format(statistics.median(ratios)) if ratios else "-"
    return "| " + " | ".join([row["model"], row["dtype"], row["mode"], *cells(row, "latency_ms", "{:.3f}"),
                              *cells(row, "samples_per_s", "{:.0f}"), gain, " ".join(map("{:.3f}".format, ratios))]) + " |"


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
        lines += ["| model | dtype | mode | latency ms, before | after | samples/s, before | after | gain | in each run |",
                  "|---" * 9 + "|", *map(line_of, report["times"]), ""]
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


def run_models(arguments, report, end):
    modes = [mode for mode in MODES if mode in arguments.modes and (mode != "graph" or device() == "cuda")]
    tasks = [(name, dtype, modes, arguments.layers, arguments.tiny, arguments.fuse) for name in MODELS for dtype in DTYPES
             if name in arguments.models and dtype in arguments.dtypes]
    with workers_of(tasks) as workers:
        left = end - time.monotonic()
        checked = collect_checks(workers, report, end - 0.28 * left)  # of 100 s 28 for 12 processes to time
        collect_times(checked, report, end)


def run(arguments, report):
    """Fills the report."""
    end = BEGAN + arguments.seconds - 3  # to end the processes in
    if "host" in arguments.cases:
        with report.step("host"):
            host_overhead(report["host_us"])
    if "training" in arguments.cases:
        with report.step("training"):
            training_steps(report["training"])
    if "examples" in arguments.cases:
        with report.step("examples"):
            run_examples(report, end)
    if arguments.models:
        with report.step("models"):
            run_models(arguments, report, end)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", "--budget", type=float, default=300, help="of all")
    lists = {"cases": CASES, "models": MODELS, "modes": tuple(MODES), "dtypes": DTYPES}
    for name, known in lists.items():
        parser.add_argument("--" + name, type=lambda text: list(filter(None, text.split(","))),
                            help="separated by commas, of {}".format(",".join(known)))
    parser.add_argument("--layers", type=int, help="of each model; its own number unless given")
    parser.add_argument("--fuse", choices=("table", "all", "no"), default="table", help="under torch.compile")
    parser.add_argument("--tiny", action="store_true", help="small models; on the CPU where there is no GPU")
    parser.add_argument("--json", help="a file for all that was found")
    arguments = parser.parse_args()
    for name, known in lists.items():
        unknown = set(getattr(arguments, name) or ()) - set(known)
        if unknown:
            parser.error("--{}: {} is none of {}".format(name, ", ".join(sorted(unknown)), ",".join(known)))
    if arguments.cases is None and arguments.models is None:
        arguments.cases, arguments.models = [] if arguments.tiny else list(CASES), list(MODELS)
    arguments.cases, arguments.models = arguments.cases or [], arguments.models or []  # what is named is all that is asked for
    arguments.modes, arguments.dtypes = arguments.modes or list(MODES), arguments.dtypes or list(DTYPES)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # there are as many processes as cores
    try:
        import torch
        if {name for name in arguments.models if not name.startswith("dit")}:
            import transformers  # noqa: F401
    except ImportError as missing:
        print("Skipped: {}".format(missing), file=sys.stderr)
        return 3
    if not torch.cuda.is_available() and not arguments.tiny:
        print("Skipped: no GPU for PyTorch here", file=sys.stderr)
        return 3
    if not torch.cuda.is_available():
        sys.path.insert(0, os.path.join(ROOT, "tests", "python"))
        import fake_library
        os.environ.update(NORMJIT_LIBRARY=fake_library.build(), NORMJIT_TORCH_TEST_DEVICE="CPU")
    report = new_report(arguments.json, torch=torch.__version__, layers=arguments.layers,
                        fuse=arguments.fuse, device=torch.cuda.get_device_name() if device() == "cuda" else "cpu")
    report.write()  # an error here costs nothing yet
    try:
        with report.time_limit(BEGAN + arguments.seconds - time.monotonic(), "what was under way at the end, and all behind it"):
            run(arguments, report)
    finally:
        print("\n".join(part for part in (table(report), remarks(report)) if part), flush=True)
        print(remarks(report), end="\n" if remarks(report) else "", file=sys.stderr)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
