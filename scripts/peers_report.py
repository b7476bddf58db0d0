# SPDX-License-Identifier: Apache-2.0
"""What scripts/bench_peers.py prints of its results."""
import statistics


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def marks_of(entry):
    """What the spec does not say of a case."""
    return ((" overlapped" if entry.get("overlap") else "") +
            (f" samples of {entry['sample_rows']}" if entry.get("sample_rows", 1) > 1 else "") +
            (f" planes of {entry['plane']}" if entry.get("plane") else ""))


def line_of(entry):
    """A row of a Markdown table, with every peer."""
    ours = entry["normjit_us"]
    cells = [entry["regime"], f"`{entry['spec']}`" + marks_of(entry), str(entry["rows"]),
             number(entry["copy_us"]), number(ours), number(entry["copy_us"] / ours if ours else None, 3),
             *(number(time) for time in entry["peers"].values()), number(entry.get("best_peer_over_normjit"), 3),
             {True: "yes", False: "NO"}.get(entry.get("met"), "-")]
    return "| " + " | ".join(cells) + " |"


def compact_line(entry):
    """Rows and spec; the copy's time over normjit's; normjit's time; the fastest peer, and its time over normjit's."""
    ours, best = entry["normjit_us"], entry.get("best_peer")
    peer = f"{best} {number(entry['peers'][best])} {number(entry['best_peer_over_normjit'])}" if best else "no peer"
    spec = "/".join(field for field in entry["spec"].split("/") if not field.startswith("eps="))
    return (f"{str(entry['rows']) + ' x ' + spec + marks_of(entry):56} "
            f"{number(entry['copy_us'] / ours if ours else None)} of copy {number(ours):>8} us  {peer}")


def summary(entries):
    """A line for each regime; each norm of the fused one, and each form of results of 8 bits."""
    def group(e):
        if e["regime"] not in ("fused", "quantized"):
            return e["regime"]
        named = ("rmsnorm", "layernorm", "add", "addafter", "sum", "amax")
        return " ".join([e["regime"], *(field for field in e["spec"].split("/") if field in named or field.startswith(("q=", "also="))
                                        or e["regime"] == "quantized" and field.startswith("out="))])
    lines = []
    for name in dict.fromkeys(group(entry) for entry in entries):
        ratios = [e["best_peer_over_normjit"] for e in entries if group(e) == name and "met" in e]
        met = sum(e.get("met", False) for e in entries if group(e) == name)
        if ratios:
            lines.append(f"{name}: {met} of {len(ratios)} met, best peer / normjit: worst {min(ratios):.3f}, "
                         f"geometric mean {statistics.geometric_mean(ratios):.3f}")
    return "\n".join(lines)
