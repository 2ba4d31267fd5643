"""The picture on the benchmark page: makespan over the lower bound, by policy and edit latency."""

from pathlib import Path

from bench.makespan import POLICIES, Cell

COLOURS = {"wave by wave": "#9aa4b2", "global": "#d98e4a", "scoped": "#4a86d9", "speculative": "#3a9d6e"}


def draw(cells: list[Cell], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "asterism"  # the same figures give the same file
    from matplotlib import pyplot

    panels = sorted(
        {(cell.changes, cell.devices) for cell in cells}, key=lambda panel: (panel[0] != "nothing", panel[1])
    )
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4 * len(panels), 3.6), sharey=True)
    for axis, (changes, devices) in zip(axes, panels, strict=True):
        chosen = [cell for cell in cells if (cell.changes, cell.devices) == (changes, devices)]
        for offset, (name, colour) in enumerate(COLOURS.items()):
            heights = [cell.waves if name not in POLICIES else cell.policies[name] for cell in chosen]
            axis.bar([x + 0.2 * (offset - 1.5) for x in range(len(chosen))], heights, 0.19, color=colour, label=name)
        axis.axhline(1.0, color="#444", linewidth=0.8)
        axis.set_xticks(range(len(chosen)), [f"{cell.latency:g} s" for cell in chosen])
        axis.set_title(f"edits change {changes}, {devices} devices", fontsize=9)
        axis.set_xlabel("an edit takes", fontsize=8)
    axes[0].set_ylabel("makespan / lower bound")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
