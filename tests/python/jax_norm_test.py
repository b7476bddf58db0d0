#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of normjit.jax.norm and of what stands on it, against the algebra in NumPy and JAX's own derivatives of it.

    NORMJIT_LIBRARY=build/libnormjit.so python3 tests/python/jax_norm_test.py [--fake]

--fake, NORMJIT_TEST_SEED and the exit status 77 are as in jax_layer_norm_test.py.
"""
import contextlib
import ctypes
import functools
import itertools
import operator
import random
import re
import sys
import unittest

import jax_layer_norm_test as base
from jax_layer_norm_test import SEED, Case, gradient, jax, jnp, np, x64
import normjit.jax
from normjit import _library

setUpModule = base.setUpModule
SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
LONG = {short: name for name, short in SHORT.items()}


def rounded(value, dtype):
    return np.asarray(jnp.asarray(value, dtype)).astype(np.float64)


def rows_for(array, x):
    """A row operand with x's shape."""
    return np.broadcast_to(np.asarray(array).astype(np.float64), x.shape)


def algebra(spec, x, in_bias=None, residual=None, weight=None, bias=None):
    """The outputs in f64 by name. The spec is a dictionary of its fields."""
    s = np.asarray(x).astype(np.float64)
    if in_bias is not None:
        s = s + np.asarray(in_bias).astype(np.float64)
    if spec["residual"] == "add":
        s = s + rows_for(residual, s)
    if "sum" in spec["round"]:
        s = rounded(s, residual.dtype if residual is not None else x.dtype)
    mean = s.mean(-1, keepdims=True) if spec["norm"] == "layernorm" else np.zeros(s.shape[:-1] + (1,))
    rstd = 1 / np.sqrt(((s - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
    y = (s - mean) * rstd
    if "norm" in spec["round"]:
        y = rounded(y, x.dtype)
    if weight is not None:
        y = y * (np.asarray(weight).astype(np.float64) + spec["offset"])
    if bias is not None:
        y = y + np.asarray(bias).astype(np.float64)
    y = base.activated(y, spec["activation"])
    if spec["residual"] == "addafter":
        y = y + rows_for(residual, s)
    return {"y": y, "sum": s, "mean": mean[..., 0], "rstd": rstd[..., 0]}


def text_of(spec, columns, dtype, vectors, stream):
    text = "{}/cols={}/{}".format(spec["norm"], columns, SHORT[dtype])
    text += "/w=" + SHORT[vectors] if spec["in_bias"] or spec["affine"] else ""
    text += "/res=" + SHORT[stream] if spec["residual"] or spec["sum"] else ""
    text += "/inb" * spec["in_bias"] + "/" * (spec["residual"] != "") + spec["residual"] + "/sum" * spec["sum"]
    text += "/round=" + spec["round"] if spec["round"] else ""
    if spec["affine"]:
        text += "/" + spec["affine"] + "1" * spec["offset"] + ":rows" * spec["rows"]
    return text + ("/" + spec["activation"] if spec["activation"] else "") + "/stats" * spec["stats"]


def random_spec(choose):
    """A valid one, and the dtypes of x, the vectors and the residual stream."""
    dtype = choose.choice(("float16", "bfloat16", "float32"))
    stream = choose.choice((dtype, "float32"))
    spec = {"norm": choose.choice(("layernorm", "rmsnorm")), "in_bias": choose.random() < 0.4,
            "residual": choose.choice(("", "add", "add", "addafter")), "affine": choose.choice(("", "w", "wb")),
            "offset": choose.randrange(2), "rows": choose.random() < 0.3, "activation": choose.choice((None, "silu", "gelu")),
            "stats": choose.random() < 0.4, "round": ""}
    before = spec["in_bias"] or spec["residual"] == "add"
    spec["sum"] = before and choose.random() < 0.6
    rounds = ["sum"] * (before and stream != "float32" and dtype != "float32" and choose.random() < 0.5)
    rounds += ["norm"] * (spec["affine"] != "" and dtype != "float32" and choose.random() < 0.5)
    spec["round"] = "+".join(rounds)
    if not spec["affine"]:
        spec["offset"], spec["rows"] = 0, False
    if not (spec["residual"] or spec["sum"]):
        stream = dtype
    return spec, dtype, choose.choice((dtype, "float32")), stream


def plain(spec, **given):
    """The outputs in jax.numpy, in the dtype of x, for JAX to differentiate."""
    s = given["x"]
    s = s + given["in_bias"] if "in_bias" in given else s
    s = s + given["residual"] if spec["residual"] == "add" else s
    mean = s.mean(-1, keepdims=True) if spec["norm"] == "layernorm" else jnp.zeros_like(s[..., :1])
    rstd = 1 / jnp.sqrt(((s - mean) ** 2).mean(-1, keepdims=True) + spec.get("eps", 1e-5))
    y = (s - mean) * rstd
    y = y * (given["weight"] + spec["offset"]) if "weight" in given else y
    y = y + given["bias"] if "bias" in given else y
    y = base.applied(spec["activation"], y) * spec.get("scale", 1)
    y = y + given["residual"] if spec["residual"] == "addafter" else y
    return {"y": y, "sum": s, "mean": mean[..., 0], "rstd": rstd[..., 0]}


def found_outputs(text, given):
    results = normjit.jax.norm(text, given["x"], **{name: array for name, array in given.items() if name != "x"})
    if not isinstance(results, normjit.jax.NormOutputs):
        return {"y": results}
    results = {"y": results.out, "sum": results.sum, "mean": results.mean, "rstd": results.rstd}
    return {name: result for name, result in results.items() if result is not None}


def last_spec():
    return (ctypes.c_char * 512).in_dll(_library.load(), "fake_spec").value.decode()


class Gradients(Case):
    def cotangents(self, outputs):
        return {name: self.array(*result.shape, dtype=result.dtype) for name, result in outputs.items()}

    @contextlib.contextmanager
    def launches(self, number):
        before = base.FAKE.launches if base.FAKE else 0
        yield
        if base.FAKE:
            self.assertEqual(base.FAKE.launches - before, number)

    @staticmethod
    def pullback(outputs, text, given, moving, names):
        """The function of cotangents of outputs, those of these names, that gives the gradients of operands."""
        def function(some):
            results = outputs(text, {**given, **some})
            return {name: results[name] for name in names}

        made, backward = jax.vjp(function, {name: given[name] for name in moving})
        jax.block_until_ready(made)
        return lambda cotangents: jax.block_until_ready(backward(cotangents)[0])


class GatesAndModulations(Gradients):
    """Against the formula in jax.numpy, values and derivatives."""
    SPECS = ("layernorm/cols={}/mod", "layernorm/cols={}/mods0:table/wb/silu", "rmsnorm/cols={}/gateafter:tanh:table/addafter/w",
             "layernorm/cols={}/inb/gate:table/add/sum/mod:table", "rmsnorm/cols={}/gate:silu/sum/w/mods", "rmsnorm/cols={}/gateafter")

    @staticmethod
    def plain(text, given, eps=1e-5):
        g = {name: jnp.asarray(array) for name, array in given.items()}

        def of(name):
            return g[name] + g.get(name + "_table", 0)

        function = {"silu": jax.nn.silu, "tanh": jnp.tanh}.get((re.search(":(silu|tanh)", text) or [None, None])[1], lambda z: z)
        s = g["x"] + g.get("in_bias", 0)
        s = s * function(of("gate")) if re.search("/gate(?!after)", text) else s
        s = s + g["residual"] if re.search("/add(/|$)", text) else s
        mean = s.mean(-1, keepdims=True) if text.startswith("layernorm") else 0
        y = (s - mean) / jnp.sqrt(((s - mean) ** 2).mean(-1, keepdims=True) + eps)
        y = y * g.get("weight", 1) + g.get("bias", 0)
        y = y * (of("mod_scale") + ("0" not in re.search("mods?0?", text)[0])) if "mod_scale" in g else y
        y = y + of("mod_shift") if "mod_shift" in g else y
        y = jax.nn.silu(y) if text.endswith("/silu") else y
        y = y * function(of("gate")) if "gateafter" in text else y
        y = y + g["residual"] if "addafter" in text else y
        return {"y": y, "sum": s} if "/sum" in text else {"y": y}

    def operands(self, text, shape, samples):
        given = {"x": self.array(*shape)}
        for pattern, name, own in (("/inb", "in_bias", shape[-1:]), ("gate", "gate", samples), ("add", "residual", shape),
                                   ("/w", "weight", shape[-1:]), ("/wb", "bias", shape[-1:]), ("mod", "mod_scale", samples),
                                   ("mod(?!s)", "mod_shift", samples)):
            if re.search(pattern, text):
                given[name] = self.array(*own)
        tables = [("gate_table", "gate[a-z:]*:table"), ("mod_scale_table", "mods?0?:table"), ("mod_shift_table", "mod0?:table")]
        given.update({name: self.array(shape[-1]) for name, pattern in tables if re.search(pattern, text)})
        return given

    def test_values_and_gradients(self):
        for text, samples in itertools.product(self.SPECS, ((3, 1), (3, 4), (1, 1), (1, 4), (4,), ())):
            text, shape = text.format(24), (3, 4, 24)
            given = self.operands(text, shape, (*samples, 24))
            with self.subTest(text=text, samples=samples):
                found, wanted = found_outputs(text, given), self.plain(text, given)
                self.assertEqual(list(found), list(wanted))
                for name, result in found.items():
                    self.assertClose(result, wanted[name], None, name)
                cotangents = {name: self.array(*shape) for name in wanted}
                grads = [gradient(lambda all_: sum((outputs(all_)[name] * cotangents[name]).sum() for name in wanted), 0)(given)
                         for outputs in (lambda all_: found_outputs(text, all_), lambda all_: self.plain(text, all_))]
                for name in given:
                    self.assertClose(grads[0][name], grads[1][name], 5e-4, name)

    def check_gradients(self, text, given, spec, launches=1, moving=None, names=None):
        """From one launch of this spec."""
        outputs = found_outputs(text, given)
        cotangents = self.cotangents({name: outputs[name] for name in names or outputs})
        with self.subTest(text=text, shapes={name: part.shape for name, part in given.items()}, moving=moving, names=names):
            backward = self.pullback(found_outputs, text, given, moving or list(given), cotangents)
            with self.launches(launches):
                found = backward(cotangents)
            if base.FAKE and spec:
                self.assertEqual(last_spec(), spec)
            wide = [{name: part.astype("float32") for name, part in some.items()} for some in (given, cotangents)]
            wanted = self.pullback(self.plain, text, wide[0], moving or list(given), cotangents)(wide[1])
            for name in moving or given:
                self.assertEqual((found[name].dtype, found[name].shape), (given[name].dtype, given[name].shape))
                self.assertClose(found[name], wanted[name], 0.1 if "bf16" in text else 5e-4, name)

    def test_gradients_from_one_kernel(self):
        row, one, few = (3, 4), (3, 1), (1, 1)
        for tail, samples, spec in (
                ("f32/gate/w", row, "f32/eps=1e-05/gate/w"),
                ("bf16/gate:silu/sum/w", row, "bf16/eps=1e-05/gate:silu/dsum/w"),
                ("bf16/gate:silu/sum/w", one, "bf16/eps=1e-05/dsum/w"),  # and from the sum by JAX
                ("f32/inb/gate:table/add/sum/wb", one, "f32/eps=1e-05/dsum/wb"),
                ("f32/inb/gate/sum/mod/silu", row, "f32/eps=1e-05/dsum/mod/silu"),
                ("bf16/gateafter:tanh/wb", row, "bf16/eps=1e-05/gateafter:tanh/wb"),
                ("f32/add/sum/w/mods", row, "f32/eps=1e-05/dsum/w/mods"),
                ("bf16/mod", one, "bf16/eps=1e-05/mod"),
                ("bf16/w=f32/mod:table/wb/silu", one, "bf16/w=f32/dw=f32/mod=f32/eps=1e-05/wb/mod/silu"),
                ("f32/mods0:table/w", few, "f32/eps=1e-05/w/mods0"),
                ("f32/inb/add/sum/mod0", (), "f32/eps=1e-05/dsum/mod0")):
            for norm in ("layernorm", "rmsnorm"):
                text = "{}/cols=24/{}".format(norm, tail)
                given = {name: part.astype("bfloat16") if "bf16" in tail and not ("w=f32" in tail and part.ndim == 1) else part
                         for name, part in self.operands(text, (3, 4, 24), (*samples, 24)).items()}
                self.check_gradients(text, given, "{}_bwd/cols=24/{}".format(norm, spec))

    def test_gradients_that_are_asked_for(self):
        text, head = "layernorm/cols=24/f32/gate:silu/sum/wb", "layernorm_bwd/cols=24/f32/eps=1e-05/gate:silu"
        given = self.operands(text, (3, 4, 24), (3, 4, 24))
        for moving, names, spec in ((["gate"], ["y"], "/w/need=dx"), (["x", "weight"], ["y"], "/w"), (["weight"], ["y"], "/w/need=dw"),
                                    (["bias"], ["y"], "/wb/need=db"), (["gate", "bias"], None, "/dsum/wb/need=dx+db"),
                                    (["x", "gate"], ["sum"], "/dsum/w/need=dx")):
            self.check_gradients(text, given, head + spec, moving=moving, names=names)
        text, head = "layernorm/cols=24/f32/add/sum/wb/mod", "layernorm_bwd/cols=24/f32/eps=1e-05"
        given = self.operands(text, (3, 4, 24), (3, 1, 24))
        for moving, names, spec in ((["mod_scale"], ["y"], "/wb/mod/need=dx"), (["mod_shift", "residual"], None, "/dsum/wb/mod/need=dx"),
                                    (["weight", "bias"], ["y"], "/wb/mod/need=dw+db"), (["x"], ["y"], "/wb/mod/need=dx")):
            self.check_gradients(text, given, head + spec, moving=moving, names=names)
        self.check_gradients(text, given, None, launches=0, moving=["x", "residual"], names=["sum"])

    def test_gradients_without_a_kernel(self):
        x, one = (3, 4, 24), (3, 1, 24)
        for tail, samples in (("gateafter:table", x), ("gateafter", one), ("gate/add", x), ("mod/gateafter", x), ("inb/mod", one)):
            text = "layernorm/cols=24/f32/" + tail
            self.check_gradients(text, self.operands(text, x, samples), None, launches=0)
        text = "layernorm/cols=24/f32/mod"  # other rows of scale than of shift
        self.check_gradients(text, {**self.operands(text, x, one), "mod_shift": self.array(*x)}, None, launches=0)

    def test_derivatives_of_higher_order(self):
        with x64():
            for text, samples in (("rmsnorm/cols=7/f64/gate:silu/sum/w/eps=0.1", (2, 3)), ("layernorm/cols=7/f64/wb/mod/silu/eps=0.1", (2, 1)),
                                  ("layernorm/cols=7/f64/inb/gate:table/add/sum/mod0:table/eps=0.1", (2, 1))):
                primals, changes = [{name: part.astype("float64") for name, part in self.operands(
                    text, (2, 3, 7), (*samples, 7)).items()} for _ in range(2)]

                def derivatives(outputs):
                    def loss(given):
                        return sum(jnp.sin(result).sum() for result in outputs(text, given).values())

                    def squares(given):
                        return sum((part ** 2).sum() for part in jax.tree.leaves(jax.grad(loss)(given)))

                    return jax.jit(lambda given: [jax.jvp(loss, (given,), (changes,)), jax.grad(squares)(given),
                                                  jax.jvp(jax.grad(loss), (given,), (changes,))[1]])

                with self.subTest(text=text):
                    plain_outputs = lambda text, given: self.plain(text.replace("/eps=0.1", ""), given, 0.1)  # noqa: E731
                    for a, b in zip(*[jax.tree.leaves(derivatives(outputs)(primals)) for outputs in (found_outputs, plain_outputs)]):
                        self.assertClose(a, b, 1e-8)

    def test_vmap_of_gradients(self):
        """Rows of a batch are more rows."""
        for text, samples in (("rmsnorm/cols=24/f32/gate:silu", (2, 3, 4)), ("layernorm/cols=24/f32/mod", (2, 3, 1))):
            given = self.operands(text, (2, 3, 4, 24), (*samples, 24))

            def gradients(outputs):
                return jax.vmap(jax.grad(lambda given: jnp.sin(outputs(text, given)["y"]).sum()))

            with self.launches(2):
                found = jax.block_until_ready(jax.jit(gradients(found_outputs))(given))
            for name, part in gradients(self.plain)(given).items():
                self.assertClose(found[name], part, 5e-4, name)

    def test_vmap(self):
        for text, moving in itertools.product(self.SPECS, (("x",), ("gate", "mod_scale"), ("x", "gate", "mod_shift"), ("gate_table",))):
            text = text.format(8)
            given = self.operands(text, (2, 3, 8), (2, 1, 8))
            axes = {name: 0 if name in moving else None for name in given}
            if set(axes.values()) == {None}:
                continue
            batch = {name: jnp.stack([array, 2 * array]) if axes[name] == 0 else array for name, array in given.items()}
            with self.subTest(text=text, moving=moving):
                found = jax.vmap(lambda all_: found_outputs(text, all_), in_axes=(axes,))(batch)
                for i in range(2):
                    one = self.plain(text, {name: array[i] if axes[name] == 0 else array for name, array in batch.items()})
                    for name, result in found.items():
                        self.assertClose(result[i], one[name], None, name)

    def test_shapes_that_do_not_fit(self):
        x = self.array(2, 3, 8)
        for shape in ((2, 3, 1), (3, 1, 8), (2, 2, 8), (1, 2, 3, 8)):
            with self.assertRaisesRegex(ValueError, "mod_scale has shape .* must broadcast"):
                normjit.jax.norm("layernorm/cols=8/mods", x, mod_scale=self.array(*shape))


class ChannelsFirst(Case):
    """Against the formula of rows, with the channels moved behind."""
    TAILS = ("", "/wb", "/w/stats", "/add/sum/wb", "/inb/add/sum/wb/silu/stats", "/addafter/w1")
    SHAPES = ((2, 8, 5, 6), (3, 16, 7, 7), (2, 31, 9), (1, 8, 3, 4, 5), (2, 8, 1, 1))

    def operands(self, text, shape, dtype="float32"):
        given = {"x": self.array(*shape, dtype=dtype)}
        for field, name, own in (("inb", "in_bias", shape[1:2]), ("add", "residual", shape), ("w", "weight", shape[1:2]),
                                 ("wb", "bias", shape[1:2])):
            if re.search("/" + field, text):
                given[name] = self.array(*own, dtype=dtype)
        return given

    @staticmethod
    def plain(text, given):
        given = {name: jnp.moveaxis(array, 1, -1) if array.ndim > 2 else array for name, array in given.items()}
        spec = {"norm": text.split("/")[0], "residual": "addafter" if "after" in text else "add" if "/add" in text else "",
                "offset": int("w1" in text), "activation": "silu" if "silu" in text else None}
        outputs = plain(spec, **given)
        names = ["y"] + ["sum"] * ("/sum" in text)
        names += (["mean"] if text.startswith("layer") else []) + ["rstd"] if "/stats" in text else []
        return {name: jnp.moveaxis(outputs[name], -1, 1) if name in ("y", "sum") else outputs[name] for name in names}

    def texts(self, columns, dtype="f32"):
        for head, tail in itertools.product(("layernorm", "rmsnorm"), self.TAILS):
            yield "{}/cols={}/{}{}/cf".format(head, columns, dtype, tail)

    def test_values(self):
        for shape, dtype in itertools.product(self.SHAPES, ("float32", "bfloat16")):
            for text in self.texts(shape[1], SHORT[dtype]):
                given = self.operands(text, shape, dtype)
                with self.subTest(text=text, shape=shape):
                    found = found_outputs(text, given)
                    wanted = self.plain(text, {name: array.astype("float32") for name, array in given.items()})
                    self.assertEqual(list(found), list(wanted))
                    for name, result in found.items():
                        self.assertEqual(result.shape, wanted[name].shape)
                        self.assertClose(result, wanted[name], None, name)

    def test_gradients(self):
        for text in self.texts(8):
            given = self.operands(text, (2, 8, 3, 4))
            wanted = self.plain(text, given)
            cotangents = {name: self.array(*array.shape) for name, array in wanted.items()}
            with self.subTest(text=text):
                grads = [gradient(lambda all_: sum((outputs(all_)[name] * cotangents[name]).sum() for name in wanted), 0)(given)
                         for outputs in (lambda all_: found_outputs(text, all_), lambda all_: self.plain(text, all_))]
                for name in given:
                    self.assertClose(grads[0][name], grads[1][name], 5e-4, name)

    def test_a_residual_that_samples_share(self):
        text = "layernorm/cols=8/f32/add/sum/w/cf"
        given = self.operands(text, (3, 8, 3, 4))
        given["residual"] = given["residual"][0]
        whole = lambda all_: {**all_, "residual": jnp.broadcast_to(all_["residual"], (3, 8, 3, 4))}  # noqa: E731
        wanted = self.plain(text, whole(given))
        for name, result in found_outputs(text, given).items():
            self.assertClose(result, wanted[name], None, name)
        grads = [gradient(lambda all_: (outputs(all_)["y"] ** 3).sum(), 0)(given)
                 for outputs in (lambda all_: found_outputs(text, all_), lambda all_: self.plain(text, whole(all_)))]
        for name in given:
            self.assertClose(grads[0][name], grads[1][name], 5e-3, name)

    def test_vmap(self):
        for text, moving in itertools.product(self.texts(8), (("x",), ("x", "residual"), ("residual",), ("weight",))):
            for shared in (False, True):
                given = self.operands(text, (2, 8, 3, 4))
                if shared and "residual" in given:
                    given["residual"] = given["residual"][:1].reshape(8, 3, 4)
                axes = {name: 0 if name in moving else None for name in given}
                if set(axes.values()) == {None}:
                    continue
                batch = {name: jnp.stack([array, 2 * array, 3 * array]) if axes[name] == 0 else array
                         for name, array in given.items()}
                with self.subTest(text=text, moving=moving, shared=shared):
                    found = jax.vmap(lambda all_: found_outputs(text, all_), in_axes=(axes,))(batch)
                    for i in range(3):
                        one = {name: array[i] if axes[name] == 0 else array for name, array in batch.items()}
                        if shared and "residual" in one:
                            one["residual"] = jnp.broadcast_to(one["residual"], (2, 8, 3, 4))
                        for name, result in self.plain(text, one).items():
                            self.assertClose(found[name][i], result, None, name)

    def test_nothing_to_do(self):
        for shape in ((0, 8, 3, 3), (2, 8, 0, 3)):
            found = normjit.jax.norm("layernorm/cols=8/f32/stats/cf", jnp.zeros(shape))
            self.assertEqual((found.out.shape, found.mean.shape), (shape, (shape[0], *shape[2:])))

    def test_what_does_not_fit(self):
        x = self.array(2, 8, 3, 3)
        norm, text = normjit.jax.norm, "layernorm/cols=8/f32{}/cf"
        for wrong in (x[:, :4], jnp.moveaxis(x, 1, -1), x[:, :, 0, 0], x[0, :, 0]):
            with self.assertRaisesRegex(ValueError, r"x has shape .*\[samples, 8 channels, positions...\]"):
                norm(text.format(""), wrong)
        with self.assertRaisesRegex(ValueError, r"weight has shape \(8, 1, 1\); the channels of x, .* have shape \(8,\)"):
            norm(text.format("/w"), x, weight=self.array(8, 1, 1))
        with self.assertRaisesRegex(ValueError, r"residual has shape \(3, 3\); it must be that of x"):
            norm(text.format("/add"), x, residual=self.array(3, 3))
        with self.assertRaisesRegex(ValueError, "channels first exclude modulation"):
            norm(text.format("/mods"), x, mod_scale=x)


class Algebra(Case):
    def operands(self, spec, shape, dtype, vectors, stream, row_shape):
        given = {"x": self.array(*shape, dtype=dtype)}
        if spec["in_bias"]:
            given["in_bias"] = self.array(shape[-1], dtype=vectors)
        if spec["residual"]:
            given["residual"] = self.array(*row_shape, dtype=stream)
        for name in ("weight", "bias")[:len(spec["affine"])]:
            given[name] = self.array(*(row_shape if spec["rows"] else shape[-1:]), dtype=vectors)
        return given

    def test_random_specs(self):
        choose = random.Random(SEED)
        for _ in range(30):
            spec, dtype, vectors, stream = random_spec(choose)
            shape = (choose.choice((1, 2, 3)), choose.choice((1, 4)), choose.choice((1, 7, 40)))
            given = self.operands(spec, shape, dtype, vectors, stream, shape[choose.randrange(3):])
            text = text_of(spec, shape[-1], dtype, vectors, stream)
            with self.subTest(text=text, shapes={name: array.shape for name, array in given.items()}):
                wanted, found = algebra(spec, **given), found_outputs(text, given)
                names = ["y"] + ["sum"] * spec["sum"]
                names += (["mean"] if spec["norm"] == "layernorm" else []) + ["rstd"] if spec["stats"] else []
                self.assertEqual(list(found), names)
                self.assertEqual(found["y"].dtype.name, dtype)
                for name, result in found.items():
                    # What is rounded on the way may come out on the other side of a tie.
                    self.assertClose(result, wanted[name], 4e-2 if spec["round"] and name == "y" else None, name)
                if spec["sum"]:
                    self.assertEqual(found["sum"].dtype.name, stream)

    def test_gradients_of_every_stage(self):
        choose = random.Random(SEED)
        for norm, residual, affine, rows in itertools.product(("layernorm", "rmsnorm"), ("", "add", "addafter"),
                                                              ("", "w", "wb"), (False, True)):
            if rows and not affine:
                continue
            spec = {"norm": norm, "residual": residual, "affine": affine, "rows": rows, "in_bias": choose.random() < 0.7,
                    "activation": choose.choice((None, "silu")), "offset": int(affine != "" and choose.random() < 0.5),
                    "stats": choose.random() < 0.5, "round": ""}
            spec["sum"] = spec["in_bias"] or residual == "add"
            given = self.operands(spec, (3, 4, 24), "float32", "float32", "float32", choose.choice(((3, 4, 24), (4, 24), (24,))))
            text = text_of(spec, 24, "float32", "float32", "float32")
            cotangents = {"y": self.array(3, 4, 24), "sum": self.array(3, 4, 24), "mean": self.array(3, 4),
                          "rstd": self.array(3, 4)}
            names = list(found_outputs(text, given))
            with self.subTest(text=text):
                moving = choose.sample(list(given), choose.randint(1, len(given)))
                fixed = {name: array for name, array in given.items() if name not in moving}
                # jax.grad of a dictionary gives one of gradients.
                found, wanted = [gradient(lambda some: sum(
                    (outputs({**fixed, **some})[name] * cotangents[name]).sum() for name in names), 0)(
                        {name: given[name] for name in moving})
                    for outputs in (lambda all_: found_outputs(text, all_), lambda all_: plain(spec, **all_))]
                for name in moving:
                    self.assertClose(found[name], wanted[name], 5e-4, name)

    def test_both_modes_and_second_order(self):
        with x64():
            spec = {"norm": "rmsnorm", "residual": "add", "affine": "w", "rows": False, "in_bias": True, "activation": "silu",
                    "offset": 1, "stats": False, "round": "", "sum": True}
            text = text_of(spec, 7, "float64", "float64", "float64")
            primals, tangents = [self.operands(spec, (3, 7), "float64", "float64", "float64", (3, 7)) for _ in range(2)]

            def derivatives(outputs):
                def loss(given):
                    results = outputs(given)
                    return (results["y"] ** 3).sum() + (results["sum"] ** 2).sum()
                return jax.jit(lambda: (jax.jvp(lambda given: (outputs(given)["y"], outputs(given)["sum"]), (primals,), (tangents,)),
                                        jax.jvp(jax.grad(loss), (primals,), (tangents,))))

            found, wanted = [jax.tree.leaves(derivatives(outputs)()) for outputs in (
                lambda given: found_outputs(text, given), lambda given: plain(spec, **given))]
            for a, b in zip(found, wanted):
                self.assertClose(a, b, 1e-9)

    def test_gradients_of_roundings_are_those_without(self):
        x, r, w = self.array(4, 32, dtype="bfloat16"), self.array(4, 32, dtype="bfloat16"), self.array(32, dtype="bfloat16")
        grads = [gradient(lambda x, r, w: sum(out.astype(jnp.float32).sum() for out in normjit.jax.norm(
            "rmsnorm/cols=32/bf16/add/sum/{}w".format(rounding), x, residual=r, weight=w)[:2]), (0, 1, 2))(x, r, w)
            for rounding in ("", "round=sum+norm/")]
        for a, b in zip(*grads):
            self.assertClose(a, np.asarray(b).astype(np.float64), 6e-2)

    def test_nothing_to_do(self):
        x, w = self.array(0, 8), self.array(8)
        results = normjit.jax.norm("layernorm/cols=8/f32/add/sum/w/stats", x, residual=x, weight=w)
        self.assertEqual([result.shape for result in results[:4]], [(0, 8), (0, 8), (0,), (0,)])
        results = normjit.jax.norm("rmsnorm/cols=8/f32/out=e4m3/w/q=row", x, weight=w)
        self.assertEqual((results.out.shape, results.out.dtype.name, results.row_scale.shape), ((0, 8), "float8_e4m3fn", (0,)))
        self.assertFalse(np.any(gradient(lambda w: normjit.jax.norm("rmsnorm/cols=8/f32/w", x, weight=w).sum(), 0)(w)))


class Rows(Case):
    def test_the_columns_may_be_several_axes(self):
        x, r = self.array(3, 4, 5), self.array(4, 5)
        w = self.array(20)
        y = normjit.jax.norm("layernorm/cols=20/f32/add/w", x, residual=r, weight=w)
        flat = base.reference((x + r).reshape(3, 20), w)
        self.assertClose(y, flat.reshape(3, 4, 5))
        self.assertClose(normjit.jax.norm("layernorm/cols=20/f32/add/w", x, residual=r, weight=w.reshape(4, 5)),
                         flat.reshape(3, 4, 5))

    def test_weights_of_each_head(self):
        x, w = self.array(5, 4, 16), self.array(4, 16)
        wanted = np.stack([algebra({"norm": "rmsnorm", "residual": "", "round": "", "offset": 0, "activation": None},
                                   x[:, head], weight=w[head])["y"] for head in range(4)], 1)
        self.assertClose(normjit.jax.norm("rmsnorm/cols=16/f32/w:rows", x, weight=w), wanted)


class Batches(Case):
    TEXT = "rmsnorm/cols=24/f32/add/sum/w:rows"

    def outputs(self, x, r, w):
        return normjit.jax.norm(self.TEXT, x, residual=r, weight=w)[:2]

    def test_vmap_of_every_choice_of_operands(self):
        spec = {"norm": "rmsnorm", "residual": "add", "round": "", "offset": 0, "activation": None}
        for r_shape, w_shape in itertools.product(((6, 24), (24,)), repeat=2):
            for axes in itertools.product((0, None), repeat=3):
                if axes == (None, None, None):
                    continue
                shapes = [(6, 24), r_shape, w_shape]
                arrays = [self.array(*((3,) * (axis == 0)), *shape) for axis, shape in zip(axes, shapes)]
                one = lambda i: [array[i] if axis == 0 else array for axis, array in zip(axes, arrays)]
                with self.subTest(axes=axes, r=r_shape, w=w_shape):
                    launches = base.FAKE.launches if base.FAKE else 0
                    found = jax.vmap(self.outputs, axes)(*arrays)
                    if base.FAKE:
                        self.assertEqual(base.FAKE.launches - launches, 1)
                    for i in range(3):
                        x, r, w = one(i)
                        wanted = algebra(spec, x, residual=r, weight=w)
                        self.assertClose(found[0][i], wanted["y"])
                        self.assertClose(found[1][i], wanted["sum"])

    def test_vmap_over_a_vector_takes_the_formula(self):
        x, b = self.array(3, 6, 24), self.array(3, 24)
        launches = base.FAKE.launches if base.FAKE else 0
        found = jax.vmap(lambda x, b: normjit.jax.norm("layernorm/cols=24/f32/inb/sum", x, in_bias=b))(x, b)
        if base.FAKE:
            self.assertEqual(base.FAKE.launches, launches)
        self.assertClose(found.out, base.reference(x + b[:, None]))
        self.assertClose(found.sum, np.asarray(x + b[:, None]))


class EightBits(Case):
    """Rows of 1 and -1 without an epsilon are their own norms, so that y is the weight."""
    TYPES = {"e4m3": ("float8_e4m3fn", 448.0), "e5m2": ("float8_e5m2", 57344.0), "s8": ("int8", 127.0)}

    def right(self, y, name, form, given):
        """y in 8 bits, in f32, and the scales of its rows."""
        dtype, largest = self.TYPES[name]
        scales, one = None, np.float32(1)
        if form.startswith("/q=tensor"):
            y = y * (given if form.endswith(":inv") else one / given)
        elif form == "/q=row":
            floor = np.float32(2.0 ** -23 if name == "s8" else 1 / (512 * largest))
            scales = np.maximum(np.abs(y).max(-1) / np.float32(largest), floor)
            y = y * (one / scales)[:, None] if name == "s8" else y / scales[:, None]
        if name == "s8":
            y = np.round(np.nan_to_num(y))
        return np.clip(y, -largest - (name == "s8"), largest).astype(jnp.dtype(dtype)).astype(np.float32), scales

    def test_bytes(self):
        generator = np.random.default_rng(SEED)
        signs = generator.choice(np.float32([-1, 1]), (4, 512))
        w = (generator.standard_normal(512) * 2.0 ** generator.integers(-14, 12, 512)).astype(np.float32)
        w[:3], given = (0.0, 1e6, -1e6), np.float32(0.37)
        for name, form, rounding in itertools.product(self.TYPES, ("", "/q=tensor", "/q=tensor:inv", "/q=row"), ("", "/round=y")):
            if not form and (rounding or name == "s8"):
                continue
            text = "rmsnorm/cols=512/bf16/out={}/w=f32/eps=0{}/w{}".format(name, rounding, form)
            operands = {"tensor_scale": jnp.asarray(given)} if "tensor" in form else {}
            call = functools.partial(normjit.jax.norm, text, jnp.asarray(signs, jnp.bfloat16), **operands)
            y = np.asarray(jnp.asarray(signs * w, jnp.bfloat16)).astype(np.float32) if rounding else signs * w
            right, scales = self.right(y, name, form, given)
            with self.subTest(spec=text):
                found = call(weight=jnp.asarray(w))
                out = found.out if form == "/q=row" else found
                self.assertEqual(out.dtype.name, self.TYPES[name][0])
                np.testing.assert_array_equal(np.asarray(out).astype(np.float32), right)
                if scales is not None:
                    np.testing.assert_array_equal(np.asarray(found.row_scale), scales)
            with self.subTest(spec=text, by="the formula"):  # to which XLA's conversions belong
                found = jax.vmap(lambda w: call(weight=w))(jnp.asarray(w)[None])
                out = np.asarray(found.out if form == "/q=row" else found)[0].astype(np.float32)
                self.assertGreater((out == right).mean(), 0.98)
                np.testing.assert_allclose(out, right, rtol=0.26, atol=1.01 if name == "s8" else 2.0 ** -9)
                if scales is not None:
                    np.testing.assert_allclose(found.row_scale[0], scales, rtol=1e-6)

    def test_vmap(self):
        x, t = self.array(3, 6, 24), jnp.float32(0.05)
        launches = base.FAKE.launches if base.FAKE else 0
        found = jax.vmap(lambda x: normjit.jax.norm("rmsnorm/cols=24/f32/out=s8/add/sum/q=row", x, residual=x))(x)
        by_tensor = jax.vmap(lambda x: normjit.jax.norm("rmsnorm/cols=24/f32/out=s8/q=tensor", x, tensor_scale=t))(x)
        if base.FAKE:
            self.assertEqual(base.FAKE.launches - launches, 2)
        self.assertEqual((found.row_scale.shape, found.sum.shape, by_tensor.shape), ((3, 6), (3, 6, 24), (3, 6, 24)))
        spec = {"norm": "rmsnorm", "residual": "", "round": "", "offset": 0, "activation": None}
        y = algebra(spec, np.asarray(x).reshape(18, 24))["y"].reshape(3, 6, 24)
        self.assertLess(np.abs(np.asarray(by_tensor) * 0.05 - np.clip(y, -128 * 0.05, 127 * 0.05)).max(), 0.0251)
        error = np.asarray(found.out) * np.asarray(found.row_scale)[..., None] - y
        self.assertLess((np.abs(error) / np.asarray(found.row_scale)[..., None]).max(), 0.501)

    def test_what_does_not_fit(self):
        x, text = self.array(4, 8), "rmsnorm/cols=8/f32/out=e4m3/q=tensor"
        for kind, message, call in (
                (ValueError, "eps=1e-05/q=tensor has tensor_scale; give it", lambda: normjit.jax.norm(text, x)),
                (ValueError, "tensor_scale has shape (2,); it must be one number",
                 lambda: normjit.jax.norm(text, x, tensor_scale=jnp.ones(2))),
                (TypeError, "tensor_scale is bfloat16", lambda: normjit.jax.norm(text, x, tensor_scale=jnp.ones((), jnp.bfloat16))),
                (TypeError, "results of 8 and 4 bits have no derivatives",
                 lambda: jax.jvp(lambda x: normjit.jax.norm(text, x, tensor_scale=jnp.float32(1)), (x,), (x,)))):
            with self.subTest(message=message), self.assertRaisesRegex(kind, re.escape(message)):
                call()


class Blocks(Case):
    """Scales of blocks, also and amax, as EightBits has it. numpy has the numbers of 8 and 4 bits from ml_dtypes."""
    TYPES = {**EightBits.TYPES, "e2m1": ("float4_e2m1fn", 6.0)}
    FORMS = [(16, "e8m0"), (16, "e4m3"), (32, "e8m0"), (64, "f32"), (64, "p2"), (128, "e8m0"), (128, "p2")]

    def right(self, y, name, block, form, given):
        """y in 8 or 4 bits, in f32; the scales of blocks in f32, and as they are stored, [rows, K]."""
        dtype, largest = self.TYPES[name]
        largest, one = np.float32(largest), np.float32(1)
        parts = y.reshape(len(y), -1, block)
        most = np.abs(parts).max(-1)
        if form == "e4m3":
            stored = np.clip(given * (most * (one / largest)), -448, 448).astype("float8_e4m3fn")
            scales = stored.astype(np.float32)
            parts = parts * np.divide(given, scales, where=scales != 0, out=np.zeros_like(scales))[..., None]
        else:
            scales = np.maximum(most, np.float32(1e-10)) / largest
            if form != "f32":
                mantissa, exponent = np.frexp(scales)
                exponent -= mantissa == 0.5
                scales = np.ldexp(one, exponent)
            stored = (exponent + 127).astype(np.uint8).view("float8_e8m0fnu") if form == "e8m0" else scales
            divides = form == "f32" and name != "s8"
            parts = parts / scales[..., None] if divides else parts * (one / scales)[..., None]
        y = parts.reshape(y.shape)
        y = np.round(y) if name == "s8" else y
        return np.clip(y, -largest - (name == "s8"), largest).astype(jnp.dtype(dtype)).astype(np.float32), scales, stored

    def numbers(self, out):
        """A result in f32, one for each column."""
        out = np.asarray(out)
        if out.dtype == np.uint8:
            out = np.stack([out & 15, out >> 4], -1).reshape(*out.shape[:-1], -1).view("float4_e2m1fn")
        return out.astype(np.float32)

    def laid_out(self, stored, layout):
        rows, blocks = stored.shape
        up = lambda number, to: -(-number // to) * to  # noqa: E731
        if layout == "rows":
            return stored
        if layout == "cols":
            places = np.zeros((blocks, up(rows, 4)), stored.dtype)
            places[:, :rows] = stored.T
            return places
        places = np.zeros(up(rows, 4 if layout == "cols4" else 128) * up(blocks, 4), np.uint8)
        for r, k in itertools.product(range(rows), range(blocks)):
            at = ((k // 4 * up(rows, 4) + r) * 4 + k % 4 if layout == "cols4" else
                  (r // 128 * (up(blocks, 4) // 4) + k // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + k % 4)
            places[at] = stored[r, k].view(np.uint8)
        if layout == "cols4":
            return places.view(np.int32).reshape(up(blocks, 4) // 4, up(rows, 4))
        return places.view(stored.dtype).reshape(up(rows, 128) // 128, up(blocks, 4) // 4, 512)

    def text_of(self, name, block, form, layout, tail=""):
        parts = "".join(":" + part for part in (form, layout) if part not in ("f32", "rows"))
        return "rmsnorm/cols=384/f32/out={}/w=f32/eps=0/w/q={}{}{}".format(name, block, parts, tail)

    def values(self):
        generator = np.random.default_rng(SEED)
        signs = generator.choice(np.float32([-1, 1]), (131, 384))
        w = (generator.standard_normal(384) * 2.0 ** generator.integers(-14, 12, 24).repeat(16)).astype(np.float32)
        w[:16], w[16:32] = 0.0, 1e-12
        w[96:128] = (np.arange(32) - 8) / 4  # up to 6 with scales of 1, halfway between numbers of 4 bits
        return signs, w

    def test_bytes(self):
        (signs, w), given = self.values(), np.float32(3.7)
        for name, (block, form) in itertools.product(self.TYPES, self.FORMS):
            if name == "e2m1" and block > 32:
                continue
            layouts = ("rows", "cols") + ("cols4",) * (form == "e8m0") + ("sw",) * (form in ("e8m0", "e4m3"))
            for layout in layouts:
                text = self.text_of(name, block, form, layout, "/also=bf16")
                operands = {"global_scale": jnp.asarray(given)} if form == "e4m3" else {}
                call = functools.partial(normjit.jax.norm, text, jnp.asarray(signs).reshape(131, 1, 384), **operands)
                right, scales, stored = self.right(signs * w, name, block, form, given)
                stored = self.laid_out(stored, layout)
                with self.subTest(spec=text):
                    found = call(weight=jnp.asarray(w))
                    self.assertEqual(found.out.dtype.name, "uint8" if name == "e2m1" else self.TYPES[name][0])
                    out = self.numbers(found.out)[:, 0]
                    np.testing.assert_array_equal(out, right)
                    np.testing.assert_array_equal(np.signbit(out[out == 0]), np.signbit(right[out == 0]))
                    np.testing.assert_array_equal(np.asarray(found.also)[:, 0], (signs * w).astype("bfloat16"))
                    shape = (131, 1, 384 // block) if layout == "rows" else stored.shape
                    self.assertEqual((found.block_scale.shape, found.block_scale.dtype), (shape, stored.dtype))
                    self.assertEqual(np.asarray(found.block_scale).tobytes(), stored.tobytes())
                with self.subTest(spec=text, by="the formula"):
                    found = jax.vmap(lambda w: call(weight=w))(jnp.asarray(w)[None])
                    self.assertEqual((found.block_scale.shape, found.block_scale.dtype), ((1, *shape), stored.dtype))
                    same = np.asarray(found.block_scale).view(np.uint8).ravel() == stored.view(np.uint8).ravel()
                    self.assertGreater(same.mean(), 0.98 if form in ("p2", "e8m0") else 0.7)
                    self.assertGreater((self.numbers(found.out)[0, :, 0] == right).mean(), 0.95)
                    np.testing.assert_array_equal(np.asarray(found.also)[0, :, 0], (signs * w).astype("bfloat16"))

    def test_what_is_not_finite(self):
        x = jnp.ones((3, 64)).at[1, 3].set(jnp.nan)
        w = jnp.ones(64).at[40].set(jnp.inf)
        call = functools.partial(normjit.jax.norm, "rmsnorm/cols=64/f32/out=e4m3/eps=0/w/q=16:e8m0")
        for found in (call(x, weight=w), jax.tree.map(lambda part: part[0], jax.vmap(lambda w: call(x, weight=w))(w[None]))):
            bits = np.asarray(found.block_scale).view(np.uint8)
            self.assertEqual((bits[1].tolist(), bits[[0, 2], 2].tolist()), ([255] * 4, [254] * 2))
            self.assertTrue(np.isnan(np.asarray(found.out[1]).astype(np.float32)).all())
        call = functools.partial(normjit.jax.norm, "rmsnorm/cols=64/f32/out=e2m1/eps=0/w/q=16:e8m0")
        for found in (call(x, weight=w), jax.tree.map(lambda part: part[0], jax.vmap(lambda w: call(x, weight=w))(w[None]))):
            self.assertEqual(self.numbers(found.out)[:, [3, 40]].tolist(), [[4, 6], [6, 6], [4, 6]])

    def test_bounds_of_rows(self):
        (signs, w), text = self.values(), "rmsnorm/cols=384/f32/out=e4m3/w=f32/eps=0/w/q=row:ub"
        for bound in (np.float32(30), np.float32(1e9)):
            scale = np.maximum(np.minimum(np.abs(w).max(), bound) / np.float32(448), np.float32(1 / (512 * 448)))
            right = np.clip(signs * w / scale, -448, 448).astype("float8_e4m3fn").astype(np.float32)
            call = functools.partial(normjit.jax.norm, text, jnp.asarray(signs), weight=jnp.asarray(w))
            found = call(upper_bound=jnp.asarray(bound))
            np.testing.assert_array_equal(np.asarray(found.row_scale), np.full(131, scale))
            np.testing.assert_array_equal(np.asarray(found.out).astype(np.float32), right)
            found = jax.vmap(lambda bound: call(upper_bound=bound))(jnp.asarray([bound, bound]))
            np.testing.assert_allclose(found.row_scale[1], np.full(131, scale), rtol=1e-6)

    def test_the_largest_magnitude(self):
        """Of a batch each has its own. Its derivative is 0."""
        x, t = self.array(3, 6, 24), jnp.float32(0.05)
        for tail, given in (("", {}), ("/out=bf16", {}), ("/out=e4m3/q=tensor", {"tensor_scale": t})):
            call = functools.partial(normjit.jax.norm, "rmsnorm/cols=24/f32/amax" + tail, **given)
            found = call(x)
            y = np.asarray(normjit.jax.norm("rmsnorm/cols=24/f32" + "/out=bf16" * ("bf16" in tail), x)).astype(np.float32)
            self.assertEqual((found.amax.shape, found.amax.dtype), ((), jnp.float32))
            if "/q=" in tail:  # y is that of another kernel
                np.testing.assert_allclose(found.amax, np.abs(y).max(), rtol=1e-6)
            else:
                self.assertEqual(found.amax, np.abs(np.asarray(found.out).astype(np.float32)).max())
            np.testing.assert_allclose(jax.vmap(call)(x).amax, np.abs(y).max((1, 2)), rtol=1e-2 if "bf16" in tail else 1e-5)
            self.assertTrue(np.isnan(call(x.at[1, 2, 3].set(jnp.nan)).amax))
        call = functools.partial(normjit.jax.norm, "rmsnorm/cols=24/f32/amax")
        np.testing.assert_array_equal(jax.grad(lambda x: call(x).amax)(x), np.zeros(x.shape))
        ours = jax.grad(lambda x: jnp.sin(call(x).out).sum())(x)
        right = jax.grad(lambda x: jnp.sin(normjit.jax.norm("rmsnorm/cols=24/f32", x)).sum())(x)
        np.testing.assert_allclose(ours, right, rtol=1e-5, atol=1e-6)

    def test_vmap(self):
        """Rows of a batch are rows; where scales are laid out for all of them together, each of the batch has its own."""
        x = self.array(3, 6, 64)
        for layout, shape, launches in (("rows", (6, 2), 1), ("cols", (2, 8), 0), ("cols4", (1, 8), 0), ("sw", (1, 1, 512), 0)):
            text = "rmsnorm/cols=64/f32/out=e2m1/q=32:e8m0" + ":" * (layout != "rows") + layout * (layout != "rows")
            before = base.FAKE.launches if base.FAKE else 0
            found = jax.jit(jax.vmap(lambda x: normjit.jax.norm(text, x)))(x)
            if base.FAKE:
                self.assertEqual(base.FAKE.launches - before, launches)
            self.assertEqual((found.out.shape, found.block_scale.shape), ((3, 6, 32), (3, *shape)))
            right = normjit.jax.norm(text, x[1])
            self.assertGreater((np.asarray(found.out)[1] == np.asarray(right.out)).mean(), 0.95)
            self.assertEqual(np.asarray(found.block_scale)[1].tobytes(), np.asarray(right.block_scale).tobytes())

    def test_nothing_to_do(self):
        found = normjit.jax.norm("rmsnorm/cols=64/f32/out=e4m3/q=32:e8m0:sw/also=f16", jnp.zeros((0, 3, 64)))
        self.assertEqual((found.out.shape, found.also.shape, found.block_scale.shape), ((0, 3, 64), (0, 3, 64), (0, 1, 512)))
        found = normjit.jax.norm("rmsnorm/cols=48/f32/out=e2m1/q=16:e8m0", jnp.zeros((0, 16, 3)))
        self.assertEqual((found.out.shape, found.out.dtype, found.block_scale.shape), ((0, 24), jnp.uint8, (0, 3)))
        self.assertEqual(normjit.jax.norm("rmsnorm/cols=64/f32/amax", jnp.zeros((0, 64))).amax, 0)

    def test_what_does_not_fit(self):
        x, text = self.array(4, 64), "rmsnorm/cols=64/f32/out=e4m3/q="
        for kind, message, call in (
                (ValueError, "q=16:e4m3 has global_scale; give it", lambda: normjit.jax.norm(text + "16:e4m3", x)),
                (ValueError, "upper_bound is given, but", lambda: normjit.jax.norm(text + "row", x, upper_bound=jnp.ones(()))),
                (ValueError, "upper_bound has shape (2,); it must be one number",
                 lambda: normjit.jax.norm(text + "row:ub", x, upper_bound=jnp.ones(2))),
                (ValueError, "e2m1 needs a scale for each block", lambda: normjit.jax.norm("rmsnorm/cols=64/f32/out=e2m1", x)),
                (ValueError, "do not divide rows of 64", lambda: normjit.jax.norm(text + "128", x)),
                (TypeError, "results of 8 and 4 bits have no derivatives",
                 lambda: jax.jvp(lambda x: normjit.jax.norm(text + "64", x), (x,), (x,))),
                (TypeError, "results of 8 and 4 bits have no derivatives", lambda: jax.jvp(
                    lambda x: normjit.jax.norm("rmsnorm/cols=64/f32/out=e2m1/q=32:e8m0", x), (x,), (x,)))):
            with self.subTest(message=message), self.assertRaisesRegex(kind, re.escape(message)):
                call()


class PlainGradients(Gradients):
    """Those of plain norms, which come from one launch, against JAX's of the formula in f64."""
    TOLERANCE = {"f16": 2e-2, "bf16": 0.1, "f32": 2e-4, "f64": 1e-9}

    def operands(self, text, *shape):
        """By name. The last axis of this shape has the columns."""
        fields = text.split("/")
        keys = dict(field.split("=") for field in fields if "=" in field)
        own = next(field for field in fields if field in LONG)
        given = {"x": (shape, own)}
        if "add" in fields:
            given["residual"] = (shape, keys.get("res", own))
        if {"w", "w1", "wb", "wb1"} & set(fields):
            given["weight"] = (shape[-1:], keys.get("w", own))
        if {"wb", "wb1"} & set(fields):
            given["bias"] = given["weight"]
        return {name: self.array(*own_shape, dtype=LONG[dtype]) for name, (own_shape, dtype) in given.items()}

    @staticmethod
    def plain(text, given):
        fields = text.split("/")
        numbers = {"eps": 1e-5, "scale": 1, **{field.split("=")[0]: float(field.split("=")[1]) for field in fields
                                               if field.startswith(("eps=", "scale="))}}
        return plain({"norm": fields[0], "residual": "add" * ("residual" in given), "offset": len({"w1", "wb1"} & set(fields)),
                      "activation": next((field for field in fields if field in base.ACTIVATIONS), None), **numbers}, **given)

    def check(self, text, spec, *shape, moving=None, names=None, launches=1):
        given = self.operands(text, *shape)
        moving = moving or list(given)
        outputs = found_outputs(text, given)
        cotangents = self.cotangents({name: outputs[name] for name in names or outputs})
        with self.subTest(text=text, shape=shape, moving=moving, names=names):
            backward = self.pullback(found_outputs, text, given, moving, cotangents)
            with self.launches(launches):
                found = backward(cotangents)
            if base.FAKE and launches:
                self.assertEqual(last_spec(), spec)
            with x64():
                wide = [{name: jnp.asarray(np.asarray(part).astype(np.float64)) for name, part in some.items()}
                        for some in (given, cotangents)]
                wanted = self.pullback(self.plain, text, wide[0], moving, cotangents)(wide[1])
            narrow = next(short for short in self.TOLERANCE if "/" + short in text or "=" + short in text)
            for name in moving:
                self.assertEqual(found[name].dtype, given[name].dtype)
                self.assertClose(found[name], wanted[name], self.TOLERANCE[narrow], name)

    def test_every_type(self):
        shapes = itertools.cycle(((5, 3, 37), (7, 64), (1, 1), (2, 1, 3, 130), (1,), (33, 8), (257,)))
        for dtype, head, tail in itertools.product(LONG, ("layernorm", "rmsnorm"), ("", "/w", "/wb", "/w1", "/wb1", "/add/sum/wb")):
            shape, dsum = next(shapes), "/dsum" * ("/sum" in tail)
            with x64() if dtype == "f64" else contextlib.nullcontext():
                self.check("{}/cols={}/{}/eps=1.0{}".format(head, shape[-1], dtype, tail), "{}_bwd/cols={}/{}/eps=1{}{}".format(
                    head, shape[-1], dtype, dsum, tail.replace("/add/sum", "")), *shape)

    def test_activations_and_scales(self):
        """They read a bias, whether its gradient is asked for or not."""
        shapes = itertools.cycle(((5, 3, 37), (257,), (2, 1, 3, 130)))
        tails = itertools.cycle(("", "/w", "/wb", "/w1", "/wb1", "/add/sum/wb"))
        heads = itertools.cycle(("layernorm", "rmsnorm"))
        for dtype, activation in zip(itertools.cycle(LONG), 2 * base.ACTIVATIONS):
            shape, tail, head = next(shapes), next(tails), next(heads)
            scale = "" if head == "rmsnorm" and activation else "/scale=-0.5"
            behind = ("/" + activation if activation else "") + scale
            with x64() if dtype == "f64" else contextlib.nullcontext():
                self.check("{}/cols={}/{}/eps=1.0{}{}".format(head, shape[-1], dtype, tail, behind),
                           "{}_bwd/cols={}/{}/eps=1{}{}{}".format(
                               head, shape[-1], dtype, "/dsum" * ("/sum" in tail), tail.replace("/add/sum", ""), behind), *shape)
        text, spec = "layernorm/cols=9/f32/add/sum/wb/gelu", "layernorm_bwd/cols=9/f32/eps=1e-05/"
        for moving, need in ((["weight", "bias"], "dw+db"), (["bias"], "db"), (["x", "weight"], "dx+dw"), (["residual"], "dx"),
                             (["weight"], "dw")):
            self.check(text, spec + "wb/gelu/need=" + need, 4, 9, moving=moving, names=["y"])
        self.check(text, spec + "dsum/wb/gelu/need=dx", 4, 9, moving=["x"])
        self.check(text, None, 4, 9, names=["sum"], launches=0)

    def test_mixed_types(self):
        for text, spec in (
                ("layernorm/cols=64/bf16/w=f32/wb/silu", "layernorm_bwd/cols=64/bf16/w=f32/dw=f32/eps=1e-05/wb/silu"),
                ("rmsnorm/cols=64/bf16/w=f32/w", "rmsnorm_bwd/cols=64/bf16/w=f32/dw=f32/eps=1e-05/w"),
                ("layernorm/cols=64/f32/out=f16/wb", "layernorm_bwd/cols=64/f32/out=f16/eps=1e-05/wb"),
                ("rmsnorm/cols=64/bf16/res=f32/add/sum/w", "rmsnorm_bwd/cols=64/f32/out=bf16/w=bf16/dw=bf16/eps=1e-05/dsum/w"),
                ("rmsnorm/cols=64/bf16/res=f32/sum/w", "rmsnorm_bwd/cols=64/bf16/res=f32/eps=1e-05/dsum/w"),
                ("rmsnorm/cols=64/bf16/add/sum/round=sum+norm/w", "rmsnorm_bwd/cols=64/bf16/eps=1e-05/dsum/w")):
            self.check(text, spec, 5, 64)

    def test_of_some_outputs_and_inputs(self):
        text, spec = "layernorm/cols=9/f32/add/sum/wb", "layernorm_bwd/cols=9/f32/eps=1e-05/"
        self.check(text, spec + "wb", 4, 9, names=["y"])
        self.check(text, None, 4, 9, names=["sum"], launches=0)
        for moving, affine in ((["weight", "bias"], "wb/need=dw+db"), (["bias"], "wb/need=db"), (["x", "weight"], "w"),
                               (["residual"], "w/need=dx"), (["weight"], "w/need=dw"), (["x", "bias"], "wb/need=dx+db")):
            self.check(text, spec + affine, 4, 9, moving=moving, names=["y"])
        self.check(text, spec + "dsum/w/need=dx", 4, 9, moving=["x"])

    def test_one_call_in_the_program(self):
        for text in ("layernorm/cols=40/bf16/add/sum/wb", "layernorm/cols=40/bf16/add/sum/wb/gelu/scale=0.5"):
            given = self.operands(text, 6, 40)
            cotangents = self.cotangents(found_outputs(text, given))

            def both(given, cotangents):
                results, backward = jax.vjp(functools.partial(found_outputs, text), given)
                return results, backward(cotangents)

            program = jax.jit(both).lower(given, cotangents).as_text()
            self.assertEqual(len(re.findall(r"custom_call @normjit_norm\b", program)), 2)
            self.assertFalse(re.search("stablehlo.(reduce|rsqrt|exponential|tanh|multiply)", program))
            backward = jax.vjp(functools.partial(found_outputs, text), given)[1]
            program = jax.jit(backward).lower(cotangents).as_text()
            self.assertEqual(len(re.findall(r"custom_call @\w+", program)), 1)

    def test_names(self):
        x, r, w, b = self.array(2, 3, 40), self.array(2, 3, 40), self.array(40), self.array(40)
        spec = {"norm": "rmsnorm", "residual": "add", "offset": 0, "activation": None}
        for call, wanted, given in (
                (lambda x, w: normjit.jax.rms_norm(x, w), lambda x, w: plain({**spec, "residual": ""}, x=x, weight=w)["y"], (x, w)),
                (lambda x, w, b: normjit.jax.layer_norm(x, w, b), base.formula, (x, w, b)),
                (lambda x, b: normjit.jax.layer_norm(x, None, b), lambda x, b: base.formula(x, None, b), (x, b)),
                (lambda x, w, b: normjit.jax.layer_norm(x, w.reshape(3, 40), b.reshape(3, 40), normalized_ndim=2),
                 lambda x, w, b: base.formula(x.reshape(2, 120), w, b), (x, self.array(120), self.array(120))),
                (lambda x, r, w: normjit.jax.add_rms_norm(x, r, w)[0], lambda x, r, w: plain(spec, x=x, residual=r, weight=w)["y"],
                 (x, r, w)),
                (lambda x, r, w, b: normjit.jax.add_layer_norm(x, r, w, b)[0], lambda x, r, w, b: base.formula(x + r, w, b),
                 (x, r, w, b)),
                (lambda x, w, b: normjit.jax.layer_norm(x, w, b, activation="gelu", scale=0.5),
                 lambda x, w, b: base.formula(x, w, b, activation="gelu", scale=0.5), (x, w, b)),
                (lambda x, r, w: normjit.jax.add_rms_norm(x, r, w, activation="silu")[0],
                 lambda x, r, w: plain({**spec, "activation": "silu"}, x=x, residual=r, weight=w)["y"], (x, r, w))):
            with self.launches(2):
                found = jax.block_until_ready(gradient(lambda *some: jnp.sin(call(*some)).sum(), tuple(range(len(given))))(*given))
            for a, c in zip(found, gradient(lambda *some: jnp.sin(wanted(*some)).sum(), tuple(range(len(given))))(*given)):
                self.assertClose(a, c, 2e-4)

    def test_other_norms_have_the_formula(self):
        x, part, w = self.array(3, 8), self.array(3, 8), self.array(8)
        for tail, given in (("/w/gelu/stats", {}), ("/w/stats", {}), ("/addafter/w", {"residual": part}),
                            ("/add/w", {"residual": part}), ("/inb/w", {"in_bias": w}), ("/w:rows", {"weight": part})):
            with self.subTest(tail=tail):
                text, given = "layernorm/cols=8/f32" + tail, {"x": x, "weight": w, **given}
                backward = self.pullback(found_outputs, text, given, list(given), ["y"])
                with self.launches(0):
                    backward({"y": self.array(3, 8)})
        given = {"x": self.array(2, 8, 3, 3), "weight": w}
        backward = self.pullback(found_outputs, "layernorm/cols=8/f32/w/cf", given, list(given), ["y"])
        with self.launches(0):
            backward({"y": self.array(2, 8, 3, 3)})

    def test_a_residual_that_rows_share(self):
        """Its gradient is a sum over the kernel's."""
        text = "layernorm/cols=24/f32/add/sum/wb"
        for shape in ((4, 24), (24,)):
            given = {**self.operands(text, 3, 4, 24), "residual": self.array(*shape)}
            backward = self.pullback(found_outputs, text, given, list(given), ["y"])
            cotangents = {"y": self.array(3, 4, 24)}
            with self.launches(1):
                found = backward(cotangents)
            wanted = self.pullback(self.plain, text, given, list(given), ["y"])(cotangents)
            for name in given:
                self.assertClose(found[name], wanted[name], 5e-4, name)

    def test_vmap(self):
        """The gradients of a batch of rows are one launch, but sums over the rows of each of the batch are the formula's."""
        for text in ("layernorm/cols=24/f32", "rmsnorm/cols=24/f32/add/sum/w", "layernorm/cols=24/f32/wb/gelu"):
            given = self.operands(text, 3, 5, 24)
            axes = {name: 0 if part.ndim > 1 else None for name, part in given.items()}

            def loss(outputs, given):
                return sum(jnp.sin((2 + i) * result).sum() for i, result in enumerate(outputs(text, given).values()))

            def of_all(outputs, given):  # the vmap within the gradient
                return jax.vmap(functools.partial(loss, outputs), (axes,))(given).sum()

            def of_rows(outputs, given):  # a gradient of rows alone within the vmap
                fixed = {name: part for name, part in given.items() if axes[name] is None}
                rows = {name: part for name, part in given.items() if axes[name] == 0}
                return jax.vmap(jax.grad(lambda rows: loss(outputs, {**rows, **fixed})))(rows)

            plain_outputs = lambda text, given: {name: self.plain(text, given)[name]  # noqa: E731
                                                 for name in ["y"] + ["sum"] * ("/sum" in text)}
            for function, launches in ((lambda outputs: jax.grad(functools.partial(of_all, outputs)), 2),
                                       (lambda outputs: functools.partial(of_rows, outputs), 2),
                                       (lambda outputs: jax.vmap(jax.grad(functools.partial(loss, outputs)), (axes,)),
                                        1 if "weight" in given else 2)):
                with self.subTest(text=text):
                    with self.launches(launches):
                        found = jax.block_until_ready(jax.jit(function(found_outputs))(given))
                    wanted = function(plain_outputs)(given)
                    for name in found:
                        self.assertClose(found[name], wanted[name], 5e-4, name)

    def test_vmap_over_all_operands(self):
        for text in ("layernorm/cols=24/f32/wb", "layernorm/cols=24/f32/wb/silu"):
            given = self.operands(text, 3, 5, 24)
            given.update(weight=self.array(3, 24), bias=self.array(3, 24))

            def loss(outputs):
                return lambda given: jnp.sin(jax.vmap(lambda given: outputs(text, given)["y"])(given)).sum()

            with self.launches(0):
                found = jax.block_until_ready(gradient(loss(found_outputs), 0)(given))
            wanted = gradient(loss(self.plain), 0)(given)
            for name in given:
                self.assertClose(found[name], wanted[name], 2e-4, name)

    def test_jacobians(self):
        text = "layernorm/cols=6/f64/add/sum/wb1/gelu"
        with x64():
            given = self.operands(text, 2, 6)
            for jacobian in (jax.jacrev, jax.jacfwd, jax.hessian):
                found, wanted = [jax.tree.leaves(jax.jit(jacobian(lambda given: operator.itemgetter("y", "sum")(outputs(text, given))))(
                    given)) for outputs in (found_outputs, self.plain)]
                for a, b in zip(found, wanted):
                    self.assertClose(a, b, 1e-8)

    def test_gradients_of_any_order(self):
        """In all mixtures of modes; the first order alone has the kernel."""
        with x64():
            for text in ("layernorm/cols=7/f64/eps=0.1", "rmsnorm/cols=7/f64/eps=0.1/w1",
                         "layernorm/cols=7/f64/eps=0.1/add/sum/wb/silu/scale=0.5"):
                primals, tangents = [self.operands(text, 3, 7) for _ in range(2)]
                names = list(found_outputs(text, primals))

                def derivatives(outputs):
                    def loss(given):
                        return sum(jnp.sin(result).sum() for name, result in outputs(text, given).items() if name in names)

                    def along(function):  # its derivative in one direction
                        return lambda given: jax.jvp(function, (given,), (tangents,))[1]

                    def squares(function):
                        return lambda given: sum((part ** 2).sum() for part in jax.tree.leaves(function(given)))

                    return jax.jit(lambda given: [jax.grad(squares(jax.grad(loss)))(given), along(jax.grad(loss))(given),
                                                  jax.grad(along(loss))(given), along(along(loss))(given),
                                                  jax.grad(squares(jax.grad(squares(jax.grad(loss)))))(given)])

                with self.subTest(text=text):
                    for a, b in zip(*[jax.tree.leaves(derivatives(outputs)(primals)) for outputs in (found_outputs, self.plain)]):
                        self.assertClose(a, b, 1e-9)

    def test_no_rows(self):
        """Gradients of weights are 0 then, also where only a batch or a device has no rows."""
        text = "layernorm/cols=8/f32/add/sum/wb/gelu"
        for shape in ((0, 8), (2, 0, 8)):
            given = self.operands(text, *shape)
            grads = gradient(lambda given: sum(result.sum() for result in found_outputs(text, given).values()), 0)(given)
            self.assertEqual([grads[name].shape for name in given], [shape, shape, (8,), (8,)])
            self.assertFalse(np.any(grads["weight"]) or np.any(grads["bias"]))
        given = self.operands(text, 0, 3, 8)
        with self.launches(0):
            grads = gradient(lambda given: jax.vmap(lambda x, r: found_outputs(text, {**given, "x": x, "residual": r})["y"])(
                given["x"], given["residual"]).sum(), 0)(given)
        self.assertFalse(np.any(grads["weight"]) or np.any(grads["bias"]))

    def test_shards(self):
        """Gradients of weights are sums over the rows of all devices."""
        if len(base.DEVICES) < 2 or not hasattr(jax, "shard_map"):
            self.skipTest("needs two GPUs and JAX 0.7")
        text = "rmsnorm/cols=24/f32/add/sum/w"
        mesh = jax.sharding.Mesh(np.array(base.DEVICES[:2]), ("rows",))
        rows, all_alike = jax.sharding.PartitionSpec("rows"), jax.sharding.PartitionSpec()
        given = self.operands(text, 4, 24)
        specs = {name: rows if part.ndim > 1 else all_alike for name, part in given.items()}
        for check, moving in itertools.product((True, False), (["x", "residual", "weight"], ["weight"], ["residual"])):
            def loss(outputs):
                def of_some(some):
                    results = outputs({**given, **some})
                    return jnp.sin(results["y"]).sum() + jnp.cos(results["sum"]).sum()
                return of_some

            sharded = jax.shard_map(functools.partial(found_outputs, text), mesh=mesh, in_specs=(specs,), out_specs=rows, check_vma=check)
            some = {name: given[name] for name in moving}
            with self.subTest(check=check, moving=moving):
                with self.launches(4):
                    found = jax.block_until_ready(gradient(loss(sharded), 0)(some))
                wanted = gradient(loss(functools.partial(self.plain, text)), 0)(some)
                for name in moving:
                    self.assertClose(found[name], wanted[name], 2e-4, name)

    def test_donated_arrays(self):
        text = "rmsnorm/cols=24/f32/add/sum/w"
        given = self.operands(text, 4, 24)
        step = lambda given: jax.tree.map(  # noqa: E731
            lambda part, grad: part - 0.1 * grad, given, jax.grad(lambda given: jnp.sin(found_outputs(text, given)["y"]).sum())(given))
        wanted = jax.tree.map(np.asarray, jax.jit(step)(given))
        for name, part in jax.jit(step, donate_argnums=0)(given).items():
            np.testing.assert_array_equal(part, wanted[name])

    def test_where_there_is_no_kernel(self):
        """As in services that work from caches only. Other refusals are errors."""
        if not base.FAKE:
            self.skipTest("needs the fake")
        self.addCleanup(setattr, base.FAKE, "prepare_status", 0)
        for columns, status in enumerate((_library.NO_COMPILER, _library.NOT_CACHED, _library.NOT_READY, 506), 30):
            text = "layernorm/cols={}/f32/wb".format(columns)  # which was not traced before
            given, cotangents = self.operands(text, 3, columns), {"y": self.array(3, columns)}
            base.FAKE.prepare_status = 0
            backward = self.pullback(found_outputs, text, given, list(given), ["y"])
            base.FAKE.prepare_status = status
            if status == 506:  # out of memory
                with self.assertRaisesRegex(RuntimeError, "told to refuse"):
                    backward(cotangents)
                continue
            with self.launches(0):
                found = backward(cotangents)
            wanted = self.pullback(self.plain, text, given, list(given), ["y"])(cotangents)
            for name in given:
                self.assertClose(found[name], wanted[name], 2e-4, name)


class Names(Case):
    def expect(self, text):
        if base.FAKE:
            self.assertEqual(last_spec(), text)

    def test_rms_norm(self):
        x, w = self.array(5, 32, dtype="bfloat16"), self.array(32)
        spec = {"norm": "rmsnorm", "residual": "", "round": "", "offset": 1, "activation": "silu"}
        self.assertClose(normjit.jax.rms_norm(x, w, weight_offset=True, activation="silu"), algebra(spec, x, weight=w)["y"])
        self.expect("rmsnorm/cols=32/bf16/w=f32/eps=1e-05/w1/silu")
        jax.block_until_ready(normjit.jax.rms_norm(x, eps=1e-6, scale=0.5))
        self.expect("rmsnorm/cols=32/bf16/eps=1e-06/scale=0.5")
        jax.block_until_ready(normjit.jax.rms_norm(x, w.astype(x.dtype), round_norm=True))
        self.expect("rmsnorm/cols=32/bf16/eps=1e-05/round=norm/w")

    def test_norms_of_sums(self):
        x, r, w, b = self.array(5, 32, dtype="bfloat16"), self.array(5, 32), self.array(32), self.array(32)
        spec = {"residual": "add", "round": "", "offset": 0, "activation": None}
        for y, total, norm, bias, end in (
                (*normjit.jax.add_rms_norm(x, r, w, in_bias=b), "rmsnorm", None, "w"),
                (*normjit.jax.add_layer_norm(x, r, w, b, in_bias=b), "layernorm", b, "wb")):
            wanted = algebra({**spec, "norm": norm}, x, residual=r, weight=w, in_bias=b, bias=bias)
            self.assertClose(y, wanted["y"])
            self.assertClose(total, wanted["sum"])
            self.assertEqual((y.dtype.name, total.dtype.name), ("bfloat16", "float32"))
        self.expect("layernorm/cols=32/bf16/w=f32/res=f32/eps=1e-05/inb/add/sum/wb")
        r = r.astype(x.dtype)
        jax.block_until_ready(normjit.jax.add_rms_norm(x, r, w, rounding="sum+norm", weight_offset=True,
                                                     activation="silu", scale=2))
        self.expect("rmsnorm/cols=32/bf16/w=f32/eps=1e-05/add/sum/round=sum+norm/w1/silu/scale=2")


class Errors(Case):
    def refused(self, kind, text, call):
        with self.assertRaisesRegex(kind, re.escape(text)):
            call()

    def test_wrong_arguments(self):
        x, w, norm = self.array(4, 8), self.array(8), normjit.jax.norm
        self.refused(ValueError, "unknown field 'wx'", lambda: norm("rmsnorm/cols=8/f32/wx", x, weight=w))
        self.refused(ValueError, "rmsnorm_bwd/cols=8/f32/w is the spec of gradients", lambda: norm("rmsnorm_bwd/cols=8/f32/w", x, weight=w))
        self.refused(ValueError, "needs a weight or a modulation that follows", lambda: norm("rmsnorm/cols=8/bf16/round=norm", x))
        self.refused(ValueError, "rmsnorm/cols=8/f32/eps=1e-05/w has weight; give it", lambda: norm("rmsnorm/cols=8/f32/w", x))
        self.refused(ValueError, "bias is given, but rmsnorm/cols=8/f32/eps=1e-05/w has none",
                     lambda: norm("rmsnorm/cols=8/f32/w", x, weight=w, bias=w))
        self.refused(TypeError, "x is float32; in rmsnorm/cols=8/bf16/eps=1e-05 it is bfloat16",
                     lambda: norm("rmsnorm/cols=8/bf16", x))
        self.refused(ValueError, "x has shape (4, 8); no last axes of it have the 16 elements",
                     lambda: norm("rmsnorm/cols=16/f32", x))
        self.refused(ValueError, "weight has shape (4, 8); the last axes of x",
                     lambda: norm("rmsnorm/cols=8/f32/w", x, weight=x))
        self.refused(ValueError, "residual has shape (1, 8); it must be that of x, which is (4, 8), or of its last axes",
                     lambda: norm("rmsnorm/cols=8/f32/add", x, residual=x[:1]))
        self.refused(ValueError, "activation is 'tanh'", lambda: normjit.jax.rms_norm(x, activation="tanh"))
        self.refused(TypeError, "residual is int32", lambda: normjit.jax.add_rms_norm(x, jnp.arange(8)))
        self.refused(ValueError, "no axis", lambda: normjit.jax.rms_norm(jnp.float32(1)))
        self.refused(ValueError, "round=both", lambda: normjit.jax.add_rms_norm(x, x, rounding="both"))


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv if argument != "--fake"]
    if arguments == sys.argv:
        try:
            base._ffi.gpus()
        except RuntimeError:
            base.skip("no NVIDIA GPU for JAX here")
    unittest.main(argv=arguments)
