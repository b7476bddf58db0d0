# SPDX-License-Identifier: Apache-2.0
"""LayerNorm kernels for NVIDIA GPUs, generated at run time: drop-ins for PyTorch and JAX.

    import normjit.torch    # LayerNorm, layer_norm, replace_layer_norm
    import normjit.jax      # layer_norm

Importing this package alone loads nothing: neither a framework nor libnormjit.
"""


def __getattr__(name: str) -> str:
    """__version__: the version of the installed package, looked up when it is asked for."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version
        try:
            return version("normjit")
        except PackageNotFoundError:
            raise AttributeError("normjit has a __version__ once it is installed: pip install .") from None
    raise AttributeError("module 'normjit' has no attribute '{}'".format(name))
