#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what docs/fleets.md says of stores of kernels that machines share, against redis-server and nginx here.

    scripts/bench_remote.py --build build
    scripts/bench_remote.py --build build --machines 100 --repeat 5 --parts look,faults --output remote.json

Prints a Markdown table. Its parts:

  look    a signed kernel that the store has: the time for the store, and that of a prebuild beside one without a store
  fleet   machines with empty caches that start at once, as many processes as cores
  pack    machines that fetch a pack of 800 KB by URL at once, as many processes as cores
  offers  what a compile pays for being offered
  faults  servers that are down, silent or slow, or talk nonsense: what a miss pays, and how often they are asked
  warm    the system calls of a first call whose kernel the cache has, with and without a store

"of the store" is the duration of normjit's event, signature included. A cost is the time of a kernel in a prebuild less the
median of one without a store. Misses fail at once, for want of a compiler, so that nothing but the store takes time. Calls
are requests that reach a port in front of the server, or, where nobody listens, connections that strace saw.

Servers and processes share the cores of this machine, so run nothing else. Needs the targets normjit_tool and normjit with
its plug-ins, and NVRTC; no GPU. A server or program that is missing is named and its rows are left out. Exit status: 0 done,
2 usage, 3 without a build, or if nothing could be prepared.
"""
import argparse
import ctypes
import datetime
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ARCH = "sm_90"
PARTS = ("look", "fleet", "pack", "offers", "faults", "warm")
STORES = ("redis", "nginx")
SPECS = ["rmsnorm/cols={}/bf16/w".format(columns) for columns in (512, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192)]
MISSES = ["layernorm/cols={}/f16/wb".format(256 * i) for i in range(1, 33)]
FLEET_KERNELS = 40
PACK_BYTES = 800_000
MISSED_KERNELS = 101  # the first and 100 more


# --- Numbers and the table.

def percentile(values, percent):
    """The smallest value that so many percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def short(number):
    """Three digits, without an exponent: 0.0123, 1.23, 123, 12345."""
    if number == 0:
        return "0"
    digits = 2
    while digits > 0 and abs(number) >= 10 ** (3 - digits):
        digits -= 1
    while abs(number) < 10 ** (2 - digits) and digits < 4:
        digits += 1
    return "{:.{}f}".format(number, digits)


def p50_p99(values):
    return "-" if not values else "{} / {}".format(short(percentile(values, 50)), short(percentile(values, 99)))


