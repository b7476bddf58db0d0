#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of transformers in ONNX Runtime, with its own norms and with normjit's: results, latency, threads.

    scripts/bench_onnx.py export DIR [--models bert,bert-dynamic,vit,whisper] [--dtypes float16,float32] [--tiny]
    scripts/bench_onnx.py run DIR [--dtypes ...] [--models ...] [--runs 5] [--seconds 4] [--threads 8] [--optimized]
                              [--norms] [--reference] [--json out.json] [--cpu]

export needs PyTorch, transformers, onnx and onnxscript, but neither a GPU nor a download: it builds BERT base, ViT base and
the encoder of Whisper small from their configurations, exports them, and rewrites them with normjit.onnx. In DIR there are
then, for each model and type, plain.onnx, fused.onnx and weights.json. Weights are not among them: `run` makes weights.bin
out of a seed, so that little has to be carried to the machine with the GPU. "bert-dynamic" has dynamic axes, and a mask.

run needs onnxruntime and numpy. For each model it compares, and times in turns, sessions on CUDAExecutionProvider:

    built-in   plain.onnx
    rewritten  fused.onnx, with libnormjit_onnxruntime.so
    optimized  with --optimized, which needs onnx: what ONNX Runtime's optimizer makes of plain.onnx here, rewritten

