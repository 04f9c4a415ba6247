"""What to run: one file a run, its docstring says what it reproduces.

A section is exactly the keyword arguments of one function, so a key is described where
it is used:

    data       jaxformer.data.sources.CorpusConfig
    batches    jaxformer.data.plan.make_plan, and `executor` of jaxformer.data.pipeline
    model      jaxformer.models.transformer.config.TransformerConfig
    optimizer  jaxformer.training.optimizer.make_optimizer
    training   jaxformer.training.loop.TrainingConfig
    mesh       jaxformer.training.sharding.make_mesh
    decoding   jaxformer.decoding.translate.Translator
"""