def table(head, rows):
    """Markdown. A row may be shorter than the head."""
    lines = [head, ["---"] * len(head)] + [list(row) + [""] * (len(head) - len(row)) for row in rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def costs(kernels, usual_first, usual, noticed):
    """What kernels paid beyond the usual milliseconds of a first and of a later one: the first, and all that paid as much
    as is noticed together, since the rest is noise of many small ones."""
    first = max(0.0, kernels[0] - usual_first)
    return first, first + sum(ms - usual for ms in kernels[1:] if ms - usual >= noticed)


def marked_calls(lines, begin="normjit-begin", end="normjit-end"):
    """{system call: number} of strace's lines between the two marks."""
    counts, inside = {}, False
    for line in lines:
        if begin in line or end in line:
            inside = begin in line
            continue
        call = re.match(r"(?:\d+\s+)?(\w+)\(", line)
        if inside and call:
            counts[call[1]] = counts.get(call[1], 0) + 1
    return counts


def connections_to(lines, port):
    """Of strace's lines."""
    return sum("connect(" in line and "htons({})".format(port) in line for line in lines)


# --- Processes that are measured; they print one line of JSON.

def bindings():
    """python/normjit/_library.py alone, without the package and what that imports."""
    place = importlib.util.spec_from_file_location("normjit_library", str(ROOT / "python" / "normjit" / "_library.py"))
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


class Event(ctypes.Structure):
    """normjit_event."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("kind", ctypes.c_char_p), ("spec", ctypes.c_char_p),
                ("plan", ctypes.c_char_p), ("arch", ctypes.c_char_p), ("detail", ctypes.c_char_p),
                ("milliseconds", ctypes.c_double)]


ON_EVENT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Event))
ON_PROGRESS = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32)


def service_of(library, case, cache, on_event=None):
    texts = {key: case[key].encode() for key in ("remote", "trust", "sign_key", "compiler_path") if case.get(key)}
    options = library.Options(ignore_environment=library.YES, cache_directory=cache.encode(),
                              on_event=ctypes.cast(on_event, ctypes.c_void_p) if on_event else None, **texts)
    service = ctypes.c_void_p()
    library.call("normjit_service_create", ctypes.byref(options), ctypes.byref(service))
    return service


def prebuild(library, service, kernels, progress=None):
    return library.text_of("normjit_prebuild", service, ctypes.byref(kernels), 1, 0,
                           ctypes.cast(progress, ctypes.c_void_p) if progress else None, None)


def prebuild_child(case):
    """One service after the other. A service's "done" are the times between the ends of its kernels."""
    library = bindings()
    library.load()
    if case.get("plugin"):
        ctypes.CDLL(case["plugin"])
    kernels = library.KernelSet(case["specs"], [ARCH])
    services = []
    for cache in case["caches"]:
        events, ends = [], []
        on_event = ON_EVENT(lambda _, event: events.append((event[0].kind.decode(), event[0].milliseconds)))
        on_done = ON_PROGRESS(lambda *_: ends.append(time.perf_counter()))
        service = service_of(library, case, cache, on_event)
        begin = time.perf_counter()
        report = json.loads(prebuild(library, service, kernels, on_done))
        wall = time.perf_counter() - begin
        counters = json.loads(library.text_of("normjit_counters", service))
        ending = time.perf_counter()
        library.load().normjit_service_destroy(service)
        services.append({"wall_ms": wall * 1e3, "end_ms": (time.perf_counter() - ending) * 1e3, "events": events,
                         "done": [(b - a) * 1e3 for a, b in zip([begin] + ends, ends)], "counters": counters,
                         "ids": [kernel["id"] for kernel in report["results"]],
                         "kernel_ms": [kernel["milliseconds"] for kernel in report["results"]]})
    return services


def wait_for_start():
    print("ready", flush=True)
    sys.stdin.readline()


def fleet_child(case):
    """Machines one after the other, each a service of its own. What they fetched; ends when all are gone."""
    library = bindings()
    library.load()
    kernels = library.KernelSet(case["specs"], [ARCH])
    fetched = 0
    wait_for_start()
    for cache in case["caches"]:
        service = service_of(library, case, cache)
        prebuild(library, service, kernels)
        fetched += json.loads(library.text_of("normjit_counters", service))["remote_hits"]
        library.load().normjit_service_destroy(service)
    return {"fetched": fetched}


SINK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Remote(ctypes.Structure):
    """normjit_remote."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("user", ctypes.c_void_p),
                ("get", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, SINK,
                                         ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p, ctypes.c_size_t)),
                ("put", ctypes.c_void_p), ("lease", ctypes.c_void_p), ("release", ctypes.c_void_p),
                ("close", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


def plugin_child(case):
    """The same machines by the plug-in alone: a session for each, and nothing but its get."""
    open_session = ctypes.CDLL(case["plugin"]).normjit_remote_open
    why = ctypes.create_string_buffer(400)
    sizes = []
    sink = SINK(lambda to, some, size: sizes.append(size))
    keys = ["nj1:{}".format(id).encode() for id in case["ids"]]
    wait_for_start()
    for _ in case["caches"]:
        session = Remote(ctypes.sizeof(Remote))
        if open_session(case["remote"].encode(), ctypes.byref(session), why, len(why)) != 1:
            raise SystemExit(why.value.decode())
        for key in keys:
            if session.get(session.user, key, 1 << 26, sink, None, 1000, why, len(why)) != 1:
                raise SystemExit(why.value.decode() or "a kernel is absent")
        session.close(session.user)
    return {"fetched": len(sizes), "bytes": sum(sizes)}


def pack_child(case):
    """Machines that fetch a file by the plug-in alone, each over a connection of its own."""
    fetch = ctypes.CDLL(case["plugin"]).normjit_remote_fetch
    fetch.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, SINK, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t,
                      ctypes.c_int32, ctypes.c_char_p, ctypes.c_size_t]
    version, why = ctypes.create_string_buffer(256), ctypes.create_string_buffer(400)
    sizes = []
    sink = SINK(lambda to, some, size: sizes.append(size))
    wait_for_start()
    for _ in range(case["machines"]):
        if fetch(case["url"].encode(), b"", 1 << 28, sink, None, version, len(version), 3000, why, len(why)) != 1:
            raise SystemExit(why.value.decode() or "there is no pack")
    return {"fetched": len(sizes), "bytes": sum(sizes)}


def warm_child(case):
    """A first call as the environment says, between two marks in the trace; and one more."""
    library = bindings()
    spec = library.parse_spec(case["specs"][0])
    service, kernel, again = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    prepare = library.PrepareOptions()
    arguments = ctypes.byref(spec), ctypes.byref(prepare)
    for path in ("/normjit-end", "/normjit-begin"):  # the first of each takes Python's own calls
        os.access(path, os.F_OK)
    library.call("normjit_service_create", None, ctypes.byref(service))
    library.call("normjit_prepare", service, *arguments, ctypes.byref(kernel))
    library.call("normjit_prepare", service, *arguments, ctypes.byref(again))
    os.access("/normjit-end", os.F_OK)
    return json.loads(library.text_of("normjit_kernel_describe", kernel))


CHILDREN = {"prebuild": prebuild_child, "fleet": fleet_child, "plugin": plugin_child, "pack": pack_child, "warm": warm_child}


# --- Servers.

class Failed(Exception):
    pass


def program(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def free_port():
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


class Server:
    """A process that listens on a port of this machine."""

    def __init__(self, command, port, folder):
        self.port = port
        self.log = Path(folder) / "log-{}".format(port)
        with open(str(self.log), "w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.01)
        self.close()
        raise Failed("{} does not start: {}".format(command[0], self.log.read_text().strip()))

    def close(self):
        self.process.kill()
        self.process.wait()


def redis_server(folder):
    port = free_port()
    return Server([program("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                   "--dir", folder], port, folder)


NGINX = """
daemon off; master_process off; pid nginx.pid; error_log stderr;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_max_body_size 64m; root {folder}/files;
  client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
  server {{ listen 127.0.0.1:{port}; dav_methods PUT; create_full_put_path on; }}
}}
"""


def nginx_server(folder):
    port = free_port()
    folder = tempfile.mkdtemp(dir=folder)
    Path(folder, "nginx.conf").write_text(NGINX.format(folder=folder, port=port))
    return Server([program("nginx"), "-p", folder, "-c", folder + "/nginx.conf"], port, folder)


def toxic_proxy(folder, target, mode, number):
    port = free_port()
    return Server([sys.executable, str(ROOT / "tests" / "support" / "toxic_proxy.py"), str(port), str(target), mode,
                   str(number)], port, folder)


class CountingPort:
    """Forwards to another port, and counts connections and the pieces that clients send: a request is one."""

    def __init__(self, target):
        self.target, self.connections, self.requests = target, 0, 0
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(128)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        try:
            while True:
                client, _ = self.listener.accept()
                self.connections += 1
                server = socket.create_connection(("127.0.0.1", self.target))
                for source, sink, counts in ((client, server, True), (server, client, False)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self.forward, args=(source, sink, counts), daemon=True).start()
        except OSError:
            pass

    def forward(self, source, sink, counts):
        try:
            with source:
                while True:
                    data = source.recv(1 << 20)
                    if not data:
                        break
                    self.requests += counts
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


class SilentPort:
    """A full queue of connections that nobody accepts: Linux drops what else comes, as a network that is gone does."""

    def __init__(self):
        self.sockets = [socket.socket()]
        self.sockets[0].bind(("127.0.0.1", 0))
        self.sockets[0].listen(0)
        self.port = self.sockets[0].getsockname()[1]
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", self.port))
            self.sockets.append(one)

    def close(self):
        for one in self.sockets:
            one.close()


class RefusingPort:
    """Nobody listens there."""

    def __init__(self):
        self.port = free_port()

    def close(self):
        pass


# --- The bench.

class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.build = options.build.resolve()
        self.rows, self.notes = [], []
        self.servers, self.number = {}, 0
        self.environment = dict(os.environ, NORMJIT_LIBRARY=str(self.build / "libnormjit.so"), PYTHONDONTWRITEBYTECODE="1",
                                no_proxy="*")
        for name in list(self.environment):
            if re.match("NORMJIT_(?!LIBRARY|NVRTC_PATH)", name):
                del self.environment[name]

    def close(self):
        for server in self.servers.values():
            server.close()

    # Preparations.

    def tool(self, *arguments, **more):
        done = subprocess.run([str(self.build / "normjit"), *arguments], env=dict(self.environment, **more),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        if done.returncode != 0:
            raise Failed("normjit {}: {}".format(" ".join(arguments[:2]), (done.stderr or done.stdout).strip()))
        return done.stdout

    def fresh(self, name="cache"):
        self.number += 1
        return os.path.join(self.folder, "{}-{}".format(name, self.number))

    def kernels_of(self, specs):
        return json.loads(self.tool("prebuild", *specs, "--arch", ARCH, "--dry-run", "--json",
                                    NORMJIT_CACHE_DIR=self.fresh()))["requested"]

    def first_specs(self, specs, kernels):
        """As many of them as have so many kernels."""
        for count in range(1, len(specs) + 1):
            if self.kernels_of(specs[:count]) >= kernels:
                return specs[:count]
        raise Failed("{} specs have fewer than {} kernels".format(len(specs), kernels))

    def url(self, store, port=None):
        address = "127.0.0.1:{}".format(port or self.servers[store].port)
        return "redis://{}/0".format(address) if store == "redis" else "http://{}/kernels".format(address)

    def plugin(self, store):
        return str(self.build / "libnormjit-remote-{}.so".format("redis" if store == "redis" else "http"))

    def prepare(self):
        for store, name, start in (("redis", "redis-server", redis_server), ("nginx", "nginx", nginx_server)):
            if not program(name):
                self.notes.append("{} is not installed: its rows are left out.".format(name))
            elif not os.path.exists(self.plugin(store)):
                self.notes.append("The plug-in for {} is not built: its rows are left out.".format(store))
            else:
                self.servers[store] = start(self.folder)
        if not self.servers:
            raise Failed(" ".join(self.notes))
        self.secret, public = (os.path.join(self.folder, "bench." + kind) for kind in ("key", "pub"))
        self.tool("sign", "keygen", "--secret", self.secret, "--public", public)
        self.public = next(word for word in Path(public).read_text().split() if word.startswith("RW"))
        self.specs = self.first_specs(SPECS, FLEET_KERNELS)
        self.cache = self.fresh("filled")
        say("compiling {} specs".format(len(self.specs)))
        self.tool("prebuild", *self.specs, "--arch", ARCH, NORMJIT_CACHE_DIR=self.cache)
        self.fill()

    def fill(self):
        for store in self.servers:
            self.tool("remote", "put", NORMJIT_CACHE_DIR=self.cache, NORMJIT_REMOTE=self.url(store),
                      NORMJIT_SIGN_KEY=self.secret)

    def reader(self, store, **more):
        return dict({"specs": self.specs, "remote": self.url(store), "trust": self.public}, **more)

    def child_command(self, name, case):
        return [sys.executable, str(Path(__file__).resolve()), "--child", name, json.dumps(case)]

    def child(self, name, case, tracer=(), environment=None):
        done = subprocess.run([*tracer, *self.child_command(name, case)], env=environment or self.environment,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        if done.returncode != 0:
            raise Failed((done.stderr or done.stdout).strip().splitlines()[-1])
        return json.loads(done.stdout.splitlines()[-1])

    def add(self, what, cells, goal=""):
        """cells: {store: text}"""
        row = [what] + [cells.get(store, "") for store in STORES] + [goal]
        self.rows.append(row)
        say("  " + " | ".join(row))

    # Parts.

    def look(self):
        first, later, fetched, reader, writer, plain = {}, {}, {}, {}, {}, []
        for _ in range(self.options.repeat):
            local = self.child("prebuild", {"specs": self.specs, "caches": [self.cache]})[0]
            plain += local["done"][1:]
            for store in self.servers:
                run = self.child("prebuild", self.reader(store, caches=[self.fresh()]))[0]
                looks = [ms for kind, ms in run["events"] if kind == "fetched"]
                if len(looks) != len(run["ids"]):
                    raise Failed("{} of {} kernels were fetched from {}".format(len(looks), len(run["ids"]), store))
                first.setdefault(store, []).append(looks[0])
                later.setdefault(store, []).extend(looks[1:])
                fetched.setdefault(store, []).extend(run["done"][1:])
                for role, keys in ((reader, {}), (writer, {"sign_key": self.secret})):
                    run = self.child("prebuild", self.reader(store, caches=[self.cache], **keys))[0]
                    role.setdefault(store, []).extend(run["done"][1:])
        texts = lambda values: {store: p50_p99(values[store]) for store in self.servers}
        self.add("look, of the store: first of a process, p50 / p99 ms", texts(first))
        self.add("look, of the store: later ones, p50 / p99 ms", texts(later))
        self.add("prebuild of a kernel that only the store has, p50 / p99 ms", texts(fetched))
        self.add("prebuild of a cached kernel, without a store, p50 / p99 ms", {store: p50_p99(plain) for store in self.servers})
        self.add("the same by a machine that may not offer", texts(reader))
        self.add("the same by one that may, and asks whether the store has it", texts(writer))

    def started_at_once(self, name, cases):
        """Seconds from their common start to the end of the last one, and what they say."""
        processes = [subprocess.Popen(self.child_command(name, case), env=self.environment, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, universal_newlines=True) for case in cases]
        try:
            for process in processes:
                if process.stdout.readline() != "ready\n":
                    raise Failed("a process of the fleet did not start")
            begin = time.perf_counter()
            for process in processes:
                process.stdin.write("\n")
                process.stdin.flush()
            lines = [process.stdout.readline() for process in processes]
            seconds = time.perf_counter() - begin
        finally:
            for process in processes:
                process.kill()
                process.communicate()
        if not all(lines):
            raise Failed("a process of the fleet failed")
        return seconds, [json.loads(line) for line in lines]

    def fleet(self):
        machines, processes = self.options.machines, os.cpu_count()
        ids = self.child("prebuild", {"specs": self.specs, "caches": [self.cache]})[0]["ids"]

        def shares(store, folder, **more):
            caches = [os.path.join(folder, str(i)) if folder else "" for i in range(machines)]
            return [self.reader(store, caches=caches[i::processes], **more) for i in range(processes)]

        for what, child, on_disk in (("by the plug-in alone, nothing checked or kept", "plugin", False),
                                     ("kernels checked, kept in memory", "fleet", False),
                                     ("kernels checked, kept in cache directories", "fleet", True)):
            cells = {}
            for store in self.servers:
                folder = self.fresh("fleet") if on_disk else ""
                if folder:
                    os.mkdir(folder)
                more = {"plugin": self.plugin(store), "ids": ids} if child == "plugin" else {}
                seconds, said = self.started_at_once(child, shares(store, folder, **more))
                count = sum(one["fetched"] for one in said)
                if count != machines * len(ids):
                    self.notes.append("Of {} kernels {} were fetched from {} ({}).".format(machines * len(ids), count, store,
                                                                                         what))
                cells[store] = "{} s, {} a second".format(short(seconds), short(count / seconds))
                if folder:
                    shutil.rmtree(folder)
            self.add("{:,} machines x {} kernels, {} processes: {}".format(machines, len(ids), processes, what), cells,
                     "< 3 s" if child == "plugin" and machines == 1000 else "")

    def pack(self):
        if "nginx" not in self.servers:
            return
        url = self.url("nginx") + "/pack.njp"
        request = urllib.request.Request(url, data=os.urandom(PACK_BYTES), method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        machines, processes = self.options.machines, os.cpu_count()
        cases = [{"plugin": self.plugin("nginx"), "url": url, "machines": len(range(i, machines, processes))}
                 for i in range(processes)]
        seconds, said = self.started_at_once("pack", cases)
        if sum(one["bytes"] for one in said) != machines * PACK_BYTES:
            self.notes.append("Not all machines have fetched the pack.")
        self.add("{:,} machines x a pack of {:,} bytes, {} processes: by the plug-in alone".format(machines, PACK_BYTES, processes),
                 {"nginx": "{} s, {} MB a second".format(short(seconds), short(machines * PACK_BYTES / seconds / 1e6))},
                 "< 2 s" if machines == 1000 else "")

    def empty(self, store):
        """Takes all values out of the store: a fresh server."""
        self.servers[store].close()
        self.servers[store] = {"redis": redis_server, "nginx": nginx_server}[store](self.folder)

    def offers(self):
        specs = self.specs[:3]
        own, wall, end, wall_with, end_with, own_with = [], [], [], {}, {}, {}
        for _ in range(max(1, self.options.repeat // 4)):
            runs = [(None, self.child("prebuild", {"specs": specs, "caches": [self.fresh()]})[0])]
            for store in self.servers:
                self.empty(store)
                runs.append((store, self.child("prebuild", {"specs": specs, "caches": [self.fresh()], "sign_key": self.secret,
                                                            "remote": self.url(store)})[0]))
            for store, run in runs:
                compiling = [ms for kind, ms in run["events"] if kind == "compiled"]
                if store and run["counters"]["remote_stored"] > len(compiling):
                    raise Failed("more kernels were offered than compiled")
                beside = (sum(run["done"]) - sum(compiling)) / len(compiling)
                for to, value in ((own if store is None else own_with.setdefault(store, []), beside),
                                  (wall if store is None else wall_with.setdefault(store, []), run["wall_ms"] / 1e3),
                                  (end if store is None else end_with.setdefault(store, []), run["end_ms"])):
                    to.append(value)
        self.fill()
        middle = lambda values: short(percentile(values, 50))
        count = len(compiling)
        self.add("prebuild of {} kernels that are compiled and offered, p50 s".format(count),
                 {store: "{} (without a store {})".format(middle(wall_with[store]), middle(wall)) for store in self.servers})
        self.add("of it beside the compiler, for each kernel, p50 ms",
                 {store: "{} (without a store {})".format(middle(own_with[store]), middle(own)) for store in self.servers})
        self.add("end of the service, which sends what waits, p50 ms",
                 {store: "{} (without a store {})".format(middle(end_with[store]), middle(end)) for store in self.servers})

    def faults(self):
        specs = self.first_specs(MISSES, MISSED_KERNELS)
        missing = {"specs": specs, "compiler_path": os.path.join(self.folder, "no-compiler")}
        plain = [run for _ in range(3) for run in self.child("prebuild", dict(missing, caches=[self.fresh()]))]
        later = [ms for run in plain for ms in run["done"][1:]]
        usual = percentile([run["done"][0] for run in plain], 50), percentile(later, 50)
        count = len(plain[0]["ids"])
        self.notes.append("Misses: {} for each process, of which one takes {} ms without a store (p50; p99 {}).".format(
            count, short(usual[1]), short(percentile(later, 99))))
        strace = program("strace")
        if not strace:
            self.notes.append("strace is not installed: calls of servers that are down are counted by normjit's events.")
        for what, mode, number, role, goal in (
                ("refuses connections", "refuse", 0, "writer", "<= 1 ms, 1 call, then 0"),
                ("swallows packets", "silent", 0, "writer", "<= 50 ms, 1 call, then 0"),
                ("takes connections, never answers", "black-hole", 0, "writer", "<= 150 ms, 1 call, then 0"),
                ("answers after 0.1 s, to a reader", "delay", 100, "reader", "<= 150 ms a miss, 300 ms in all, then 0"),
                ("answers after 0.1 s, to a writer", "delay", 100, "writer", "<= 150 ms a miss, 300 ms in all, then 0"),
                ("answers after 1 s", "delay", 1000, "writer", "<= 150 ms, 1 call, then 0"),
                ("answers after 60 s", "delay", 60_000, "writer", "<= 150 ms, 1 call, then 0"),
                ("answers by garbage", "garbage", 0, "writer", "1 call, then 0")):
            self.add("server " + what, {store: self.fault(store, mode, number, role, missing, usual, strace)
                                        for store in self.servers}, goal)

    def fault(self, store, mode, number, role, missing, usual, strace):
        """A first miss in a fresh process, in one that had loaded the plug-in, what a process pays, and the calls. Failures
        are timed by normjit's events; slow successes have none."""
        keys = {"trust": self.public} if role == "reader" else {"sign_key": self.secret}
        first, walls, whole, calls, next_calls = ([], []), [], [], [], []
        for i in range(2 * max(2, self.options.repeat // 4) + 1):
            far = (RefusingPort() if mode == "refuse" else SilentPort() if mode == "silent" else
                   toxic_proxy(self.folder, self.servers[store].port, mode, number))
            port = far if mode in ("refuse", "silent") else CountingPort(far.port)
            try:
                case = dict(missing, remote=self.url(store, port.port), caches=[self.fresh()], **keys)
                if i % 2:
                    case["plugin"] = self.plugin(store)
                run, count = self.watched(case, port, None if i else strace)
                calls.append(count)
                next_calls.append(self.watched(case, port, None if i else strace)[1])
            finally:
                port.close()
                if far is not port:
                    far.close()
            if i == 0:
                continue  # under strace
            failed = [ms for kind, ms in run["events"] if kind == "remote_failed"]
            wall = costs(run["done"], *usual, noticed=20)
            paid, together = (failed[0], sum(failed)) if failed else wall
            first[i % 2].append(paid)
            whole.append(together)
            if i % 2 == 0:
                walls.append(wall[0])
        return "{} ms, plug-in loaded {} ms; with libsodium and keys {} ms; in all {} ms; calls {}, then {}".format(
            *(short(percentile(values, 50)) for values in (*first, walls, whole)),
            " to ".join(str(count) for count in sorted({min(calls), max(calls)})), max(next_calls))

    def watched(self, case, port, strace):
        """A process, and how often it called."""
        if isinstance(port, CountingPort):
            before = port.requests, port.connections
            run = self.child("prebuild", case)[0]
            time.sleep(0.05)
            return run, max(port.requests - before[0], port.connections - before[1])
        if not strace:
            run = self.child("prebuild", case)[0]
            return run, sum(kind == "remote_failed" for kind, _ in run["events"])
        trace = self.fresh("trace")
        run = self.child("prebuild", case, (strace, "-f", "-qq", "-e", "trace=connect", "-o", trace))[0]
        return run, connections_to(Path(trace).read_text().splitlines(), port.port)

    def warm(self):
        strace = program("strace")
        library = self.build / "libnormjit.so"
        if not strace:
            self.notes.append("strace is not installed: the system calls of warm first calls are not counted.")
        else:
            try:
                self.warm_calls(strace)
            except Failed as why:
                self.notes.append("A warm first call cannot be made here: {}.".format(why))
        if program("readelf"):
            text = subprocess.run([program("readelf"), "-d", str(library)], stdout=subprocess.PIPE, check=True,
                                  universal_newlines=True).stdout
            needed = re.findall(r"\(NEEDED\).*\[(.*)\]", text)
            self.notes.append("libnormjit.so needs {}.".format(", ".join(needed)))
        else:
            self.notes.append("readelf is not installed: what libnormjit.so needs is not listed.")

    def warm_calls(self, strace):
        stand_in = self.build / "tests" / "stand_in"
        environment = dict(self.environment, NORMJIT_CACHE_DIR=self.fresh())
        if stand_in.exists() and not os.path.exists("/dev/nvidiactl"):
            environment["LD_LIBRARY_PATH"] = "{}:{}".format(stand_in, environment.get("LD_LIBRARY_PATH", ""))
            self.notes.append("Warm first calls: with the tests' libcuda, which only counts.")
        self.child("warm", {"specs": self.specs}, environment=environment)  # compiles
        counts, plain = {}, None
        for store in [None, *self.servers]:
            more = {"NORMJIT_REMOTE": self.url(store), "NORMJIT_TRUST": self.public} if store else {}
            trace = self.fresh("trace")
            described = self.child("warm", {"specs": self.specs}, (strace, "-f", "-qq", "-o", trace),
                                   dict(environment, **more))
            if described["origin"] != "disk":
                raise Failed("its kernel came from {}".format(described["origin"]))
            calls = marked_calls(Path(trace).read_text().splitlines())
            if store is None:
                plain = calls
            else:
                counts[store] = calls
        total = lambda calls: sum(calls.values())
        self.add("system calls of a warm first call and one more",
                 {store: "{} (without a store {})".format(total(counts[store]), total(plain)) for store in self.servers},
                 "0 more")
        for store, calls in counts.items():
            differ = ["{} {:+}".format(call, calls.get(call, 0) - plain.get(call, 0)) for call in sorted({*calls, *plain})
                      if calls.get(call, 0) != plain.get(call, 0)]
            if differ:
                self.notes.append("System calls with {}: {}.".format(store, ", ".join(differ)))

    def versions(self):
        texts = []
        for name, argument in (("redis-server", "--version"), ("nginx", "-v")):
            if program(name):
                done = subprocess.run([program(name), argument], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      universal_newlines=True)
                found = re.search(r"\d+\.\d+\.\d+", done.stdout)
                texts.append("{} {}".format(name, found[0] if found else "of an unknown version"))
        return texts

    def report(self):
        head = "{} cores, Linux {}, {}; {}.".format(os.cpu_count(), platform.release(), ", ".join(self.versions()),
                                                   datetime.date.today().isoformat())
        return "\n".join([head, "", table(["", *STORES, "goal"], self.rows), "", *self.notes])


def say(text):
    print(text, file=sys.stderr, flush=True)


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--child":
        print(json.dumps(CHILDREN[sys.argv[2]](json.loads(sys.argv[3]))), flush=True)
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build"), help="the build directory")
    parser.add_argument("--machines", type=int, default=1000, help="of a fleet")
    parser.add_argument("--repeat", type=int, default=20, help="processes that look; a quarter for offers, half for faults")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated: " + ", ".join(PARTS))
    parser.add_argument("--output", type=Path, help="store the rows as JSON")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if not set(parts) <= set(PARTS) or options.machines < 1 or options.repeat < 1:
        parser.error("--parts takes {}; --machines and --repeat 1 or more".format(", ".join(PARTS)))
    for file in ("normjit", "libnormjit.so"):
        if not (options.build / file).exists():
            print("{}/{} is not built".format(options.build, file), file=sys.stderr)
            return 3
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the servers, too
    with tempfile.TemporaryDirectory(prefix="normjit-remote-") as folder:
        bench = Bench(options, folder)
        try:
            bench.prepare()
            for part in parts:
                say(part)
                getattr(bench, part)()
        except Failed as why:
            print(why, file=sys.stderr)
            return 3
        finally:
            bench.close()
        print(bench.report())
        if options.output:
            options.output.write_text(json.dumps({"rows": bench.rows, "notes": bench.notes}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
