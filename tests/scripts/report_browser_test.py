#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks at pages of scripts/report.py in a headless Chromium: what they show, against the files; that they load nothing.

    python3 tests/scripts/report_browser_test.py

Screenshots at two widths, light and dark, and a print, lie in NORMJIT_TEST_SCREENSHOTS if it is set. Without the packages
plotly and playwright, or a Chromium (of playwright, or the system's), it says so in one line and exits with 77.
"""
import contextlib
import io
import json
import lzma
import math
import os
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
MEASURED = SCRIPTS.parent / "src" / "normjit" / "plan" / "measured" / "h100.txt.xz"
TEXT = lzma.decompress(MEASURED.read_bytes()).decode()
sys.path.insert(0, str(SCRIPTS))
import report  # noqa: E402

SECONDS = 120  # that a step may take, on a machine that does much besides
WIDTHS = {"wide": 1280, "narrow": 390}


def layers_of(path):
    """Read in another way than the script does: {key: (copy, times)}, in the order of the file."""
    layers = {}
    for block in pathlib.Path(path).read_text().split("layer ")[1:]:
        head, *plans = block.split("end\n")[0].splitlines()
        _, spec, rows, sample, plane, align, copy = head.split()
        times = [float(plan.split()[-3]) for plan in plans]
        layers[spec, int(rows[5:]), sample, plane, align] = float(copy[5:]), times
    return layers


def edited(text, edit):
    """The file with what edit(number, lines) makes of the lines of each layer; none leaves it out."""
    lines, number, layer = [], 0, []
    for line in text.splitlines():
        if line.startswith("layer ") or layer:
            layer.append(line)
        else:
            lines.append(line)
        if line == "end":
            lines += edit(number, layer)
            number, layer = number + 1, []
    return "\n".join(lines) + "\n"


def again(number, layer):
    """As if it was measured once more: other times, every fifth choice is another plan, and a third is not there."""
    if number % 3 == 0:
        return []
    head, *plans, end = layer
    words = [plan.split() for plan in plans]
    for word in words:
        word[-3] = "{:.3f}".format(float(word[-3]) * (0.6 + number * 37 % 100 / 100))
    return [head, *map(" ".join, words[::-1] if number % 5 == 0 else words), end]


def quantile(values, q):
    values, at = sorted(values), q * (len(values) - 1)
    low = int(at)
    return values[low] + (at - low) * (values[min(low + 1, len(values) - 1)] - values[low])


def shown(time):
    """In four digits, and in whole microseconds above them."""
    return round(time) if time >= 1e4 else float("{:.4g}".format(time))


def number(text):
    return float(text.replace(",", "").replace(" %", ""))


def luminance(color):
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    return sum(share * (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
               for share, part in zip((0.2126, 0.7152, 0.0722), parts))


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


class ReportPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.measured, cls.again = cls.folder / "h100.txt", cls.folder / "again.txt"
        known = set()

        def fifth(number, layer):
            """Every fifth layer. A few have been drawn twice; of those the first."""
            key = layer[0].split(" copy=")[0].split(" ", 2)[2]
            first = key not in known
            known.add(key)
            return layer if first and number % 5 == 0 else []

        cls.measured.write_text(edited(TEXT, fifth))
        cls.again.write_text(edited(cls.measured.read_text(), again))
        (cls.folder / "curve.txt").write_text("".join(
            "forward: {} layers: mean {} %, median 1.0 %, p95 {} %, worst 90 %\n".format(*point)
            for point in ((400, 6.5, 21.5), (800, 4.5, 15.0), (1600, 3.0, 9.0))))
        cls.one = cls.page_of("one.html", cls.measured)
        cls.two = cls.page_of("two.html", cls.measured, cls.again, "--curve", cls.folder / "curve.txt")
        cls.layers = layers_of(cls.measured)

    @classmethod
    def page_of(cls, name, *arguments):
        with contextlib.redirect_stdout(io.StringIO()):
            if report.main([*map(str, arguments), "-o", str(cls.folder / name)]) != 0:
                raise AssertionError("no page of {}".format(arguments))
        return cls.folder / name

    def open(self, path, width="wide", scheme="light"):
        """The page, whose console stays empty and which asks for nothing but itself."""
        context = BROWSER.new_context(viewport={"width": WIDTHS[width], "height": 900}, color_scheme=scheme)
        self.addCleanup(context.close)
        context.set_default_timeout(1000 * SECONDS)
        page, said, asked = context.new_page(), [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        self.addCleanup(lambda: self.assertEqual((said, asked), ([], [path.as_uri()])))
        return page

    def rows(self, page, table):
        """The texts of the cells of a table's body."""
        return page.eval_on_selector_all("#{} tbody tr".format(table), "rows => rows.map(row => [...row.cells].map(cell => cell.innerText))")

    def column(self, page, table, name):
        names = page.eval_on_selector_all("#{} th".format(table), "cells => cells.map(cell => cell.innerText.replaceAll('\\n', ' ').trim())")
        return [row[names.index(name)] for row in self.rows(page, table)]

    def count(self, page, shown):
        """Waits until the filters have so many layers."""
        page.wait_for_function("text => document.getElementById('count').textContent.startsWith(text)", arg="{:,} of".format(shown))

    def test_every_measured_layer_of_the_repository(self):
        everything = self.folder / "all.txt"
        everything.write_text(edited(TEXT, again))
        self.assertLess(self.page_of("all.html", MEASURED, everything).stat().st_size, 8e6)
        page, layers = self.open(self.page_of("all.html", MEASURED)), TEXT.count("\nend\n")
        self.count(page, layers)
        self.assertEqual(self.rows(page, "sources")[0][0], "h100.txt.xz")
        self.assertFalse(page.is_visible("#comparison") or page.is_visible("#curve") or page.is_visible("#of-source"))
        self.assertEqual(page.locator("#copy-plot .points path").count(), layers)  # a mark for each
        self.assertEqual(page.locator("#loss-plot .scatterlayer .trace").count(), 3)

    def test_groups_have_the_statistics_of_their_layers(self):
        page = self.open(self.one)
        for row, dtype in zip(self.rows(page, "group-table"), ("f16", "bf16", "f32", "f64")):
            fractions = [copy / times[0] for (spec, *_), (copy, times) in self.layers.items() if spec.split("/")[2] == dtype]
            geometric = math.exp(sum(map(math.log, fractions)) / len(fractions))
            self.assertEqual((row[0], number(row[1])), (dtype, len(fractions)))
            for text, value in zip(row[2:], (geometric, quantile(fractions, 0.5), quantile(fractions, 0.1), min(fractions))):
                self.assertAlmostEqual(number(text), value, delta=0.00051)
        page.select_option("#groups", "family")
        losses = [times[0] / min(times) - 1 for (spec, *_), (_, times) in self.layers.items() if "_bwd/" in spec and len(times) > 1]
        row = next(row for row in self.rows(page, "loss-groups") if row[0] == "gradients")
        for text, value in zip(row[1:], (len(losses), *(100 * x for x in (sum(losses) / len(losses), quantile(losses, 0.5),
                                                                          quantile(losses, 0.95), max(losses))))):
            self.assertAlmostEqual(number(text), value, delta=0.051)

    def test_a_table_sorts_on_a_click(self):
        page = self.open(self.one)
        losses = sorted(100 * (times[0] / min(times) - 1) for _, times in self.layers.values() if len(times) > 1)
        def shown():
            return [number(text) for text in self.column(page, "loss-table", "loss")]
        def agree(texts, values):
            self.assertEqual(len(texts), len(values))
            for text, value in zip(texts, values):
                self.assertAlmostEqual(text, value, delta=0.051)
        agree(shown(), losses[:-21:-1])
        button = page.locator("#loss-table th button", has_text="loss")
        button.click()
        agree(shown(), losses[:20])
        self.assertEqual(page.locator("#loss-table th[aria-sort=ascending]").inner_text().strip(), "loss")
        page.keyboard.press("Enter")  # the header that was clicked keeps the focus
        agree(shown(), losses[:-21:-1])
        page.click("#loss-table .more")
        agree(shown(), losses[::-1])
        page.locator("#loss-table th button", has_text="rows").click()
        rows = [number(text) for text in self.column(page, "loss-table", "rows")]
        self.assertEqual(rows, sorted(rows, reverse=True))
        self.assertNotEqual(rows[0], rows[-1])

    def test_filters(self):
        page = self.open(self.one)
        specs = [key[0] for key in self.layers]
        gradients = [spec for spec in specs if "_bwd/" in spec]
        page.select_option("select[name=family]", "gradients")
        self.count(page, len(gradients))
        page.click("#far-table .more")
        self.assertEqual(sorted(self.column(page, "far-table", "layer")), sorted(gradients))
        page.select_option("select[name=dtype]", "f64")
        self.count(page, sum("/f64" in spec for spec in gradients))
        self.assertEqual([row[0] for row in self.rows(page, "group-table")], ["f64"])
        page.click("button[type=reset]")
        self.count(page, len(specs))
        page.fill("input[name=text]", "/gelu")
        self.count(page, sum("/gelu" in spec for spec in specs))
        page.fill("input[name=text]", "no such")
        self.count(page, 0)
        page.click("button[type=reset]")
        page.select_option("select[name=operation]", "quantized")
        self.count(page, sum("/q=" in spec for spec in specs))

    def check_layer(self, page, times):
        page.wait_for_selector("dialog[open]")
        rows = self.rows(page, "layer-plans")
        self.assertEqual([number(row[1]) for row in rows], [shown(time) for time in sorted(times)])
        self.assertEqual(rows[0][2], "1.000 best" if times[0] > min(times) else "1.000 chosen best")
        chosen, = (row for row in rows if "chosen" in row[2])
        self.assertAlmostEqual(number(chosen[2].split()[0]), times[0] / min(times), delta=0.00051)

    def test_a_layer_opens_its_plans(self):
        page = self.open(self.one)
        worst = max(self.layers, key=lambda key: self.layers[key][1][0] / min(self.layers[key][1]))
        page.locator("#loss-table button.link").first.press("Enter")
        self.assertEqual(page.inner_text("#layer-title"), "{}, {:,} rows".format(*worst[:2]))
        self.check_layer(page, self.layers[worst][1])
        best = self.measured.read_text().split(" {} rows={} ".format(*worst[:2]))[1].split("end")[0].splitlines()[1:]
        words = min(best, key=lambda line: float(line.split()[-3])).split()
        self.assertIn("--rows {} --plan \"{} threads={} ".format(worst[1], *words[:2]), page.inner_text("#layer-command"))
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="hidden")
        point = page.evaluate("""() => {
            const plot = document.getElementById('copy-plot'), trace = plot.data[0];
            const box = plot.querySelector('.points path').getBoundingClientRect();
            plot.emit('plotly_click', {points: [{customdata: trace.customdata[0]}]});
            return trace.text[0].split('<br>')[0]; }""")
        self.assertIn(point + ",", page.inner_text("#layer-title"))

    def test_ratios_of_two_files(self):
        self.assertLess(self.two.stat().st_size, 8e6)
        page, other = self.open(self.two), layers_of(self.again)
        common = [key for key in self.layers if key in other]
        self.assertGreater(len(common), 200)
        self.count(page, len(self.layers))  # those of the first file
        measures = {
            "us of the plan chosen": lambda copy, times: times[0], "us of the best plan": lambda copy, times: min(times),
            "time of the plan chosen over the copy's": lambda copy, times: times[0] / copy,
        }
        page.click("#ratio-table .more")
        for name, of in measures.items():
            page.select_option("#measure", name)
            ratios = {(key[0], "{:,}".format(key[1])): of(*other[key]) / of(*self.layers[key]) for key in common}
            self.assertEqual(len(ratios), len(common))
            shown = {(row[0], row[1]): number(row[5]) for row in self.rows(page, "ratio-table")}
            self.assertEqual(shown.keys(), ratios.keys())
            for key, ratio in ratios.items():
                self.assertAlmostEqual(shown[key], ratio, delta=0.00051, msg=str(key))
            said = page.inner_text("#said")
            geometric = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            self.assertIn("{:,} layers: geometric mean {:.3f};".format(len(ratios), geometric), said)
            self.assertIn("{:,} take at least 3 % less".format(sum(ratio < 0.97 for ratio in ratios.values())), said)
        page.select_option("select[name=dtype]", "bf16")
        self.count(page, sum(key[0].split("/")[2] == "bf16" for key in self.layers))
        self.assertEqual(len(self.rows(page, "ratio-table")), sum(key[0].split("/")[2] == "bf16" for key in common))

    def test_a_layer_of_two_files_has_the_plans_of_both(self):
        page, other = self.open(self.two), layers_of(self.again)
        page.locator("#ratio-table button.link").first.click()
        spec, rows = page.inner_text("#layer-title").replace(",", "").rsplit(" ", 2)[:2]
        key = next(key for key in other if key[:2] == (spec, int(rows)))
        for file, layers in (("h100.txt", self.layers), ("again.txt", other)):
            times = [number(text) for text in self.column(page, "layer-plans", "us, " + file) if text]
            self.assertEqual(sorted(times), [shown(time) for time in sorted(layers[key][1])])

    def test_the_learning_curve(self):
        page = self.open(self.two)
        self.assertEqual(self.rows(page, "curve-table")[1], ["forward", "800", "4.5", "1.0", "15.0", "90.0"])
        self.assertEqual(page.locator("#curve-plot .points path").count(), 6)

    def test_results_of_bench_have_no_losses(self):
        plan = "block_row threads=32 threads_per_row=32 vector=8 per_thread=1 group_rows=1 blocks_per_sm=1"
        (self.folder / "bench.json").write_text(json.dumps({"results": [
            {"spec": "rmsnorm/cols={}/f16/eps=1e-05/w".format(64 * width), "rows": 8, "device": "NVIDIA <b>Y</b>", "overlap": False, "sample_rows": 1,
             "plane": 0, "plan": plan, "kernel": {"median_us": 4.0}, "copy": {"median_us": 3.0}} for width in range(1, 4)]}))
        page = self.open(self.page_of("bench.html", self.folder / "bench.json"))
        self.count(page, 3)
        self.assertEqual(self.rows(page, "sources")[0][1], "NVIDIA <b>Y</b>")
        self.assertEqual(self.column(page, "far-table", "of copy"), ["0.750"] * 3)
        self.assertFalse(page.is_visible("#loss"))
        page.locator("#far-table button.link").first.click()
        self.check_layer(page, [4.0])

    def test_is_readable_wide_and_narrow_in_light_and_dark(self):
        pages = set()
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                page = self.open(self.two, width, scheme)
                self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), WIDTHS[width])
                self.screenshot(page, "{}-{}".format(width, scheme))
                ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
                pages.add(ground)
                for what in ("h1", "#sources caption", "td button.link", "#copy p", "label"):
                    color = page.eval_on_selector(what, "one => getComputedStyle(one).color")
                    self.assertGreater(contrast(color, ground), 4.5, (what, scheme))
                ticks = page.eval_on_selector("#copy-plot .xtick text", "one => getComputedStyle(one).fill")
                self.assertGreater(contrast(ticks, ground), 4.5)
                for mark in page.evaluate("COLOURS.slice(0, 4)"):
                    rgb = " ".join(str(int(mark[at:at + 2], 16)) for at in (1, 3, 5))
                    self.assertGreater(contrast(rgb, ground), 2.5, (mark, scheme))
                page.locator("#loss-table button.link").first.press("Enter")
                page.wait_for_selector("dialog[open]")
                self.screenshot(page, "{}-{}-layer".format(width, scheme), full_page=False)
        self.assertEqual(len(pages), 2)

    def test_prints_dark_on_white(self):
        page = self.open(self.two, scheme="dark")
        content = page.pdf(format="A4", margin={side: "12mm" for side in ("top", "bottom", "left", "right")})
        self.assertTrue(content.startswith(b"%PDF"))
        if SCREENSHOTS:
            (SCREENSHOTS / "print.pdf").write_bytes(content)
        page.emulate_media(media="print")
        self.assertEqual(page.evaluate("getComputedStyle(document.body).backgroundColor"), "rgb(255, 255, 255)")
        self.assertEqual(page.eval_on_selector("#copy-plot .xtick text", "one => getComputedStyle(one).fill"), "rgb(0, 0, 0)")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        self.assertEqual(page.eval_on_selector("#copy-plot .main-svg", "one => one.getBoundingClientRect().width"), 680)

    def screenshot(self, page, name, full_page=True):
        if SCREENSHOTS:
            page.screenshot(path=str(SCREENSHOTS / (name + ".png")), full_page=full_page)


def skip(why):
    print("Skipped: {}".format(why))
    sys.exit(77)


def launched(playwright):
    """A browser: playwright's own, else the system's."""
    for path in (None, *map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        with contextlib.suppress(Error):
            arguments = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
            return playwright.chromium.launch(executable_path=path, args=arguments, timeout=1000 * SECONDS)
    return skip("no Chromium here that starts (playwright install chromium, or Debian's chromium)")


if __name__ == "__main__":
    try:
        import plotly  # noqa: F401
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        skip("{} (pip install plotly playwright)".format(error))
    SCREENSHOTS = pathlib.Path(os.environ["NORMJIT_TEST_SCREENSHOTS"]) if os.environ.get("NORMJIT_TEST_SCREENSHOTS") else None
    with sync_playwright() as started:
        BROWSER = launched(started)
        unittest.main()
