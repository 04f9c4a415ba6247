"""Your own parallel text: two languages and six files, by flag.

For         300,000 to 4 million sentence pairs. With fewer, start from the models that
            docs/model_size.md names; with more, from configs/wmt_base.py.
Hardware    one GPU or TPU (on CPUs a smaller model, and without AVX512-BF16 or
            AMX --config.model.dtype=float32); time and score depend on the text and
            are not measured. jaxformer check estimates them before a run.
Data        plain text or .gz, paths or globs, one sentence a line; line N of the target
            translates line N of the source. The test files are needed only by
            jaxformer evaluate.

    jaxformer train --config=configs/parallel_text.py \\
        --config.data.source_language=en --config.data.target_language=fr \\
        --config.data.train='corpus/*.en.gz,corpus/*.fr.gz' \\
        --config.data.dev=dev.en,dev.fr --config.data.test=test.en,test.fr \\
        runs/mine
"""

from ml_collections import ConfigDict

from jaxformer.configs import wmt_base


def get_config() -> ConfigDict:
    """The base config with fewer parameters, 40M, and more dropout."""
    config = wmt_base.get_config()
    config.data.update(
        corpus="files", source_language="", target_language="", train="", dev="",
        test="", vocab_size=16_000,
    )  # fmt: skip
    config.model.update(d_ff=1024, dropout=0.2)
    config.training.update(steps=50_000, eval_every=2500, save_every=500)
    return config
