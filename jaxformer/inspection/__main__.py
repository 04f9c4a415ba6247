"""Inspect a pickled DataConfig's text from standard input; pickle the result."""

import pickle
import sys

from jaxformer.inspection.corpus import inspect_corpus

if __name__ == "__main__":
    found = inspect_corpus(pickle.load(sys.stdin.buffer))
    pickle.dump(found, sys.stdout.buffer)