each plain, with inputs and outputs on the GPU, and in a CUDA graph ("bert-dynamic" has none). It prints the median of the
runs' milliseconds per call and their quotient; ||rewritten - built-in|| / ||built-in||; and whether threads, in turns on two
sessions, with inputs of their own, get the results that one thread gets. --norms adds the time of the norms' kernels, which
PyTorch's profiler sees. --reference, which needs onnx, adds ||session - exact|| / ||exact||: exact is plain.onnx with the same
weights in double precision. --cpu is for tests: the sessions are on the CPU, above a libnormjit that computes there. Exit
status: 0 done, 1 where something differs or failed, 3 where something is missing.
"""
import argparse
import contextlib
import json
import os
import re
import statistics
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))

MODELS = ("bert", "bert-dynamic", "vit", "whisper")
DTYPES = ("float16", "float32")
ALLOWED = {"float32": 1e-5, "float16": 5e-3}  # ||rewritten - built-in|| / ||built-in||, of so many layers
BATCH, STEPS = 8, 128
INLINE = 1 << 10  # bytes of a tensor that stays in the graph
OPSET = 20
OUTPUT = "output"
# Kernels of norms by their names: of ONNX Runtime, and those that the rewritten models have in their place.
NORM_KERNEL = re.compile(r"LayerNorm|RMSNorm|LayerNormalization|normjit_")
ADD_KERNEL = re.compile(r"(?=.*(Elementwise|ElementWise))(?=.*Add)")


# ---- export ----

def build(name, tiny):
    """(a module with one output, its inputs by name, the names of dynamic axes by input)"""
    import torch
    import transformers
    from transformers.models.whisper.modeling_whisper import WhisperEncoder
    torch.manual_seed(1)
    small = dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128) if tiny else {}
    batch, steps = (2, 6) if tiny else (BATCH, STEPS)

    class Wrapped(torch.nn.Module):
        def __init__(self, model, names):
            super().__init__()
            self.model, self.names = model, names

        def forward(self, *inputs):
            return self.model(**dict(zip(self.names, inputs))).last_hidden_state

    axes = {}
    if name.startswith("bert"):
        config = transformers.BertConfig(attn_implementation="eager", **({**small, "vocab_size": 100} if tiny else {}))
        model = transformers.BertModel(config, add_pooling_layer=False)
        inputs = {"input_ids": torch.zeros(batch, steps, dtype=torch.long)}
        if name == "bert-dynamic":
            inputs["attention_mask"] = torch.ones(batch, steps, dtype=torch.long)
            axes = {each: {0: "batch", 1: "steps"} for each in inputs}
    elif name == "vit":
        config = transformers.ViTConfig(attn_implementation="eager", **({**small, "image_size": 32} if tiny else {}))
        model = transformers.ViTModel(config, add_pooling_layer=False)
        inputs = {"pixel_values": torch.zeros(batch, 3, config.image_size, config.image_size)}
    else:
        config = transformers.WhisperConfig(
            attn_implementation="eager", **(dict(encoder_layers=2, d_model=64, encoder_attention_heads=4, encoder_ffn_dim=128,
                                                 max_source_positions=16) if tiny else
                                            dict(encoder_layers=12, d_model=768, encoder_attention_heads=12,
                                                 encoder_ffn_dim=3072)))
        model = WhisperEncoder(config)
        inputs = {"input_features": torch.zeros(1 if not tiny else 2, config.num_mel_bins, 2 * config.max_source_positions)}
    return Wrapped(model.eval(), list(inputs)), inputs, axes


def export(folder, name, dtype, tiny):
    """Writes the files of one model; how many norms were taken, and of how many."""
    import onnx
    import torch
    from normjit.onnx import rewrite
    module, inputs, axes = build(name, tiny)
    kind = getattr(torch, dtype)
    module = module.to(kind)
    inputs = {each: value.to(kind) if value.is_floating_point() else value for each, value in inputs.items()}
    dynamic = None
    if axes:
        dims = {axis: torch.export.Dim(axis, min=1, max=512) for axis in ("batch", "steps")}
        dynamic = (tuple({place: dims[axis] for place, axis in axes[each].items()} for each in inputs),)
    with torch.no_grad():
        program = torch.onnx.export(module, tuple(inputs.values()), dynamo=True, opset_version=OPSET, verbose=False,
                                    dynamic_shapes=dynamic, input_names=list(inputs), output_names=[OUTPUT])
    model = program.model_proto
    os.makedirs(folder, exist_ok=True)
    table = {"inputs": {each: {"shape": list(value.shape), "integers": not value.is_floating_point(),
                               "below": 100 if tiny else 30000} for each, value in inputs.items()},
             "weights": strip(model)}
    with open(os.path.join(folder, "weights.json"), "w") as file:
        json.dump(table, file, indent=1)
    onnx.save(model, os.path.join(folder, "plain.onnx"))
    findings = rewrite(model)
    onnx.save(model, os.path.join(folder, "fused.onnx"))
    return findings


def strip(model):
    """Makes every large tensor of numbers a part of weights.bin; what is needed to make that file."""
    import onnx
    weights, offset = [], 0
    vectors = {name for node in model.graph.node if "Normalization" in node.op_type for name in node.input[1:]}
    for tensor in model.graph.initializer:
        size = len(onnx.numpy_helper.to_array(tensor).tobytes())
        if size <= INLINE or tensor.data_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16):
            continue
        weights.append({"offset": offset, "elements": size // (2 if tensor.data_type == onnx.TensorProto.FLOAT16 else 4),
                        "dtype": "float16" if tensor.data_type == onnx.TensorProto.FLOAT16 else "float32",
                        "mean": 1.0 if tensor.name in vectors and "weight" in tensor.name else 0.0,
                        "deviation": 0.25 if tensor.name in vectors else 0.02})
        for name in ("raw_data", "float_data", "int32_data"):
            tensor.ClearField(name)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", offset), ("length", size)):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, str(value)
        offset += (size + 4095) // 4096 * 4096
    return weights


# ---- run ----

def fill(folder, table):
    """Makes weights.bin, unless it is there."""
    import numpy as np
    path = os.path.join(folder, "weights.bin")
    if os.path.exists(path):
        return
    with open(path + ".tmp", "wb") as file:
        for number, each in enumerate(table["weights"]):
            file.seek(each["offset"])
            made = np.random.default_rng([1, number]).standard_normal(each["elements"], np.float32)
            file.write((made * np.float32(each["deviation"]) + np.float32(each["mean"])).astype(each["dtype"]).tobytes())
        file.truncate((file.tell() + 4095) // 4096 * 4096)
    os.replace(path + ".tmp", path)


def inputs_of(table, dtype, seed, batch=None):
    import numpy as np
    rng = np.random.default_rng(seed)
    feeds = {}
    for name, each in table["inputs"].items():
        shape = [batch or each["shape"][0], *each["shape"][1:]]
        if name == "attention_mask":
            feeds[name] = np.ones(shape, np.int64)
            feeds[name][:, shape[1] * 3 // 4:] = 0
        elif each["integers"]:
            feeds[name] = rng.integers(0, each["below"], shape)
        else:
            feeds[name] = rng.standard_normal(shape, np.float32).astype(dtype)
    return feeds


class Contender:
    """A session with inputs and outputs where it computes."""

    def __init__(self, path, given, feeds, graph=False, optimized_to=None):
        import normjit.onnx
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.register_custom_ops_library(normjit.onnx.library())
        if optimized_to:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            options.optimized_model_filepath = optimized_to
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name",
                                             os.path.basename(optimized_to) + ".bin")
        cuda = ("CUDAExecutionProvider", {"enable_cuda_graph": "1" if graph else "0", "use_tf32": "0"})
        self.session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"] if given.cpu else [cuda, "CPUExecutionProvider"])
        if not given.cpu and "CUDAExecutionProvider" not in self.session.get_providers():
            raise RuntimeError("ONNX Runtime has no CUDAExecutionProvider here")
        self.device = "cpu" if given.cpu else "cuda"
        self.binding = self.bound(feeds)
        for _ in range(3):  # the first ones compile, choose algorithms and capture
            self.call()

    def bound(self, feeds):
        import onnxruntime
        binding = self.session.io_binding()
        self.kept = [onnxruntime.OrtValue.ortvalue_from_numpy(value, self.device, 0) for value in feeds.values()]
        for name, value in zip(feeds, self.kept):
            binding.bind_ortvalue_input(name, value)
        wanted = self.session.run(None, feeds, self.off_graph())[0] if self.device == "cuda" else self.session.run(None, feeds)[0]
        self.output = onnxruntime.OrtValue.ortvalue_from_numpy(wanted, self.device, 0)
        binding.bind_ortvalue_output(OUTPUT, self.output)
        return binding

    @staticmethod
    def off_graph():
        """Of a run beside a session's CUDA graph."""
        import onnxruntime
        options = onnxruntime.RunOptions()
        options.add_run_config_entry("gpu_graph_id", "-1")
        return options

    def call(self):
        self.session.run_with_iobinding(self.binding)

    def result(self):
        self.call()
        return self.output.numpy()

    def milliseconds(self, seconds):
        """Of a call, over about so many seconds."""
        began, calls = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            for _ in range(10):
                self.call()
            calls += 10
        return (time.perf_counter() - began) / calls * 1e3


