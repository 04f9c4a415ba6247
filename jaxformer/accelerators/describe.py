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


def in_all(figures: Figures) -> str:
    """Write the time of an update whose collectives overlap with nothing."""
    least = "at least " * figures["is_lower_bound"]
    return least + in_ms(figures["seconds_with_collectives"])


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
    is_bound = figures["is_lower_bound"]
    least, most = ("at least ", "at most ") if is_bound else ("", "")
    how = "compiled" if is_bound else "estimated"
    lines = [
        f"topology    {figures['topology']}: {counted(figures['devices'], 'device')}, "
        f"{how} by the {compiler}, nothing was run",
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
    if is_bound:
        lines.append("bounds      by bytes, products and the chip's data sheet")
    seconds = figures["estimated_seconds_per_update"]
    lines += [
        f"update      {least}{in_ms(seconds)} on the chip; products alone take "
        f"{in_ms(figures['seconds_at_peak'])} at peak: "
        f"{most}{figures['share_of_peak']:.1%}",
        f"            {in_all(figures)} if the collectives overlap with nothing; then",
        f"            {most}{figures['target_tokens_per_second']:,} target tokens a "
        f"second, {least}{figures['hours']:.1f} hours for the whole run",
    ]
    if number := figures["kernels_without_estimate"]:
        what = "the operations of " * is_bound
        lines.append(f"            without {what}{number} Pallas kernels: no estimate")
    for kind, cost in figures.get("kinds", {}).items():
        label, time = "kernels" * (kind == "all"), in_ms(cost["seconds"])
        size = f"{cost['kernels']:>5,} move {cost['bytes'] / 1e9:>6,.2f} GB"
        lines.append(f"{label:<12}{size}, at least {time:>8}: {kind}")
    lines.append(f"parts       the {LARGEST} largest, forward + backward")
    by_part: dict[str, Counter] = {}
    moved = Counter()
    for each in figures["parts"]:
        by_part.setdefault(each["part"], Counter())[each["pass"]] += each["seconds"]
        moved[each["part"]] += each.get("bytes", 0)
    largest = sorted(by_part.items(), key=lambda part: -part[1].total())[:LARGEST]
    for part, passes in largest:
        each = (in_ms(passes[name]) for name in ("forward", "backward"))
        both = "" if "" in passes else f" ({' + '.join(each)})"
        size = f"{moved[part] / 1e9:>6.2f} GB  " * is_bound
        lines.append(
            f"            {passes.total() / seconds:>6.1%} "
            f"{in_ms(passes.total()):>8}  {size}{part}{both}"
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
        step = in_ms(figures["estimated_seconds_per_step"])
        step = f"at least {step}" if figures["is_lower_bound"] else step
        lines.append(f"            {step}; reading its arguments once takes {floor}")
    return "\n".join(lines)
