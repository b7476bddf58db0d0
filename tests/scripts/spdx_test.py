#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/spdx.py: the document has what NOTICE names, and a NOTICE that it cannot read is a mistake. The validator
of SPDX looks at a document in `scripts/test.sh release`."""
import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, os.fspath(ROOT / "scripts"))
import spdx  # noqa: E402

NOTICE = (ROOT / "NOTICE").read_text()


class Spdx(unittest.TestCase):
    def test_entries_of_the_notice(self):
        entries = {name: (licence, copyrights) for name, _, licence, _, copyrights in spdx.notice_entries(NOTICE)}
        self.assertEqual(set(entries), set(spdx.HEADERS))
        self.assertEqual(entries["xxHash"], ("BSD-2-Clause", "Copyright (C) 2012-2020 Yann Collet"))
        self.assertEqual(entries["CLI11"][0], "BSD-3-Clause")

    def test_a_notice_that_names_others(self):
        for change, why in ((("* spdlog", "* somelog"), "somelog"), (("BSD 2-Clause licence", "own licence"), "own licence"),
                            (("* xxHash", "xxHash"), "does not name xxHash")):
            with self.assertRaisesRegex(spdx.Mistake, why):
                spdx.notice_entries(NOTICE.replace(*change))

    def test_document(self):
        made = spdx.document("1.2.3", "normjit-1.2.3.tar.xz", "ab" * 32, NOTICE, {"fmt": "9.1.0"}, 86400)
        packages = {package["name"]: package for package in made["packages"]}
        self.assertEqual(packages["normjit"]["checksums"][0]["checksumValue"], "ab" * 32)
        self.assertEqual(packages["fmt"]["versionInfo"], "9.1.0")
        self.assertNotIn("versionInfo", packages["spdlog"])
        self.assertEqual(made["creationInfo"]["created"], "1970-01-02T00:00:00Z")
        self.assertEqual(len({package["SPDXID"] for package in made["packages"]}), len(made["packages"]))
        linked = [relation["relatedSpdxElement"] for relation in made["relationships"]
                  if relation["relationshipType"] == "STATIC_LINK"]
        self.assertEqual(len(linked), len(spdx.HEADERS))

    def test_versions_of_the_headers_here(self):
        for name, version in spdx.header_versions().items():
            self.assertRegex(version, r"^\d+\.\d+\.\d+$", name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
