# SPDX-License-Identifier: Apache-2.0
"""Compiles a framework's operator from the sources in this package, for the very framework that is installed.

What was built is kept in a folder of this user, named by all that went into it, so that it is built once, and
another framework, compiler or normjit gets one of its own. The folder is $NORMJIT_BUILD_DIR, else
$XDG_CACHE_HOME/normjit-python, else ~/.cache/normjit-python; where it cannot be written, or there is no home, a
temporary one of this process.
"""
from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Union

Path = Union[str, "os.PathLike[str]"]

_log = logging.getLogger("normjit")

_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")


class BuildError(RuntimeError):
    """There is no C++ compiler, or it refused; the text says which, and what to do."""


def build(name: str, sources: Sequence[Path], include_dirs: Sequence[Path] = (), flags: Sequence[str] = (),
          libraries: Sequence[Path] = (), version: str = "") -> str:
    """Returns the path of the shared library <name>, compiled unless that has been done before.

    sources: files; headers among them (.h) are looked at for changes and not compiled.
    include_dirs: folders of headers that change only with `version`.
    flags: go to the compiler, behind -std=c++17 -O2.
    libraries: shared libraries to link with, as paths; they are found again where they are now.
    version: of all that is not in sources, such as "jaxlib 0.8.0".

    Threads and processes may build the same at once: one compiles, the others wait for it. Raises BuildError.
    """
    compiler = _compiler()
    folder = _folder()
    command = [*_FLAGS, *flags]
    command += ["-isystem" + os.fspath(path) for path in include_dirs]
    link: list[str] = []
    for library in map(os.path.abspath, libraries):
        link += [library, "-Wl,-rpath," + os.path.dirname(library)]
    target = os.path.join(folder, "{}-{}.so".format(name, _key(compiler, command + link, sources, version)))
    if _is_ours(target):
        return target
    with _locked(target + ".lock"):
        if not _is_ours(target):  # it may have come while we waited
            units = [os.fspath(source) for source in sources if not os.fspath(source).endswith(".h")]
            _compile(compiler.command + command + units + link, target)
    return target


def header_directory() -> str:
    """The folder of normjit/c_api.h: in this package, or in the source tree that this package is used from."""
    package = os.path.dirname(os.path.abspath(__file__))
    for folder in (os.path.join(package, "include"), os.path.join(package, "..", "..", "src")):
        if os.path.isfile(os.path.join(folder, "normjit", "c_api.h")):
            return os.path.normpath(folder)
    raise BuildError("normjit/c_api.h is missing from {}; install the package again.".format(package))


class _Compiler:
    def __init__(self, command: list[str], identity: str) -> None:
        self.command = command
        self.identity = identity


@functools.lru_cache(maxsize=None)
def _compiler() -> _Compiler:
    named = os.environ.get("CXX")
    for text in (named,) if named else _COMPILERS:
        command = shlex.split(text)
        if shutil.which(command[0]) is None:
            continue
        said = subprocess.run(command + ["--version"], capture_output=True, text=True, check=False)
        if said.returncode == 0:
            return _Compiler(command, text + said.stdout)
    raise BuildError("No C++ compiler was found (looked for {}). Install one, such as g++, or name it in CXX.".format(
        named or ", ".join(_COMPILERS)))


def _key(compiler: _Compiler, command: Sequence[str], sources: Sequence[Path], version: str) -> str:
    digest = hashlib.sha256()
    for text in (compiler.identity, platform.machine(), version, *command):
        digest.update(text.encode() + b"\0")
    for source in sources:
        with open(source, "rb") as file:
            digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()[:24]


def _is_ours(path: str) -> bool:
    """Whether this is there, and nobody else could have written it: it becomes code of this process."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return found.st_uid in (os.getuid(), 0) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _folder() -> str:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser(os.path.join("~", ".cache"))
    folder = os.environ.get("NORMJIT_BUILD_DIR") or os.path.join(home, "normjit-python")
    if folder.startswith("~"):
        return _temporary_folder("this user has no home folder")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as why:
        return _temporary_folder(str(why))
    if not _is_ours(folder) or not os.access(folder, os.W_OK):
        return _temporary_folder("{} is not this user's alone to write".format(folder))
    return folder


@functools.lru_cache(maxsize=None)
def _temporary_folder(why: str) -> str:
    _log.warning("normjit keeps what it compiles for this process only: %s", why)
    folder = tempfile.mkdtemp(prefix="normjit-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child must not
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


_held: set[int] = set()  # descriptors of locks


def _let_go() -> None:
    """A forked child has copies of what other threads held, and would keep it locked, even against itself."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """One at a time, where the file system has locks; else all at once, which only costs time."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    _held.add(file)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        _held.discard(file)
        os.close(file)


def _compile(command: list[str], target: str) -> None:
    began = time.monotonic()
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(target), suffix=".tmp")
    os.close(handle)
    try:
        command = command + ["-o", temporary]
        _log.info("compiling %s", os.path.basename(target))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BuildError("{} failed with status {}:\n{}".format(shlex.join(command), done.returncode, done.stderr))
        os.chmod(temporary, 0o755)
        os.replace(temporary, target)
    except OSError as why:
        raise BuildError("{} could not be built: {}".format(target, why)) from why
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    _log.info("compiled %s in %.1f s", os.path.basename(target), time.monotonic() - began)
