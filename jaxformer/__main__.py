"""`python -m jaxformer`."""

from jaxformer.main import run_process

if __name__ == "__main__":
    run_process()
