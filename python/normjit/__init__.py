# SPDX-License-Identifier: Apache-2.0
"""LayerNorm kernels for NVIDIA GPUs, generated at run time: drop-ins for PyTorch, JAX and ONNX Runtime.

    import normjit.torch    # LayerNorm, layer_norm, replace_layer_norm
    import normjit.jax      # layer_norm
    import normjit.onnx     # rewrite, library; python -m normjit.onnx

    import normjit.dlpack   # norm, for CuPy and other arrays
    import normjit.tvm_ffi  # the same as functions of tvm-ffi

    normjit.add_layer(pack)     # kernels that another process has compiled
    normjit.prometheus()        # the counters, as a page of metrics

Importing this package alone loads nothing: neither a framework nor libnormjit.
"""


def add_layer(pack: bytes, signature: "str | None" = None) -> None:
    """Adds the bytes of a pack (`normjit export`) as a layer of this process: its kernels are found there from now on,
    behind those of the cache directory and of NORMJIT_LAYERS, and are not compiled. The library keeps a copy.

    Call it before the first use of a kernel that it has: a kernel that is ready stays as it is. It reads the variables
    of the environment, as the first launch does. With NORMJIT_TRUST `signature` is the text of the pack's .minisig file.
    Raises RuntimeError, and changes nothing, if pack is not a whole pack, or if its signature is missing or not right;
    ImportError if libnormjit is not found."""
    from . import _library
    _library.add_layer(pack, signature)


def prometheus(labels: "dict[str, str] | None" = None, batch_invariant: bool = False) -> str:
    """The counters of this process as a page for Prometheus, to be served as "text/plain; version=0.0.4; charset=utf-8", with
    these labels on each series. Of the service for batch invariance where that is asked for. docs/embedding.md has the
    metrics. Raises RuntimeError for a label that is none; ImportError if libnormjit is not found."""
    from . import _library
    return _library.prometheus(labels or {}, batch_invariant)


def __getattr__(name: str) -> str:
    """__version__: the version of the installed package, looked up when it is asked for."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version
        try:
            return version("normjit")
        except PackageNotFoundError:
            raise AttributeError("normjit has a __version__ once it is installed: pip install .") from None
    raise AttributeError("module 'normjit' has no attribute '{}'".format(name))