def distance(found, wanted):
    import numpy as np
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def sessions_of(folder, given, feeds, graph):
    """Contenders by name."""
    made = {"built-in": Contender(os.path.join(folder, "plain.onnx"), given, feeds, graph),
            "rewritten": Contender(os.path.join(folder, "fused.onnx"), given, feeds, graph)}
    if given.optimized:
        made["optimized"] = Contender(optimized_model(folder, given, feeds), given, feeds, graph)
    return made


def optimized_model(folder, given, feeds):
    import onnx
    from normjit.onnx import rewrite
    path = os.path.join(folder, "optimized-cpu.onnx" if given.cpu else "optimized-cuda.onnx")
    fused = path.replace(".onnx", "-fused.onnx")
    if not os.path.exists(fused):
        Contender(os.path.join(folder, "plain.onnx"), given, feeds, optimized_to=path)
        model = onnx.load(path, load_external_data=False)
        rewrite(model)
        onnx.save(model, fused)
    return fused


def model_in_double(folder, cpu=False):
    """The path of plain.onnx in double precision; makes it, unless it is there."""
    import onnx
    from onnx_in_double import in_double
    path = os.path.join(folder, "double-cpu.onnx" if cpu else "double.onnx")
    if not os.path.exists(path):
        model = onnx.load(os.path.join(folder, "plain.onnx"))
        in_double(model, narrow=("Conv", "Erf") if cpu else ())  # which CPUExecutionProvider has in f32 alone
        onnx.save(model, path, save_as_external_data=True, location=os.path.basename(path) + ".bin")
    return path


