#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the SPDX 2.3 document of a release, in JSON.

  scripts/spdx.py --source normjit-VERSION.tar.xz > normjit-VERSION.spdx.json

Its facts are those of the project: the version of CMakeLists.txt, the digest of the source package, and what NOTICE says of
the code of others that is in the binaries, with the versions of the headers that this machine compiles (CXX, else c++). The
libraries that are linked or opened, and what builds and tests need besides, are listed below. The same source package,
SOURCE_DATE_EPOCH and headers make the same document.
"""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What NOTICE names: its header, and the macros that make up its version. One that counts, as 90100 for 9.1.0, is alone.
HEADERS = {
    "xxHash": ("xxhash.h", ("XXH_VERSION_MAJOR", "XXH_VERSION_MINOR", "XXH_VERSION_RELEASE")),
    "spdlog": ("spdlog/version.h", ("SPDLOG_VER_MAJOR", "SPDLOG_VER_MINOR", "SPDLOG_VER_PATCH")),
    "fmt": ("spdlog/fmt/fmt.h", ("FMT_VERSION",)),
    "CLI11": ("CLI/Version.hpp", ("CLI11_VERSION_MAJOR", "CLI11_VERSION_MINOR", "CLI11_VERSION_PATCH")),
    "JSON for Modern C++": ("nlohmann/json.hpp", ("NLOHMANN_JSON_VERSION_MAJOR", "NLOHMANN_JSON_VERSION_MINOR",
                                                  "NLOHMANN_JSON_VERSION_PATCH")),
}
LICENCES = {"BSD 2-Clause": "BSD-2-Clause", "BSD 3-Clause": "BSD-3-Clause", "MIT": "MIT"}

# Name, licence, relation to normjit, and how it is used.
OTHERS = (
    ("glibc", "LGPL-2.1-or-later", "DYNAMIC_LINK", "libc and libm, of all binaries"),
    ("libstdc++", "GPL-3.0-or-later WITH GCC-exception-3.1", "DYNAMIC_LINK", "with libgcc_s, of all binaries"),
    ("hiredis", "BSD-3-Clause", "OPTIONAL_DEPENDENCY_OF", "linked by libnormjit-remote-redis.so alone"),
    ("libcurl", "curl", "OPTIONAL_DEPENDENCY_OF", "7.87 or newer; linked by libnormjit-remote-http.so alone"),
    ("libsodium", "ISC", "OPTIONAL_DEPENDENCY_OF", "opened at run time, to sign and to check signatures"),
    ("NVRTC", "NOASSERTION", "OPTIONAL_DEPENDENCY_OF", "12.0 or newer, of NVIDIA; opened at run time, to compile kernels"),
    ("NVIDIA driver", "NOASSERTION", "OPTIONAL_DEPENDENCY_OF", "R525 or newer; libcuda is opened at run time, to run kernels"),
    ("CUDA headers", "NOASSERTION", "BUILD_DEPENDENCY_OF",
     "cuda.h and nvrtc.h of CUDA 12.0 or newer; scripts/setup.sh and pip fetch the wheels nvidia-cuda-runtime and "
     "nvidia-cuda-nvrtc where there is no toolkit"),
    ("GoogleTest", "BSD-3-Clause", "TEST_DEPENDENCY_OF", "for the tests"),
    ("Google Benchmark", "Apache-2.0", "TEST_DEPENDENCY_OF", "for a benchmark"),
)


class Mistake(Exception):
    """What the user has to know, in one line."""


def notice_entries(text):
    """Of each third party in NOTICE: name, where its code is, licence, copyright."""
    entries = []
    before_texts = text.partition("\n1. ")[0]
    for entry in re.findall(r"^\* (.*?)(?=^\S)", before_texts, re.DOTALL | re.MULTILINE):
        found = re.fullmatch(r"([^(,]+?)(?:, [\w-]+)? \(([^)]+)\), (.*?), text \d\n(.*)", entry.strip(), re.DOTALL)
        if not found:
            raise Mistake("NOTICE: not 'NAME (WHERE), LICENCE, text N': " + entry.splitlines()[0])
        name, where, licence, copyrights = found.groups()
        if name not in HEADERS:
            raise Mistake("NOTICE names {}; scripts/spdx.py does not know its header".format(name))
        known = [LICENCES[kind] for kind in LICENCES if licence.startswith(kind + " licence")]
        if not known:
            raise Mistake("NOTICE: {} has the unknown licence {}".format(name, licence))
        entries.append((name, where, known[0], licence, re.sub(r"\s+", " ", copyrights).strip()))
    missing = set(HEADERS) - {entry[0] for entry in entries}
    if missing:
        raise Mistake("NOTICE does not name " + ", ".join(sorted(missing)))
    return entries


def header_versions():
    """The versions of the headers that the compiler finds, by the names of HEADERS."""
    text = "".join("#if __has_include(<{0}>)\n#include <{0}>\n#endif\n".format(header) for header, _ in HEADERS.values())
    compiler = shlex.split(os.environ.get("CXX") or "c++")
    done = subprocess.run([*compiler, "-std=c++20", "-x", "c++", "-E", "-dM", "-"], input=text, capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise Mistake("{} cannot read the headers:\n{}".format(compiler[0], done.stderr))
    macros = dict(re.findall(r"^#define (\w+) (\d+)", done.stdout, re.MULTILINE))
    versions = {}
    for name, (_, parts) in HEADERS.items():
        if any(part not in macros for part in parts):
            print("spdx.py: the headers of {} are not here, so its version is left out".format(name), file=sys.stderr)
        elif len(parts) == 1:
            number = int(macros[parts[0]])
            versions[name] = "{}.{}.{}".format(number // 10000, number // 100 % 100, number % 100)
        else:
            versions[name] = ".".join(macros[part] for part in parts)
    return versions


def element(name):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.]+", "-", name.replace("+", "p"))


def package(name, licence, **more):
    return {"SPDXID": element(name), "name": name, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": "NOASSERTION", **more}


def document(version, source, digest, notice, versions, created):
    """The document as a dictionary. `source`: the name of the source package, `created`: seconds since 1970."""
    owner = re.search(r"^Copyright .*$", notice, re.MULTILINE).group()
    own = package("normjit", "Apache-2.0", versionInfo=version, packageFileName=source, copyrightText=owner,
                  checksums=[{"algorithm": "SHA256", "checksumValue": digest}], primaryPackagePurpose="LIBRARY",
                  supplier="Organization: the normjit authors")
    packages = [own]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", own["SPDXID"], None)]
    for name, where, licence, words, copyrights in notice_entries(notice):
        more = {"versionInfo": versions[name]} if name in versions else {}
        packages.append(package(name, licence, copyrightText=copyrights, **more))
        relations.append((own["SPDXID"], "STATIC_LINK", element(name), "headers, {}; {}".format(where, words)))
    for name, licence, relation, use in OTHERS:
        packages.append(package(name, licence))
        ends = (own["SPDXID"], element(name))
        relations.append((ends[0], relation, ends[1], use) if relation == "DYNAMIC_LINK" else (ends[1], relation, ends[0], use))
    time_text = datetime.datetime.fromtimestamp(created, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": "normjit-" + version,
        "documentNamespace": "https://spdx.org/spdxdocs/normjit-{}-{}".format(version, digest),
        "creationInfo": {"created": time_text, "creators": ["Organization: the normjit authors", "Tool: normjit-spdx.py"]},
        "packages": packages,
        "relationships": [
            {"spdxElementId": left, "relationshipType": kind, "relatedSpdxElement": right, **({"comment": use} if use else {})}
            for left, kind, right, use in relations],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--source", required=True, type=pathlib.Path, help="the source package")
    source = parser.parse_args().source
    try:
        version = re.search(r"project\(normjit VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
        created = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
        made = document(version, source.name, hashlib.sha256(source.read_bytes()).hexdigest(), (ROOT / "NOTICE").read_text(),
                        header_versions(), created)
    except (Mistake, OSError) as error:
        sys.exit("spdx.py: {}".format(error))
    print(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
