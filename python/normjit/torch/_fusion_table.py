# SPDX-License-Identifier: Apache-2.0
"""Where add + norm in one kernel of normjit is faster than what Inductor makes of both. Written by
scripts/bench_fusion.py --write."""

# (norm, type of x): ranges of columns, both ends included.
FASTER: dict[tuple[str, str], tuple[tuple[int, int], ...]] = {}
