"""What to run: one file a run; its docstring says what the run reproduces.

`get_config` of each file returns every value of a run. `jaxformer.config` says what
each key means; `--config=FILE --help` prints it. In the package the folder is
`jaxformer.configs`, so a config of your own begins with

    from jaxformer.configs import wmt_base
"""
