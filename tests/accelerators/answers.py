"""Made-up answers of a compiler."""


def program(**changes):
    return {
        "compile_seconds": 2.0, "arguments": 100, "temporary": 20, "outputs": 3,
        "parts": [["loss", "forward", 3_000_000], ["loss", "backward", 1_500_000]],
        "collectives": [["all-reduce", "f32", 2, 50_000_000, 10]],
        "kernels": {"fusion": 7}, "has_float64": False, **changes,
    }  # fmt: skip


def answer(**programs):
    mesh = {"data": 4, "fsdp": 1, "tensor": 1}
    return {"mesh": mesh, "shape": [8, 16, 16], "programs": programs}
