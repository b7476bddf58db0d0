# SPDX-License-Identifier: Apache-2.0
"""What tests of the scripts share."""
import json
import os
import tempfile
import unittest


class InAFolder(unittest.TestCase):
    """Tests with files of their own, in self.folder."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def put(self, name, content):
        """The path of a file with these bytes, this text, or else this as JSON."""
        if not isinstance(content, (bytes, str)):
            content = json.dumps(content)
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return path
