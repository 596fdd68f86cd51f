"""What benches/ycsb/run found, as tables in Markdown and as a plot for each workload and size of records."""

from html import escape

ORDER = ("insert", "write only", "90 % reads", "10 % reads")
COLOURS = {"esker": "#d62728", "leveldb": "#1f77b4", "kyoto": "#2ca02c", "cassandra": "#9467bd"}
# Bars: how far ahead of each peer, and how much of the first point's throughput the last one keeps.
AHEAD, FLAT = 1.0, 0.9


def short(value, unit=1000):
    for exponent, letter in ((3, "G"), (2, "M"), (1, "K")):
        if value >= unit ** exponent:
            return f"{value / unit ** exponent:.4g} {letter}{'iB' if unit == 1024 else ''}".strip()
    return str(value)


def groups(results):
    """(mode, bytes of a record), in the order of measuring."""
    return list(dict.fromkeys((row["mode"], row["bytes"]) for row in results["rows"]))


def cells(results, mode, size):
    """{(workload, records, peer): row}."""
    return {(row["workload"], row["records"], row["peer"]): row for row in results["rows"]
            if (row["mode"], row["bytes"]) == (mode, size)}


def line(fields):
    return "| " + " | ".join(fields) + " |"


def table(head, rows):
    return [line(head), "|---" + "|--:" * (len(head) - 1) + "|", *map(line, rows)]


def rates(results, found):
    """Operations a second, what Esker's are of them, and processor time of the server."""
    peers = results["peers"]
    others = [name for name in peers if name != "esker"]
    head = ["workload", "records", *[f"{name}/s" for name in peers],
            *[f"esker by {name}" for name in others if "esker" in peers], *[f"{name}, µs" for name in peers]]
    rows = []
    for workload, records in sorted({key[:2] for key in found}, key=lambda key: (ORDER.index(key[0]), key[1])):
        at = [found.get((workload, records, name)) for name in peers]
        own = found.get((workload, records, "esker"))
        rows.append([workload, short(records), *[f"{row['per_second']:,.0f}" if row else "–" for row in at],
                     *[f"{own['per_second'] / row['per_second']:.2f}" if own and row else "–"
                       for name, row in zip(peers, at) if name != "esker" and "esker" in peers],
                     *[f"{row['server_us']:.1f}" if row else "–" for row in at]])
    return table(head, rows)


def curve(found, workload, peer):
    """(records, operations a second), by records."""
    return sorted((key[1], row["per_second"]) for key, row in found.items() if key[0] == workload and key[2] == peer)


def bars(results, found):
    """How flat each peer is, and the least that Esker is ahead."""
    peers = results["peers"]
    rows = []
    for workload in [name for name in ORDER if any(key[0] == name for key in found)]:
        flat = []
        for peer in peers:
            points = curve(found, workload, peer)
            flat.append(points[-1][1] / points[0][1] if len(points) > 1 else None)
        own = dict(curve(found, workload, "esker"))
        behind = [(own[records] / rate, peer, records) for peer in peers if peer != "esker"
                  for records, rate in curve(found, workload, peer) if records in own]
        least = min(behind, default=None)
        ahead = "–" if least is None else f"{least[0]:.2f} ({least[1]}, {short(least[2])})"
        met = [] if least is None else ["ahead" if least[0] > AHEAD else "not ahead"]
        if "esker" in peers and flat[peers.index("esker")]:
            met.append("flat" if flat[peers.index("esker")] >= FLAT else "not flat")
        rows.append([workload, *[f"{ratio:.2f}" if ratio else "–" for ratio in flat], ahead, ", ".join(met)])
    return table(["workload", *[f"{name}: last by first" for name in peers], "least that Esker is ahead", "bars"], rows)