def exact_result(folder, given, feeds):
    import onnxruntime
    path = model_in_double(folder, given.cpu)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # some fusions compute in f32
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"] if given.cpu else
                                           ["CUDAExecutionProvider", "CPUExecutionProvider"])
    return session.run(None, {name: value.astype("f8") if value.dtype.kind == "f" else value for name, value in feeds.items()})[0]


def norm_microseconds(contender):
    """(of the norms' kernels, of additions, of all kernels) in a call, by PyTorch's profiler."""
    import torch
    torch.cuda.init()
    calls = 20
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            contender.call()
        torch.cuda.synchronize()
    norms = adds = everything = 0.0
    for event in profile.key_averages():
        us = event.self_device_time_total / calls
        everything += us
        norms += us if NORM_KERNEL.search(event.key) else 0
        adds += us if ADD_KERNEL.search(event.key) and not NORM_KERNEL.search(event.key) else 0
    return norms, adds, everything


def run_threads(path, table, dtype, given):
    """How many runs of several threads differed from those of one, how many there were, and runs a second."""
    import numpy as np
    cases = [inputs_of(table, dtype, seed) for seed in range(4)]
    contenders = [Contender(path, given, cases[0]) for _ in range(2)]
    wanted = [contenders[0].session.run(None, case)[0] for case in cases]
    runs, wrong, failed = given.thread_runs, [], []

    def work(number):
        try:
            for turn in range(runs):
                case = (number + turn) % len(cases)
                found = contenders[turn % 2].session.run(None, cases[case])[0]
                if not np.allclose(found.astype("f4"), wanted[case].astype("f4"), rtol=1e-2, atol=1e-2):
                    wrong.append((number, turn))
        except Exception as why:  # is told by the main thread
            failed.append(str(why))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(given.threads)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise RuntimeError(failed[0])
    return len(wrong), runs * given.threads, runs * given.threads / (time.perf_counter() - began)


def measure(folder, name, dtype, given):
    """The lines of one model as they become known, each a dict."""
    with open(os.path.join(folder, "weights.json")) as file:
        table = json.load(file)
    fill(folder, table)
    feeds = inputs_of(table, dtype, 0)
    wanted, exact, profiled = None, None, {}
    if given.reference:
        try:
            exact = exact_result(folder, given, feeds)
        except Exception as why:  # the rest goes on without it
            yield {"model": name, "dtype": dtype, "mode": "reference", "session": "double", "failed": str(why)}
    for mode in ("plain", "graph"):
        if mode == "graph" and (given.cpu or name == "bert-dynamic"):
            continue
        contenders = sessions_of(folder, given, feeds, mode == "graph")
        times = {each: [] for each in contenders}
        for _ in range(given.runs):
            for each, contender in contenders.items():
                times[each].append(contender.milliseconds(given.seconds / given.runs / len(contenders)))
        results = {each: contender.result() for each, contender in contenders.items()}
        wanted = results["built-in"] if wanted is None else wanted
        for each, contender in contenders.items():
            line = {"model": name, "dtype": dtype, "mode": mode, "session": each, "ms": statistics.median(times[each]),
                    "difference": distance(results[each], wanted)}
            line["of_builtin"] = line["ms"] / statistics.median(times["built-in"])
            if exact is not None:
                line["error"] = distance(results[each], exact)
            yield line
        profiled = profiled or contenders
        if name == "bert-dynamic":
            for batch in (1, 3):
                other = inputs_of(table, dtype, batch, batch)
                base = contenders["built-in"].session.run(None, other)[0]
                found = contenders["rewritten"].session.run(None, other)[0]
                yield {"model": name, "dtype": dtype, "mode": "batch {}".format(batch), "session": "rewritten",
                       "difference": distance(found, base)}
        del contenders
    for each, contender in profiled.items() if given.norms else ():  # last: a profiler that has run slows later calls
        norms, adds, everything = norm_microseconds(contender)
        yield {"model": name, "dtype": dtype, "mode": "profile", "session": each, "norms_us": norms, "adds_us": adds,
               "kernels_us": everything}
    del profiled
    for each, path in (("built-in", "plain.onnx"), ("rewritten", "fused.onnx")):
        wrong, runs, rate = run_threads(os.path.join(folder, path), table, dtype, given)
        yield {"model": name, "dtype": dtype, "mode": "{} threads".format(given.threads), "session": each, "wrong": wrong,
               "runs": runs, "runs_per_second": rate}


