"""A program that scores translations with COMET; `comet_scores` starts it.

It runs in the Python in which COMET is installed, where jaxformer may be missing. Its
argument is a checkpoint. It first writes a line of JSON, {"version": ...}. Then it
answers each line, a JSON list of {"src", "mt", "ref"}, with a list of scores. A mistake
is {"error": ...}, and the program ends.
"""

import json
import os
import sys


def main() -> None:
    """Load the checkpoint, then answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever libraries print is no answer
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]

    def answer(value: object) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        from importlib.metadata import version

        from comet import load_from_checkpoint

        model = load_from_checkpoint(sys.argv[1], local_files_only=True)
        answer({"version": version("unbabel-comet")})
        for line in sys.stdin:
            samples = json.loads(line)
            answer(list(model.predict(samples, progress_bar=False).scores))
    except ModuleNotFoundError as error:
        answer({"missing": error.name})
    except Exception as error:
        answer({"error": " ".join(str(error).split()) or type(error).__name__})


if __name__ == "__main__":
    main()
