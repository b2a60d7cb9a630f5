# SPDX-License-Identifier: BSD-3-Clause
"""A plot of waiting times as SVG."""

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 900, 360, 70, 50, 45
COLOURS = ("#1f77b4", "#d62728", "#7f7f7f", "#2ca02c")


def text(x, y, words, anchor="middle", size=13, fill="#222"):
    return (f'<text x="{x:.0f}" y="{y:.0f}" font-family="sans-serif" font-size="{size}" '
            f'text-anchor="{anchor}" fill="{fill}">{words}</text>')


def line(x1, y1, x2, y2, stroke="#ccc", dashes=""):
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" '
            f'stroke-dasharray="{dashes}"/>')


def round_up(value):
    """The next of 1, 2 or 5 times a power of ten."""
    scale = 1e-9
    while True:
        for step in 1, 2, 5:
            if step * scale >= value:
                return step * scale
        scale *= 10


def plot_waits(title, series, compute):
    """Return a plot of the waiting time of each batch, in ms. series: {name: seconds}."""
    top = round_up(1.05e3 * max(max(waits) for waits in series.values()))
    count = max(map(len, series.values()))

    def across(batch):
        return LEFT + (WIDTH - LEFT - 20) * batch / max(1, count - 1)

    def down(ms):
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * ms / top

    parts = [text(LEFT, 22, title, "start", 15)]
    for tick in range(6):
        ms = top * tick / 5
        parts += [line(LEFT, down(ms), WIDTH - 20, down(ms)),
                  text(LEFT - 8, down(ms) + 4, f"{ms:.3g}", "end")]
    parts.append(text(18, TOP - 8, "ms", "start"))
    for batch in range(0, count, max(1, count // 8)):
        parts.append(text(across(batch), HEIGHT - 24, str(batch)))
    parts.append(text(WIDTH / 2, HEIGHT - 6, "batch"))
    if compute * 1e3 < top:
        parts += [line(LEFT, down(compute * 1e3), WIDTH - 20, down(compute * 1e3), "#222", "6 4"),
                  text(WIDTH - 24, down(compute * 1e3) - 5, "computing", "end")]
    for place, (name, waits) in enumerate(series.items()):
        colour = COLOURS[place % len(COLOURS)]
        points = " ".join(f"{across(batch):.1f},{down(wait * 1e3):.1f}"
                          for batch, wait in enumerate(waits))
        parts += [f'<polyline points="{points}" fill="none" stroke="{colour}"/>',
                  text(LEFT + 8 + 260 * place, 42, f"&#9632; {name}", "start", fill=colour)]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            f'viewBox="0 0 {WIDTH} {HEIGHT}">\n<rect width="100%" height="100%" fill="#fff"/>\n'
            + "\n".join(parts) + "\n</svg>\n")
