# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of the Python drop-ins share: a report that is on disk at any time, and an end to the time that they have."""
import contextlib
import json
import os
import signal
import sys
import traceback


class OutOfTime(BaseException):
    """No step's own error."""
    due = False


class Report(dict):
    """All that is known so far, and a file for it. faults: a function of the report that gives what is wrong, a sentence each."""

    def __init__(self, path, faults, **known):
        super().__init__(known, left_out=[], failed=[], wrong=[])
        self.path, self.faults = path, faults

    def store(self):
        """Writes the file; that it cannot be written must not end what is measured."""
        try:
            self.write()
        except OSError as why:
            print("Not stored: {}".format(why), file=sys.stderr)

    def write(self):
        """The file is whole at any time. Raises OSError."""
        self["wrong"] = list(self.faults(self))
        if self.path:
            with open(self.path + ".part", "w") as file:
                json.dump(self, file, indent=1)
            os.replace(self.path + ".part", self.path)

    @contextlib.contextmanager
    def step(self, name):
        """Stores what was found, and how it failed."""
        try:
            yield
        except Exception:
            if OutOfTime.due:  # and another error came in its place
                raise OutOfTime from None
            self["failed"].append("{}: {}".format(name, traceback.format_exc()))
        self.store()

    @contextlib.contextmanager
    def time_limit(self, seconds, left_out):
        """Ends what runs within, after so many seconds or when the process is told to end; that is left out then."""
        def out_of_time(*_):
            OutOfTime.due = True
            raise OutOfTime
        numbers = signal.SIGALRM, signal.SIGTERM
        for number in numbers:
            signal.signal(number, out_of_time)
        signal.setitimer(signal.ITIMER_REAL, max(1, seconds))
        try:
            yield
        except OutOfTime:
            self["left_out"].append(left_out)
        finally:
            for number in numbers:
                signal.signal(number, signal.SIG_IGN)
            self.store()

    def remarks(self):
        """Lines for what failed and what is wrong."""
        return (["FAILED {}".format(text.rstrip()) for text in self["failed"]]
                + ["WRONG {}".format(text) for text in self.faults(self)])

    def status(self):
        """The exit status."""
        return 2 if self["failed"] else 1 if self["wrong"] else 0