def text_of(line):
    parts = ["{model:12} {dtype:8} {mode:10} {session:10}".format(**line)]
    if "ms" in line:
        parts.append("{ms:8.3f} ms  {of_builtin:5.3f} of built-in".format(**line))
    if "difference" in line:
        parts.append("difference {difference:.2g}".format(**line))
    if "error" in line:
        parts.append("error {error:.2g}".format(**line))
    if "norms_us" in line:
        parts.append("norms {norms_us:.1f} us, additions {adds_us:.1f}, all kernels {kernels_us:.1f}".format(**line))
    if "wrong" in line:
        parts.append("{wrong} of {runs} runs wrong, {runs_per_second:.0f} a second".format(**line))
    return "  ".join(parts)


def fault_of(line):
    """What is wrong with a line; empty if nothing is."""
    if "difference" in line and not line["difference"] <= ALLOWED[line["dtype"]]:
        return "results differ by {:.2g}, allowed is {:.0e}".format(line["difference"], ALLOWED[line["dtype"]])
    if "failed" in line:
        return line["failed"]
    return "{} runs are wrong".format(line["wrong"]) if line.get("wrong") else ""


def run(given):
    lines, faults = [], []
    for name in given.models:
        for dtype in given.dtypes:
            folder = os.path.join(given.folder, "{}-{}".format(name, dtype))
            if not os.path.isdir(folder):
                print("{} {}: not in {}".format(name, dtype, given.folder))
                continue
            try:
                for line in measure(folder, name, dtype, given):
                    lines.append(line)
                    print(text_of(line), flush=True)
                    if fault_of(line):
                        faults.append("{} {} {} {}: {}".format(name, dtype, line["mode"], line["session"], fault_of(line)))
            except Exception as why:  # of one model; the others go on
                faults.append("{} {}: {}: {}".format(name, dtype, type(why).__name__, why))
            if given.json:
                with open(given.json, "w") as file:
                    json.dump({"lines": lines, "faults": faults}, file, indent=1)
    for fault in faults:
        print("WRONG " + fault, file=sys.stderr)
    if not lines:
        print("nothing was measured", file=sys.stderr)
    return 1 if faults or not lines else 0


def run_export(given):
    for name in given.models:
        for dtype in given.dtypes:
            findings = export(os.path.join(given.folder, "{}-{}".format(name, dtype)), name, dtype, given.tiny)
            left = [finding for finding in findings if not finding.taken]
            print("{} {}: {} of {} norms".format(name, dtype, len(findings) - len(left), len(findings)), flush=True)
            for finding in left:
                print("  {}: {}".format(finding.name, finding.reason))
    return 0


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    def chosen(allowed):
        def names(text):
            for name in text.split(","):
                if name not in allowed:
                    raise argparse.ArgumentTypeError("{} is none of {}".format(name, ", ".join(allowed)))
            return text.split(",")
        return names

    for command in ("export", "run"):
        each = commands.add_parser(command)
        each.add_argument("folder")
        each.add_argument("--models", type=chosen(MODELS), default=list(MODELS))
        each.add_argument("--dtypes", type=chosen(DTYPES), default=list(DTYPES))
    commands.choices["export"].add_argument("--tiny", action="store_true")
    each = commands.choices["run"]
    each.add_argument("--runs", type=int, default=5)
    each.add_argument("--seconds", type=float, default=4.0, help="of timing, for each model, type and mode")
    each.add_argument("--threads", type=int, default=8)
    each.add_argument("--thread-runs", type=int, default=50)
    each.add_argument("--optimized", action="store_true")
    each.add_argument("--norms", action="store_true")
    each.add_argument("--reference", action="store_true")
    each.add_argument("--cpu", action="store_true")
    each.add_argument("--json")
    given = parser.parse_args(arguments)
    try:
        return run_export(given) if given.command == "export" else run(given)
    except ImportError as missing:
        print("something is missing: {}".format(missing), file=sys.stderr)
        return 3


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
