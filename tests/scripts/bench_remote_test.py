#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/bench_remote.py: its numbers and its table, its counting port, and what it says without a build.

    python3 tests/scripts/bench_remote_test.py
"""
import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import bench_remote  # noqa: E402


class Numbers(unittest.TestCase):
    def test_percentiles_are_values_that_were_measured(self):
        values = list(range(100, 0, -1))
        self.assertEqual([bench_remote.percentile(values, percent) for percent in (0, 1, 50, 99, 100)], [1, 1, 50, 99, 100])
        self.assertEqual(bench_remote.percentile([7], 50), 7)
        self.assertEqual(bench_remote.percentile([3, 1, 2], 50), 2)
        self.assertEqual(bench_remote.percentile([1, 2, 3, 4], 99), 4)

    def test_numbers_have_three_digits(self):
        for number, text in ((0, "0"), (0.01234, "0.0123"), (0.123, "0.123"), (0.00001, "0.0000"), (1.234, "1.23"),
                             (12.34, "12.3"), (123.4, "123"), (12345.6, "12346")):
            self.assertEqual(bench_remote.short(number), text)
        self.assertEqual(bench_remote.p50_p99([1, 2, 3]), "2.00 / 3.00")
        self.assertEqual(bench_remote.p50_p99([]), "-")

    def test_costs_are_those_beyond_the_usual(self):
        self.assertEqual(bench_remote.costs([105, 3, 103, 4], usual_first=5, usual=3, noticed=20), (100, 200))
        self.assertEqual(bench_remote.costs([4, 3], usual_first=5, usual=3, noticed=20), (0, 0))


class Table(unittest.TestCase):
    def test_is_markdown(self):
        self.assertEqual(bench_remote.table(["", "redis", "goal"], [["look", "1"], ["fleet", 2, "< 3 s"]]),
                         "|  | redis | goal |\n| --- | --- | --- |\n| look | 1 |  |\n| fleet | 2 | < 3 s |")


class Traces(unittest.TestCase):
    def test_system_calls_between_the_marks_count(self):
        lines = ['7 openat(AT_FDCWD, "a", O_RDONLY) = 3', '7 access("/normjit-end", F_OK) = -1 ENOENT',
                 '7 access("/normjit-begin", F_OK) = -1 ENOENT', '7 openat(AT_FDCWD, "b", O_RDONLY) = 3',
                 '8 read(3, "", 1) = 0', 'read(3, "", 1) = 0', '8 <... futex resumed>) = 0', '7 +++ exited with 0 +++',
                 '7 access("/normjit-end", F_OK) = -1 ENOENT', "7 close(3) = 0"]
        self.assertEqual(bench_remote.marked_calls(lines), {"openat": 1, "read": 2})
        self.assertEqual(bench_remote.marked_calls([]), {})

    def test_connections_to_a_port_count(self):
        lines = ['7 connect(3, {sa_family=AF_INET, sin_port=htons(6379), sin_addr=inet_addr("127.0.0.1")}, 16) = 0',
                 '7 connect(3, {sa_family=AF_INET, sin_port=htons(63790), sin_addr=inet_addr("127.0.0.1")}, 16) = 0',
                 '7 connect(3, {sa_family=AF_UNIX, sun_path="/var/run/nscd/socket"}, 110) = -1 ENOENT']
        self.assertEqual(bench_remote.connections_to(lines, 6379), 1)


class Ports(unittest.TestCase):
    def test_connections_and_requests_are_counted(self):
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(8)
            port = bench_remote.CountingPort(server.getsockname()[1])
            self.addCleanup(port.close)
            with socket.create_connection(("127.0.0.1", port.port), 10) as client:
                far, _ = server.accept()
                with far:
                    for text in (b"one", b"two"):
                        client.sendall(text)
                        self.assertEqual(far.recv(100), text)
                        far.sendall(text * 2)
                        self.assertEqual(client.recv(100), text * 2)
            self.assertEqual((port.connections, port.requests), (1, 2))

    def test_a_silent_port_answers_nobody(self):
        port = bench_remote.SilentPort()
        self.addCleanup(port.close)
        begin = time.monotonic()
        with self.assertRaises(OSError):
            socket.create_connection(("127.0.0.1", port.port), 0.1)
        self.assertGreaterEqual(time.monotonic() - begin, 0.09)


class Script(unittest.TestCase):
    def run_script(self, *arguments):
        return subprocess.run([sys.executable, str(SCRIPTS / "bench_remote.py"), *arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True)

    def test_without_a_build_it_says_so(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.run_script("--build", folder)
        self.assertEqual((run.returncode, run.stderr), (3, os.path.join(folder, "normjit") + " is not built\n"))

    def test_parts_are_checked(self):
        self.assertEqual(self.run_script("--parts", "look,speed").returncode, 2)


if __name__ == "__main__":
    unittest.main()
