# SPDX-License-Identifier: Apache-2.0
"""A framework that a drop-in needs, or an error that says how to install it."""
from __future__ import annotations

import importlib


def require(name: str, what: str) -> None:
    """Imports the module `name`. Where it is missing, the ModuleNotFoundError says that `what` is needed."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != name:
            raise
        raise ModuleNotFoundError("normjit.{0} needs {1}: pip install 'normjit[{0}]'".format(name, what),
                                  name=name) from None
