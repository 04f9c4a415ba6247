"""Estimates as text, in the form of jaxformer check."""

from collections import Counter

from jaxformer.accelerators.estimate import Figures
from jaxformer.system.errors import counted
from jaxformer.training.memory import in_gib

LARGEST = 10  # parts that are listed


def in_ms(seconds: float) -> str:
    """Write seconds as milliseconds with three digits or more."""
    ms = 1000 * seconds
    return f"{ms:,.0f} ms" if ms >= 99.5 else f"{ms:.3g} ms"


def arrangement(figures: Figures) -> str:
    """Write mesh, microbatches and rematerialisation in a few words."""
    mesh = " ".join(f"{axis}={n}" for axis, n in figures["mesh"].items() if n > 1)
    count = counted(figures["microbatches"], "microbatch")
    size = " x ".join(map(str, figures["shape"]))
    if figures["empty_rows"]:
        size += f", {figures['empty_rows']} rows empty"
    if figures["rematerialise"]:
        size += ", rematerialised"
    return f"{mesh or 'data=1'}, {count} of {size}"


def flags(figures: Figures, row_tokens: int) -> str:
    """Write the flags that choose an arrangement; a row has `row_tokens` a side."""
    values = {f"mesh.{axis}": size for axis, size in figures["mesh"].items()}
    rows = figures["shape"][0] - figures["empty_rows"]
    values["training.tokens_per_microbatch"] = rows * row_tokens
    values["training.rematerialise"] = figures["rematerialise"]
    return " ".join(f"--config.{key}={value}" for key, value in values.items())


def update(figures: Figures, compiler: str) -> str:
    """Describe the figures of an update."""
    lines = [
        f"topology    {figures['topology']}: {figures['devices']} devices, "
        f"estimated by the {compiler}, nothing was run",
        f"            {arrangement(figures)}",
        *memory_lines(figures),
    ]
    if "collectives" not in figures:
        return "\n".join(lines)
    lines.append(
        f"collectives {figures['collective_bytes'] / 1e6:,.1f} MB sent by each device "
        f"an update, at least {in_ms(figures['collective_seconds'])} at the links' rate"
    )
    for each in sorted(figures["collectives"], key=lambda each: -each["bytes"]):
        lines.append(
            f"            {each['bytes'] / 1e6:>9,.1f} MB in {each['count']:>5,} x "
            f"{each['kind']} of {each['dtype']}"
        )
    if "kernels" in figures:
        lines.append("kernels     this compiler estimates no time; an update launches")
        lines += [
            f"            {count:>6,} x {name}"
            for name, count in sorted(figures["kernels"].items(), key=lambda e: -e[1])
        ]
        return "\n".join(lines)
    seconds = figures["estimated_seconds_per_update"]
    lines += [
        f"update      {in_ms(seconds)} on the chip; products alone take "
        f"{in_ms(figures['seconds_at_peak'])} at peak: {figures['share_of_peak']:.1%}",
        f"            {in_ms(figures['seconds_with_collectives'])} if the collectives "
        "overlap with nothing; then",
        f"            {figures['target_tokens_per_second']:,} target tokens a second, "
        f"{figures['hours']:.1f} hours for the whole run",
    ]
    if number := figures["kernels_without_estimate"]:
        lines.append(
            f"            without {number} Pallas kernels, which have no estimate"
        )
    lines.append(f"parts       the {LARGEST} largest, forward + backward")
    by_part: dict[str, Counter] = {}
    for each in figures["parts"]:
        by_part.setdefault(each["part"], Counter())[each["pass"]] += each["seconds"]
    largest = sorted(by_part.items(), key=lambda part: -part[1].total())[:LARGEST]
    for part, passes in largest:
        each = (in_ms(passes[name]) for name in ("forward", "backward"))
        both = "" if "" in passes else f" ({' + '.join(each)})"
        lines.append(
            f"            {passes.total() / seconds:>6.1%} "
            f"{in_ms(passes.total()):>8}  {part}{both}"
        )
    return "\n".join(lines)


def memory_lines(figures: Figures) -> list[str]:
    """Describe what a device holds, and whether it fits."""
    sizes = in_gib(figures["bytes_per_device"]), in_gib(figures["bytes_available"])
    fits = "fits" if figures["fits"] else "does NOT fit"
    lines = [f"memory      {fits}: {sizes[0]} of {sizes[1]} on each device"]
    if figures["memory"]["arguments"] is not None:
        kinds = [in_gib(size) for size in figures["memory"].values()]
        lines.append(
            f"            {kinds[0]} parameters, optimiser state and batch, {kinds[1]} "
            f"activations and\n            gradients, {kinds[2]} other outputs"
        )
    return lines


def decoder(figures: Figures, beam_size: int) -> str:
    """Describe the figures of a step of the search."""
    lines = [
        f"decoding    a step of {figures['sentences']} sentences, beam {beam_size}, on "
        f"one device: {in_gib(figures['bytes_per_device'])}"
    ]
    if "seconds_to_read_memory" in figures:
        floor = in_ms(figures["seconds_to_read_memory"])
        step = figures.get("estimated_seconds_per_step")
        estimated = f"{in_ms(step)}; " if step else ""
        lines.append(f"            {estimated}reading its arguments once takes {floor}")
    return "\n".join(lines)
