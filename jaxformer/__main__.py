"""`python -m jaxformer`."""

from jaxformer.main import run_process

run_process()
