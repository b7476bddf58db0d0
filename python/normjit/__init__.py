"""LayerNorm kernels for NVIDIA GPUs, generated at run time: drop-ins for PyTorch and JAX.

    import normjit.torch    # LayerNorm, layer_norm, replace_layer_norm
    import normjit.jax      # layer_norm

Importing this package alone loads nothing: neither a framework nor libnormjit.
"""
