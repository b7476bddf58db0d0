# SPDX-License-Identifier: Apache-2.0
"""What the rewriter says of each norm."""
from __future__ import annotations

from dataclasses import dataclass


class NotTaken(Exception):
    """Why a norm, or a neighbour of one, is left alone."""


@dataclass(frozen=True)
class Finding:
    """A norm of a model. One of spec and reason is empty."""
    name: str                    # of its node
    operators: tuple[str, ...]   # the operators that were replaced, or would have to be
    spec: str = ""               # the text of the spec that computes them
    reason: str = ""             # why it was left alone
    notes: tuple[str, ...] = ()  # why neighbours were not fused with it

    @property
    def taken(self) -> bool:
        return bool(self.spec)