def tables(results):
    text = [f"{results['esker']} ({results['commit']}), {results['date']}, {results['cores']} cores, "
            f"{short(results['memory_bytes'], 1024)} of memory, Linux {results['kernel']}; {results['threads']} "
            f"threads, {results['seconds']} s each, {results['distribution']} keys, inserted "
            f"{results['insert_order']}, cache {short(results['cache_bytes'], 1024)}, recent "
            f"{short(results['recent_bytes'], 1024)}, Cassandra's heap {results['cassandra_heap']}", ""]
    for mode, size in groups(results):
        found = cells(results, mode, size)
        text += [f"### {mode}, records of {short(size, 1024)}", "", *rates(results, found), "",
                 *bars(results, found), ""]
        space = {one["peer"]: one["used_bytes"] / (one["records"] * size) for one in results["space"]
                 if (one["mode"], one["bytes"]) == (mode, size)}
        loads = [row["load"] for row in found.values()]
        text += ["Space at the end, over payload: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in space.items())
                 + f". Load average of the machine at the ends of cells: {min(loads)} to {max(loads)}.", ""]
    text += [f"**Failed**: {one['peer']}, {one['mode']}, {short(one['bytes'], 1024)}: {one['error']}"
             for one in results["failed"]]
    return "\n".join(text)


def plots(results, folder):
    """A plot for each mode, workload and size of records: operations a second over the number of records."""
    folder.mkdir(parents=True, exist_ok=True)
    for mode, size in groups(results):
        found = cells(results, mode, size)
        for workload in [name for name in ORDER if any(key[0] == name for key in found)]:
            curves = {peer: curve(found, workload, peer) for peer in results["peers"]}
            words = workload.replace(" % ", "-").replace(" ", "-")
            path = folder / f"{mode}-{words}-{short(size, 1024).replace(' KiB', 'k')}.svg"
            path.write_text(drawn(f"{workload}, records of {short(size, 1024)}, {mode}", curves))


def step(most, lines):
    """The least of 1, 2 and 5 times a power of ten that makes no more than so many lines."""
    exponent = 0
    while True:
        for first in (1, 2, 5):
            if most / (first * 10 ** exponent) <= lines:
                return first * 10 ** exponent
        exponent += 1


def drawn(title, curves):
    width, height, left, top = 400, 220, 70, 52
    curves = {peer: points for peer, points in curves.items() if points}
    last = max(points[-1][0] for points in curves.values())
    highest = 1.05 * max(rate for points in curves.values() for _, rate in points)
    across = lambda records: left + records / last * width
    up = lambda rate: top + height - rate / highest * height
    text = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 24} {top + height + 42}" '
            'font-family="sans-serif" font-size="11">',
            f'<rect width="{left + width + 24}" height="{top + height + 42}" fill="white"/>',
            f'<text x="8" y="18" font-size="13">Operations a second: {escape(title)}</text>']
    for index, peer in enumerate(curves):
        x = 8 + 110 * index
        text.append(f'<rect x="{x}" y="28" width="14" height="8" fill="{COLOURS[peer]}"/>'
                    f'<text x="{x + 18}" y="36">{peer}</text>')
    apart = step(highest, 6)
    for rate in range(0, int(highest) + 1, apart):
        text.append(f'<line x1="{left}" x2="{left + width}" y1="{up(rate):.1f}" y2="{up(rate):.1f}" stroke="#ddd"/>'
                    f'<text x="{left - 6}" y="{up(rate) + 4:.1f}" text-anchor="end">{rate:,}</text>')
    apart = step(last, 6)
    for records in range(0, last + 1, apart):
        text.append(f'<text x="{across(records):.1f}" y="{top + height + 16}" text-anchor="middle">'
                    f'{short(records)}</text>')
    text.append(f'<text x="{left + width / 2}" y="{top + height + 34}" text-anchor="middle">'
                'records in the store</text>')
    for peer, points in curves.items():
        at = [(f"{across(records):.1f}", f"{up(rate):.1f}") for records, rate in points]
        text.append(f'<polyline points="{" ".join(",".join(one) for one in at)}" fill="none" stroke="{COLOURS[peer]}" '
                    'stroke-width="2"/>')
        text += [f'<circle cx="{x}" cy="{y}" r="3" fill="{COLOURS[peer]}"/>' for x, y in at]
    return "\n".join([*text, "</svg>", ""])
